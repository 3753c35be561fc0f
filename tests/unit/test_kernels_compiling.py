"""Compiling once: cold and warm caches, several processes, no folder to write, changed sources."""

import ctypes
import multiprocessing
import os
import types
from pathlib import Path

import numpy as np
import pytest
from numba.core import caching, event

from mpicoll.kernels import compiling, kernel
from mpicoll.kernels.compiling import compiled

SIGNATURE = "int64(int64)"
as_function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)


def twice(x):
    return 2 * x


def compiled_here(function):
    """Return the function's address and whether this process compiled it."""
    with event.install_recorder("numba:run_pass") as record:
        address = compiled(function, SIGNATURE)
    return address, bool(record.buffer)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("numba.core.config.CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))  # for child processes
    return tmp_path


def add_at_once(barrier, results):
    """In a child process: get a kernel when all others do, report whether it was compiled here and works."""
    barrier.wait()
    with event.install_recorder("numba:run_pass") as record:
        add = kernel("SUM", "f4")
    out = np.zeros(5, "f4")
    add(out, np.arange(5, dtype="f4"), np.ones(5, "f4"))
    results.put((bool(record.buffer), out.tolist()))


def processes_at_once(number):
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(number), spawn.Queue()
    children = [spawn.Process(target=add_at_once, args=(barrier, results)) for _ in range(number)]
    for child in children:
        child.start()
    answers = [results.get(timeout=60) for _ in children]
    for child in children:
        child.join()
    assert all(out == [1, 2, 3, 4, 5] for _, out in answers)
    return [here for here, _ in answers]


def test_one_of_four_processes_compiles(cache):
    assert sum(processes_at_once(4)) == 1
    with compiling.turn():  # nobody asks for a turn on a warm cache
        assert sum(processes_at_once(2)) == 0


def test_second_time_is_loaded(cache):
    first, here = compiled_here(twice)
    second, again = compiled_here(twice)
    assert (here, again) == (True, False)
    assert as_function(first)(21) == as_function(second)(21) == 42


def test_closures_have_entries_of_their_own(cache):
    def add(number):
        return lambda x: x + number

    assert [compiled_here(add(number))[1] for number in (1, 2, 1)] == [True, True, False]
    assert as_function(compiled(add(2), SIGNATURE))(40) == 42


def test_changed_source_is_compiled_anew(cache, tmp_path):
    path = tmp_path / "times.py"
    answers = []
    for factor in (2, 2, 3):
        path.write_text(f"def times(x):\n    return {factor} * x\n")
        module: dict = {}
        exec(compile(path.read_text(), path, "exec"), module)
        compiling.sources.cache_clear()
        address, here = compiled_here(module["times"])
        answers.append((as_function(address)(10), here))
    assert answers == [(20, True), (20, False), (30, True)]


def test_changed_source_elsewhere_is_compiled_anew(cache, tmp_path):
    used = types.ModuleType("used")
    path = tmp_path / "used.py"
    used.__file__ = str(path)
    here = []
    for text in ("one", "one", "other"):
        path.write_text(text)
        compiling.sources.cache_clear()
        with event.install_recorder("numba:run_pass") as record:
            compiled(twice, SIGNATURE, uses=[used])
        here.append(bool(record.buffer))
    assert here == [True, False, True]


def test_no_folder_to_write(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    monkeypatch.setattr(compiling, "turn", None)  # and so nothing to wait for
    address, here = compiled_here(twice)
    assert here
    assert as_function(address)(21) == 42


def test_full_disk(cache, monkeypatch):
    def full(self, content):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert as_function(compiled(twice, SIGNATURE))(21) == 42
    assert compiled_here(twice)[1]


def test_damaged_file_is_replaced(cache):
    compiled(twice, SIGNATURE)
    (path,) = cache.rglob("*.address")
    path.write_bytes(path.read_bytes()[:100])
    assert compiled_here(twice)[1]
    assert not compiled_here(twice)[1]
