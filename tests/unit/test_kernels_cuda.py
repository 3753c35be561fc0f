"""The GPU's kernels without a GPU, against chains of the CPU's.

Three ways to see them work: their loops in Numba's simulator, in a child process; the code that they emit for
memory and arithmetic, compiled for the CPU; and the PTX of all of it, where there are NVVM and nvJitLink.
"""

import functools
import importlib.metadata
import itertools
import os
import re
import subprocess
import sys
from typing import NamedTuple

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from mpicoll.device.driver import DeviceError
from mpicoll.kernels import DTYPES, OPS, PAIRS, Kernel, cuda, kernel, supported, user

pytest.importorskip("ml_dtypes")  # makes np.dtype("bfloat16") work

DTYPE = {name: PAIRS.get(name) or np.dtype(name) for name in DTYPES}
DEFINED = [(op, name) for name, dtype in DTYPE.items() for op in OPS if supported(op, dtype)]
DIVISIBLE = [name for op, name in DEFINED if op == "SUM"]
GUARD = 0x55


class Operation:
    """What `combine` asks of an mpicoll.Op, which would start MPI."""

    def __init__(self, function, token=0):
        self.function, self.token, self.__name__ = function, token, function.__name__

    def kernel(self, dtype):
        return compiled(self.function, np.dtype(dtype))


@functools.cache
def compiled(function, dtype) -> Kernel:
    return user.compiled(function, dtype, name=function.__name__, commutative=False)


def twice_minus(a, b):
    return a + a - b


def product_minus(a, b):
    return a * b - b


def compose(a, b):  # maps x -> slope*x + shift
    return b.tag, a.slope * b.slope, a.slope * b.shift + a.shift


def steeper(a, b):
    return a if a.slope >= b.slope else b


def changing(a, b):
    b.shift = a.shift
    a.slope = 7
    return b


def either(a, b):
    return a ^ b


MAP = np.dtype([("tag", "i1"), ("slope", "i8"), ("shift", "i8")], align=True)
PACKED = np.dtype([("tag", "i1"), ("slope", "i8"), ("shift", "i8")])
LOADED = np.dtype([("slope", "f4"), ("shift", "f4"), ("place", "i2", (3,)), ("name", "S5")], align=True)
PAIR = np.dtype([("slope", "i4"), ("shift", "i4")], align=True)
USERS = [
    (twice_minus, "int8"), (product_minus, "float16"), (product_minus, "complex64"), (either, "bool"),
    (compose, MAP), (steeper, LOADED), (changing, PAIR),
]  # fmt: skip
user_ids = [f"{function.__name__}-{np.dtype(dtype).name}" for function, dtype in USERS]


def vector(random, count, dtype, offset=0):
    """Return random elements, that many bytes beyond a multiple of 16."""
    memory = np.full(offset + count * dtype.itemsize + 32, GUARD, "u1")
    offset += -memory.ctypes.data % 16
    array = np.ndarray(count, dtype, memory, offset)
    array.view("u1")[...] = random.integers(0, 2 if dtype.kind == "b" else 256, array.nbytes, "u1")
    for number in [array[name] for name in dtype.names or ()] or [array]:
        if number.dtype.kind in "fc" or number.dtype.name == "bfloat16":  # else nearly all are out of range
            values = random.normal(size=number.shape) * 3.0 + random.choice(
                [0, 0, 0, np.inf, np.nan], number.shape
            )
            number[...] = values.astype(number.dtype)
    return array


def assert_guarded(array):
    begin = array.ctypes.data - array.base.ctypes.data
    assert (array.base[:begin] == GUARD).all(), "wrote before the vector"
    assert (array.base[begin + array.nbytes :] == GUARD).all(), "wrote behind the vector"


def assert_same(result, reference):
    """Assert that all bits are the same, but for what a NaN carries."""
    if result.dtype.names:
        for field in result.dtype.names:
            assert_same(result[field], reference[field])
    elif result.dtype.kind == "c":
        assert_same(result.real, reference.real)
        assert_same(result.imag, reference.imag)
    else:
        may_be_nan = result.dtype.kind == "f" or result.dtype.name == "bfloat16"
        nan, expected = (
            np.isnan(each) if may_be_nan else np.zeros(each.shape, "?") for each in (result, reference)
        )
        np.testing.assert_array_equal(nan, expected)
        assert result[~nan].tobytes() == reference[~nan].tobytes()


def chain(host, left, operands):
    """Combine the operands by the CPU's kernel, one after the other."""
    value = operands[0].copy()
    for j, other in enumerate(operands[1:], 1):
        host(value, *((other, value) if left >> j & 1 else (value, other)))
    return value


class Placement(NamedTuple):
    """How many vectors of how many elements, where they lie, and who works on them."""

    operands: int
    count: int
    offsets: tuple  # bytes beyond a multiple of 16, of the result and the operands
    alias: int | None  # the operand that is the result, too
    left: int
    grid: tuple[int, int]
    seed: int = 1


def check(launch, host, dtype, place):
    """Run a kernel, and compare with the chain; `launch` takes the kernel's arguments and the grid."""
    random = np.random.default_rng(place.seed)
    operands = [vector(random, place.count, dtype, place.offsets[1 + j]) for j in range(place.operands)]
    separate = vector(random, place.count, dtype, place.offsets[0])
    out = separate if place.alias is None else operands[place.alias]
    before = [each.tobytes() for each in operands]
    expected = chain(host, place.left, operands)
    addresses = [each.ctypes.data for each in operands] + [0] * (8 - place.operands)
    launch(place.grid, out.ctypes.data, place.count, place.left, *addresses)
    assert_same(out, expected)
    for j, each in enumerate(operands):
        assert_guarded(each)
        assert j == place.alias or each.tobytes() == before[j], "changed an operand"
    assert_guarded(out)


@st.composite
def placements(draw, dtype, numbers):
    """Draw where vectors lie: at the same distance from multiples of 16, at that of numbers, or anywhere."""
    operands = draw(st.sampled_from(numbers))
    lanes = max(1, 16 // dtype.itemsize)
    count = draw(st.sampled_from([0, 1, max(0, lanes - 1), lanes, lanes + 1, 37]))
    elements = st.integers(0, max(0, 16 // dtype.alignment - 1)).map(lambda i: i * dtype.alignment)
    anywhere = st.sampled_from([elements, st.integers(0, 15)])
    each = draw(st.sampled_from([None, None]) | anywhere)
    if each is None:
        offsets = (draw(elements),) * (1 + operands)
    else:
        offsets = tuple(draw(each) for _ in range(1 + operands))
    return Placement(
        operands,
        count,
        offsets,
        draw(st.none() | st.integers(0, operands - 1)),
        draw(st.integers(0, 255)),
        draw(st.sampled_from([(1, 1), (2, 3), (3, 4)])),
        draw(st.integers(0, 99)),
    )


def check_drawn(launches, host, dtype, examples):
    """Check kernels, one for each number of operands, wherever vectors lie."""

    @given(placements(dtype, tuple(launches)))
    @settings(max_examples=examples, deadline=None, database=None)
    def as_the_chain(place):
        check(launches[place.operands], host, dtype, place)

    as_the_chain()


# In the simulator: Python's source of the loops. These functions run in a child process, by name.


def launched(made):
    return lambda grid, *arguments: made[grid](*arguments)


def simulated(op, dtype):
    return {operands: launched(cuda.simulated(op, dtype, operands)) for operands in (2, 3, 8)}


def simulate_all_of_mpi():
    for op, name in DEFINED:
        check_drawn(simulated(op, DTYPE[name]), kernel(op, DTYPE[name]), DTYPE[name], 5)


def simulate_users():
    for function, name in USERS:
        dtype, operation = np.dtype(name), Operation(function)
        check_drawn(simulated(operation, dtype), operation.kernel(dtype), dtype, 15)


def simulate_every_edge():
    for name, operands in (("int16", 2), ("float32", 3), ("DOUBLE_INT", 8)):
        dtype, lanes = DTYPE[name], max(1, 16 // DTYPE[name].itemsize)
        op = "MINLOC" if dtype.names else "SUM"
        launch = launched(cuda.simulated(op, dtype, operands))
        step = dtype.alignment
        starts = [(0, 0), (step, step), (16 - step, 16 - step), (0, step), (1, 1), (3, 0)]
        counts = [0, 1, lanes - 1, lanes, lanes + 1, 2 * lanes, 37]
        grids = itertools.cycle([(1, 1), (2, 3), (1, 20), (3, 1)])
        for ((out, other), count), grid in zip(itertools.product(starts, counts), grids, strict=False):
            place = Placement(operands, count, (out, *[other] * operands), None, 0, grid)
            check(launch, kernel(op, dtype), dtype, place)


def simulate_division():
    divide = without_mpi_started()
    for name in DIVISIBLE:
        launch = launched(cuda.simulated(None, DTYPE[name]))
        check_division(launch, divide, DTYPE[name], [(0, 0), (37, 0), (37, 1)])


def without_mpi_started():
    import mpi4py  # noqa: PLC0415

    mpi4py.rc.initialize = False
    from mpicoll.ops import divide  # noqa: PLC0415

    return divide


def check_division(launch, divide, dtype, cases):
    for count, offset in cases:
        for size in (1, 3, 200, 70_000):
            array = vector(np.random.default_rng(size), count, dtype, offset)
            expected = array.copy()
            with np.errstate(all="ignore"):
                divide(expected, size)
                launch((2, 3), array.ctypes.data, count, size)
            assert_same(array, expected)
            assert_guarded(array)


def child(*arguments, **environment):
    return subprocess.run(
        [sys.executable, __file__, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("what", ["all_of_mpi", "every_edge", "users", "division"])
def test_in_the_simulator(what):
    ended = child(f"simulate_{what}", NUMBA_ENABLE_CUDASIM="1")
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stdout + ended.stderr


def test_no_simulator_unless_it_was_chosen():
    with pytest.raises(RuntimeError, match="simulator is off, expected NUMBA_ENABLE_CUDASIM=1"):
        cuda.simulated("SUM", "f4", 2)


# For the CPU: the code that is emitted. A GPU's differs in the last stage only, of LLVM's or NVVM's.

EMITTED = [
    ("SUM", "int8"), ("MIN", "int16"), ("MAX", "uint64"), ("LAND", "bool"), ("SUM", "float16"),
    ("PROD", "bfloat16"), ("MIN", "float32"), ("PROD", "complex64"), ("SUM", "complex128"),
    ("MAXLOC", "SHORT_INT"),
]  # fmt: skip
TARGET = {"intrinsic": intrinsic, "inline": numba.njit(inline="always")}


def this_cpu():
    triple, _, features = cpu_target.target_context.codegen().magic_tuple()
    return user.Machine(triple, features, user._die)


def on_the_cpu(walk):
    """Compile what one thread does, for a launch of a grid's threads one after the other."""
    compiled_walk = numba.njit(
        lambda first, step, out, n, extra, *sources: walk(first, step, out, n, extra, sources)
    )

    def launch(grid, out, n, extra, *sources):
        threads = grid[0] * grid[1]
        for first in range(threads):
            compiled_walk(first, threads, out, n, extra, *sources)

    return launch


@pytest.mark.parametrize(("op", "name"), EMITTED)
def test_emitted_code(op, name):
    from mpicoll.kernels import cuda_loop, cuda_memory  # noqa: PLC0415

    dtype, element = DTYPE[name], cuda_memory.element_of(name, this_cpu())
    operation = cuda_memory.mpi_operation(op, name, element)
    means = cuda_memory.emitted(element, operation, commutes=True, **TARGET)
    emitted_is_the_chain(cuda_loop.combining_walk(means, 3), kernel(op, dtype), dtype)


@pytest.mark.parametrize(("function", "name"), USERS, ids=user_ids)
def test_emitted_code_of_users(function, name):
    from mpicoll.kernels import cuda_loop, cuda_memory  # noqa: PLC0415

    def scalar(element):
        made = numba.njit(error_model="numpy")(function)
        made.compile((element, element))
        return made.overloads[element, element]

    dtype = np.dtype(name)
    code = user.prepared(scalar, dtype, "test", this_cpu())
    means = cuda_memory.emitted(code.element, cuda_memory.user_operation(code), **TARGET)
    emitted_is_the_chain(cuda_loop.combining_walk(means, 3), compiled(function, dtype), dtype)


def emitted_is_the_chain(walk, host, dtype):
    launch = on_the_cpu(walk)

    check_drawn({3: launch}, host, dtype, 25)
    check(launch, host, dtype, Placement(3, 1000, (0,) * 4, 1, 0b100, (2, 3)))


def emitted_division():
    from mpicoll.kernels import cuda_loop, cuda_memory  # noqa: PLC0415

    divide = without_mpi_started()
    for name in ("int8", "uint64", "bfloat16", "float64", "complex64"):
        means = cuda_memory.emitted(cuda_memory.element_of(name, this_cpu()), **TARGET)
        launch = on_the_cpu(cuda_loop.dividing_walk(means))
        with_source = lambda grid, out, n, size, launch=launch: launch(grid, out, n, size, out)  # noqa: E731
        check_division(
            with_source, divide, DTYPE[name], [(0, 0), (37, 0), (37, 1), (1000, 16 - DTYPE[name].alignment)]
        )


def test_emitted_division():
    ended = child("emitted_division")
    assert (ended.returncode, ended.stdout) == (0, "done\n"), ended.stdout + ended.stderr


# For a GPU: PTX, to be read.


def missing():
    """Say what keeps this environment from compiling for a GPU."""
    try:
        cuda._versions()
    except DeviceError as error:
        return str(error)
    return ""


needs_compiler = pytest.mark.skipif(bool(missing()), reason=missing())
CAPABILITIES = [(7, 5), (9, 0)]


def ptx(image):
    assert image.code.endswith(b"\0")
    text = image.code[:-1].decode()
    assert "\0" not in text
    assert re.search(rf"\.visible \.entry {re.escape(image.name)}\(", text)
    assert not re.search(r"\bfma\b|\b(?:add|sub|mul)\.f(?:32|64)|\.ftz|\.approx", text), "bits that differ"
    assert ".extern" not in text
    return text


@needs_compiler
@pytest.mark.parametrize(
    ("op", "name", "capability"),
    [
        (op, name, capability)
        for op, name in DEFINED
        for capability in CAPABILITIES
        if capability == CAPABILITIES[-1] or op in ("PROD", "MINLOC")  # which say enough of an older one
    ],
    ids=str,
)
def test_ptx(op, name, capability):
    image = cuda.combine(op, DTYPE[name], 2, capability)
    text = ptx(image)
    assert f".target sm_{capability[0]}{capability[1]}" in text
    assert text.count(".param .u64") == 11
    number = DTYPES[name] != "pair"
    assert image.lanes == (16 // DTYPE[name].itemsize if number else 1)
    assert bool(re.search(r"ld\.global\.v[24]\.[bfu](?:32|64)", text)) == number
    assert not re.search(r"\.v[24]\.[bsu](?:8|16)", text), "loads of less than 16 bytes"


@needs_compiler
def test_ptx_of_long_vectors():
    text = ptx(cuda.combine("SUM", "f4", 2, (9, 0)))
    assert "ld.global.v4.f32" in text
    assert "st.global.v4" in text
    eight = ptx(cuda.combine("SUM", DTYPE["bfloat16"], 8, (9, 0)))
    assert eight.count("ld.global.v4.u32") >= 8, "a loop over the operands"


@needs_compiler
@pytest.mark.parametrize("name", DIVISIBLE)
def test_ptx_of_division(name):
    assert ptx(cuda.divide(DTYPE[name], (9, 0))).count(".param .u64") == 3


@needs_compiler
@pytest.mark.parametrize(("function", "name"), USERS, ids=user_ids)
def test_ptx_of_users(function, name):
    operation = Operation(function, token=USERS.index((function, name)) + 1)
    image = cuda.combine(operation, name, 2, (9, 0))
    assert ptx(image)
    assert image is cuda.combine(operation, name, 2, (9, 0))


def positive(a, b):
    if b < 0:
        raise ValueError("below zero")
    return a


@needs_compiler
def test_an_exception_traps():
    assert "trap;" in ptx(cuda.combine(Operation(positive, 101), "f8", 2, (9, 0)))
    assert "trap;" not in ptx(cuda.combine(Operation(twice_minus, 102), "f8", 2, (9, 0)))


@needs_compiler
@pytest.mark.parametrize(
    ("function", "dtype", "reason"),
    [
        (lambda a, b: a + "x", "f8", r"cannot compile the function: No implementation"),
        (lambda a, b: a / b, "i4", "returns float64, expected what fits int32"),
        (compose, PACKED, "slope of type int64 is not aligned"),
        (twice_minus, "O", "no plain type for object"),
    ],
)
def test_users_functions_that_do_not_fit(function, dtype, reason):
    with pytest.raises(TypeError, match=reason) as caught:
        cuda.combine(Operation(function, 103), dtype, 2, (9, 0))
    assert "\n" not in str(caught.value)


@needs_compiler
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
def test_machine_code(capability):
    image = cuda.combine("SUM", "f4", 2, capability)
    code = cuda.assembled(image, capability)
    assert code.startswith(b"\x7fELF")
    assert image.name.encode() in code
    with pytest.raises(DeviceError, match="nvJitLink: "):
        cuda.assembled(image._replace(code=b"nonsense\0"), capability)


@needs_compiler
def test_capability_that_nvvm_does_not_know():
    with pytest.raises(DeviceError, match=r"no code for compute capability \(1, 3\)"):
        cuda.combine("SUM", "f4", 2, (1, 3))


# Refusals, and what is kept. They need no compiler.


@pytest.mark.parametrize(
    ("op", "dtype", "operands", "error", "message"),
    [
        ("SUM", "f4", 1, ValueError, "1 operands given, expected 2 to 8"),
        ("SUM", "f4", 9, ValueError, "9 operands given, expected 2 to 8"),
        ("BAND", "f4", 2, TypeError, "no kernel for BAND on float32"),
        ("REPLACE", "f4", 2, TypeError, "no kernel for REPLACE on float32"),
        ("SUM", ">f8", 2, TypeError, "no kernel for SUM on >f8"),
        (None, "f4", 2, ValueError, "None was freed"),
    ],
)
def test_refusals(op, dtype, operands, error, message):
    with pytest.raises(error, match=message):
        cuda.combine(op, dtype, operands, (9, 0))


@pytest.mark.parametrize("dtype", ["?", PAIRS["2INT"], "U4"])
def test_no_average(dtype):
    with pytest.raises(TypeError, match="AVG is not defined for "):
        cuda.divide(dtype, (9, 0))


def unknown(name):
    raise importlib.metadata.PackageNotFoundError(name)


CALLS = [
    lambda: cuda.combine("SUM", "f4", 7, (9, 1)),  # of which no other test has the code
    lambda: cuda.combine(Operation(twice_minus, 104), "f4", 2, (9, 1)),
    lambda: cuda.divide("f4", (9, 1)),
    lambda: cuda.assembled(cuda.Image(b"ptx\0", "name", 4), (9, 1)),
]


@pytest.mark.parametrize("call", CALLS)
def test_numba_cuda_is_missing(call, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", unknown)
    with pytest.raises(
        DeviceError, match=r'no compiler for GPUs: .*; pip install "mpicoll\[cuda\]" installs it'
    ):
        call()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("library", ["nvvm", "nvjitlink"])
def test_library_is_missing(call, library, monkeypatch):
    monkeypatch.setitem(sys.modules, f"cuda.bindings.{library}", None)
    with pytest.raises(
        DeviceError, match=r'no compiler for GPUs: .*; pip install "mpicoll\[cuda\]" installs it'
    ):
        call()


class Made:
    """What stands in for the compiler: counts, and gives images that differ."""

    def __init__(self):
        self.count = 0

    def __call__(self, op, name, operands, capability):
        self.count += 1
        return cuda.Image(b"ptx %d\0" % self.count, f"{op} {name} {operands} {capability}", 4)


@pytest.fixture
def made(monkeypatch, tmp_path):
    monkeypatch.setattr(numba.core.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(cuda, "_versions", lambda: ("1",))
    monkeypatch.setattr(cuda, "_made", Made())
    cuda._of_mpi.cache_clear()
    yield cuda._made
    cuda._of_mpi.cache_clear()


def another_process_asks(*arguments):
    cuda._of_mpi.cache_clear()
    return cuda.combine(*arguments)


ARGUMENTS = "SUM", "f4", 2, (9, 0)


def test_code_is_kept(made, tmp_path):
    image = cuda.combine(*ARGUMENTS)
    assert image == cuda.combine(*ARGUMENTS) == another_process_asks(*ARGUMENTS)
    assert made.count == 1
    others = [
        ("MAX", "f4", 2, (9, 0)),
        ("SUM", "f8", 2, (9, 0)),
        ("SUM", "f4", 3, (9, 0)),
        ("SUM", "f4", 2, (8, 0)),
    ]
    assert len({another_process_asks(*each) for each in [ARGUMENTS, *others]}) == 5
    cuda.divide("f4", (9, 0))
    assert made.count == 6
    assert len(list(tmp_path.rglob("cuda.*.ptx"))) == len(list(tmp_path.rglob("*.*"))) == 6


def test_code_of_another_version_is_not_taken(made, monkeypatch):
    cuda.combine(*ARGUMENTS)
    monkeypatch.setattr(cuda, "_versions", lambda: ("2",))
    assert another_process_asks(*ARGUMENTS).code == b"ptx 2\0"


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x80\x04N."])
def test_damaged_code_is_not_taken(made, tmp_path, damage):
    cuda.combine(*ARGUMENTS)
    [path] = tmp_path.rglob("cuda.*.ptx")
    path.write_bytes(damage)
    assert another_process_asks(*ARGUMENTS) == another_process_asks(*ARGUMENTS)
    assert made.count == 2


def test_full_disk(made, tmp_path, monkeypatch):
    def full(path, content):
        path.touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(cuda.Path, "write_bytes", full)
    assert cuda.combine(*ARGUMENTS).code == b"ptx 1\0"
    assert not list(tmp_path.rglob("cuda.*"))


def test_no_folder(made, monkeypatch):
    monkeypatch.setattr(cuda, "_path", lambda name: None)
    assert cuda.combine(*ARGUMENTS).code == b"ptx 1\0"


RANK = """
import sys, time
from pathlib import Path
import numba
from mpicoll.kernels import cuda

def made(op, name, operands, capability):
    with open(sys.argv[1], "a") as log:
        log.write("made\\n")
    time.sleep(0.5)
    return cuda.Image(b"x" * 1_000_000 + b"\\0", name, operands)

cuda._versions, cuda._made = lambda: ("1",), made
print(len(cuda.combine("SUM", "f4", 2, (9, 0)).code))
"""


def test_one_of_several_processes_compiles(tmp_path):
    log, cache = tmp_path / "log", tmp_path / "cache"
    command = [sys.executable, "-c", RANK, str(log)]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    ranks = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for rank in ranks:
        assert rank.communicate(timeout=60) == ("1000001\n", "")
    assert log.read_text() == "made\n"


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    print("done")
