"""Check and time what mpicoll does on NVIDIA GPUs, in less than four minutes, and say which goals are met.

::

    python benchmarks/gpu.py            # 4 ranks of this Python's MPI, which share what GPUs there are
    python benchmarks/gpu.py -n 2 --mpiexec-flags "--mca pml ucx" --out results
    python benchmarks/gpu.py --stand-in # where there is no GPU: to test this program

Each part is a process, or a job of ranks, with a time limit, so that one that crashes or hangs costs itself
only. Figures are written to ``gpu.jsonl`` as they come and what each part prints beside it, into the folder
``--out``, or ``$OUT``. The table of all that is known comes last in any case. The exit status is 1 if a goal
is missed or a part has failed, 2 if there is no GPU.

Flags for mpiexec are taken from ``$GPU_MPI_FLAGS``, too.

The goals are for an H200 that 4 ranks share, and a CUDA-aware MPI; with another GPU they are something to
compare with. Under ``--stand-in`` no time is judged.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.metadata
import json
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mpi4py
import numpy as np

from mpicoll import kernels, launch
from mpicoll.bench.words import format_size

if TYPE_CHECKING:
    from mpi4py import MPI

ROOT = Path(__file__).resolve().parents[1]
TIME = 228  # s for everything
GIB, MIB, KIB = 1 << 30, 1 << 20, 1 << 10
FLOAT32 = np.dtype(np.float32)
AUTO, IPC, MESSAGES, STAGED = ("auto", *(f"auto:transport={route}" for route in ("ipc", "mpi", "staged")))
NAIVE = "pageable copies"
PACKAGES = (
    "numpy numba numba-cuda mpi4py cupy cupy-cuda12x cupy-cuda13x torch jax ml_dtypes pytest hypothesis"
)

Goal = tuple[str, float]  # a relation, "<=" or ">=", and a number


def main() -> int:
    """Be a part, or run them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-n", type=int, default=4, help="ranks (default: %(default)s)")
    parser.add_argument("--mpiexec-flags", default="", help="more of them, in one word")
    parser.add_argument("--quick", action="store_true", help="fewer kernels and samples")
    parser.add_argument("--out", default=os.environ.get("OUT"), help="folder for what is found out")
    parser.add_argument("--only", help="names of parts with commas between: " + ", ".join(PARTS))
    parser.add_argument(
        "--stand-in", action="store_true", help="use the tests' stand-in for a GPU, and little data"
    )
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = set((options.only or "provenance").split(",")) - set(PARTS)
    if unknown:
        parser.error(f"--only: {', '.join(sorted(unknown))} given, expected some of {', '.join(PARTS)}")
    if options.n < 1:
        parser.error(f"-n: {options.n} given, expected 1 or more")
    if options.part:
        return be(options)
    mpi4py.rc.initialize = False  # MPI is for the parts
    if not options.stand_in and (trouble := no_gpu()):
        print(f"no GPU: {trouble}")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        options.out = options.out or folder
        return run_all(options)


def no_gpu() -> str:
    """Say why there is no GPU; "" if there is."""
    from mpicoll.device import driver  # noqa: PLC0415

    return driver.trouble()


# -- the process that starts the parts -------------------------------------------------------


def run_all(options: argparse.Namespace) -> int:
    """Run one part after the other, print the table, and return the exit status."""
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    records = out / "gpu.jsonl"
    records.write_text("")
    begin = time.monotonic()
    names = options.only.split(",") if options.only else list(PARTS)
    try:
        for name in names:
            left = TIME - (time.monotonic() - begin)
            trouble, seconds = run_part(name, options, min(PARTS[name].limit, left))
            if trouble:
                tell(records, name, "the part", trouble, met=False)
            print(f"{name}: {trouble or 'done'} after {seconds:.0f} s", flush=True)
    finally:
        found = [json.loads(line) for line in records.read_text().splitlines()]
        print(table(found), flush=True)
    return int(any(row["met"] is False for row in found))


def run_part(name: str, options: argparse.Namespace, limit: float) -> tuple[str, float]:
    """Run a part in processes of its own; return why it failed, or nothing, and the seconds it took."""
    begin = time.monotonic()
    if limit < 5:
        return "no time was left", 0.0
    own = [str(Path(__file__).resolve()), "--part", name, "--out", options.out]
    own += [flag for flag in ("--quick", "--stand-in") if getattr(options, flag[2:].replace("-", "_"))]
    flags = shlex.split(os.environ.get("GPU_MPI_FLAGS", "")) + shlex.split(options.mpiexec_flags)
    env = {"PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))}
    if options.stand_in:
        env |= {"MPICOLL_CUDA_AWARE": "1", "MPICOLL_TEST_STAND_IN": "1"}
    argv = PARTS[name].argv or ["-m", "mpi4py", *own]
    with Path(options.out, f"{name}.txt").open("w") as output:
        streams: dict[str, Any] = {"stdout": output, "stderr": subprocess.STDOUT, "cwd": ROOT}
        try:
            if PARTS[name].alone:
                done = subprocess.run(
                    [sys.executable, *argv],
                    check=False,
                    timeout=limit,
                    env=launch.environment() | env,
                    **streams,
                ).returncode
            else:
                program = [*flags, sys.executable, *argv]
                done = launch.run(options.n, program, timeout=limit, env=env, **streams).returncode
        except subprocess.TimeoutExpired:
            return "out of time", time.monotonic() - begin
    if PARTS[name].argv:
        done = count_tests(Path(options.out), name, done)
    return (
        f"exit status {done}: {last_words(Path(options.out, name))}" if done else ""
    ), time.monotonic() - begin


def last_words(path: Path) -> str:
    """Find the line that says what went wrong in what a part has printed, all of which is in the file."""
    said = path.with_suffix(".txt").read_text(errors="replace")
    errors = re.findall(r"(?m)^(?:E +)?((?:[\w.]*Error|[\w.]*Exception|Abort|Fatal).*)", said)
    return (errors or said.split("\n")[-2:])[0].strip()


def count_tests(out: Path, name: str, status: int) -> int:
    """Tell what came of the tests; return the exit status of a part that has failed beyond that."""
    text = (out / f"{name}.txt").read_text(errors="replace")
    summary = re.findall(r"(?m)^((?:\d+ \w+(?:, )?)+) in [\d.]+s", text)
    if not summary:
        return status or 1
    for test in re.findall(r"(?m)^(?:FAILED|ERROR) (\S+)", text):
        tell(out / "gpu.jsonl", name, test, "failed", met=False)
    tell(out / "gpu.jsonl", name, "tests/gpu", summary[-1], met=status == 0)
    return 0


def table(found: list[dict[str, Any]]) -> str:
    """Write all that was told, a line each."""
    lines = [("what", "measured", "goal", "met")]
    for row in found:
        value = row["value"]
        measured = value if isinstance(value, str) else f"{value:.4g} {row['unit']}".strip()
        goal = "" if row["goal"] is None else f"{row['goal'][0]} {row['goal'][1]:g}"
        met = {None: "", True: "yes", False: "NO"}[row["met"]]
        lines.append((f"{row['part']}: {row['what']}", measured, goal, met))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths = [min(width, most) for width, most in zip(widths, (60, 70, 12, 3), strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def tell(
    file: Path,
    part: str,
    what: str,
    value: float | str,
    unit: str = "",
    goal: Goal | None = None,
    met: bool | None = None,
    timed: bool = True,
    **more: Any,
) -> None:
    """Write a figure down, and whether it is what it should be; a time, which has a unit, only if `timed`."""
    if goal is not None and not isinstance(value, str) and (timed or not unit):
        met = value <= goal[1] if goal[0] == "<=" else value >= goal[1]
    row = {"part": part, "what": what, "value": value, "unit": unit, "goal": goal, "met": met, **more}
    with file.open("a") as out:
        out.write(json.dumps(row) + "\n")


# -- the parts -------------------------------------------------------------------------------

Tell = Callable[..., None]


def be(options: argparse.Namespace) -> int:
    """Be a part: one process, or one of its ranks, of which rank 0 tells."""
    rank = launch.rank() or 0
    file = Path(options.out, "gpu.jsonl")
    timed = not options.stand_in
    told: Tell = partial(tell, file, options.part, timed=timed) if rank == 0 else _nothing
    with standing_in() if options.stand_in else contextlib.nullcontext():
        PARTS[options.part].run(options, told)
    return 0


@contextlib.contextmanager
def standing_in() -> Iterator[None]:
    """Let the tests' stand-in be the driver."""
    sys.path.insert(0, str(ROOT / "tests"))
    import cuda_stand_in  # noqa: PLC0415

    with cuda_stand_in.standing_in():
        yield


def _nothing(*_: Any, **__: Any) -> None:
    """Tell nothing, as ranks do that do not speak for all."""


def world_of() -> MPI.Intracomm:
    """Give the ranks."""
    from mpi4py import MPI  # noqa: PLC0415

    return MPI.COMM_WORLD


def tell_provenance(options: argparse.Namespace, told: Tell) -> None:
    """Say what runs where, and what MPI can do with device memory."""
    from mpicoll.bench import device, provenance  # noqa: PLC0415
    from mpicoll.device import driver, memory  # noqa: PLC0415

    world = world_of()
    devices = device.find(world)
    where = provenance.provenance(world)
    with driver.current(devices.number):
        free = memory.free_bytes()
    found = devices.record()
    told(
        "GPUs",
        f"{found['devices']}, {found['device']}, {driver.count()} seen, {format_size(free)} free",
        **found,
    )
    told("compute capability", "{}.{}".format(*driver.capability(devices.number)))
    told("CUDA of the driver", found["cuda_driver"])
    told("MPI", f"{where['mpi']}, {world.size} ranks, {where['cores']} cores", **where)
    told("mpicoll", where["mpicoll"])
    told("packages", ", ".join(f"{name} {version}" for name, version in packages().items()))
    aware = devices.awareness
    able = "messages and collectives" if aware.collectives else "messages" if aware.messages else "nothing"
    told("CUDA-aware", f"{able}: {aware.reason}")


def packages() -> dict[str, str]:
    """Give the versions of those that are there."""
    found = {}
    for name in PACKAGES.split():
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def tell_kernels(options: argparse.Namespace, told: Tell) -> None:
    """Time kernels beside a copy, and compare all of them with the host's."""
    from mpicoll.device import driver  # noqa: PLC0415

    end = time.monotonic() + PARTS["kernels"].limit - 10
    with driver.current(0):
        stream = driver.get("cuStreamCreate", driver.NON_BLOCKING)
        tell_bandwidth(options, told, stream)
        tell_launches(told, stream)
        tell_operands(told, stream)
        tell_bits(options, told, stream, end)


def kernel_call(
    kernel: tuple[int, int], out: int, count: int, left: int, operands: list[int], stream: int
) -> Callable[[], None]:
    """Give a function that launches a kernel as the engine does."""
    from mpicoll.device import driver  # noqa: PLC0415
    from mpicoll.device.device import BLOCKS  # noqa: PLC0415
    from mpicoll.kernels.cuda import THREADS  # noqa: PLC0415

    handle, lanes = kernel
    values = (ctypes.c_int64 * 11)(out, count, left, *operands)
    begin = ctypes.addressof(values)
    pointers = (ctypes.c_uint64 * 11)(*range(begin, begin + 88, 8))
    grid = min(max(-(-count // (lanes * THREADS)), 1), BLOCKS * driver.processors(0))

    def run(_values: Any = values) -> None:  # which must live as long
        driver.call("cuLaunchKernel", handle, grid, 1, 1, THREADS, 1, 1, 0, stream, pointers, None)

    return run


def tell_bandwidth(options: argparse.Namespace, told: Tell, stream: int) -> None:
    """Compare the bytes that combining reads and writes in a second with those of a copy on the device."""
    from mpicoll.device import driver, functions, memory  # noqa: PLC0415

    nbytes = MIB if options.stand_in else min(GIB, memory.free_bytes() // 12 // MIB * MIB)
    rounds, repeats = (3, 1) if options.stand_in else (15, 4)
    out, *operands = (driver.get("cuMemAlloc_v2", nbytes) for _ in range(9))
    calls: dict[int, Callable[[], None]] = {
        1: partial(driver.call, "cuMemcpyAsync", out, operands[0], nbytes, stream)
    }
    for number in (2, 4, 8):
        kernel = functions.combine(0, "SUM", FLOAT32, number)
        calls[number] = kernel_call(kernel, out, nbytes // 4, 0, operands[:number], stream)
    seconds = interleaved(calls, rounds, repeats, stream)
    rates = {number: (number + 1) * nbytes / each for number, each in seconds.items()}
    told(f"copy of {format_size(nbytes)}", rates[1] / 1e9, "GB/s read and written")
    for number in (2, 4, 8):
        what = f"{number} operands of {format_size(nbytes)} float32, to the copy"
        told(
            what,
            rates[number] / rates[1],
            f"({rates[number] / 1e9:.0f} GB/s)",
            (">=", 0.9),
            rate=rates[number],
        )
    for address in (out, *operands):
        driver.call("cuMemFree_v2", address)


def interleaved(
    calls: dict[int, Callable[[], None]], rounds: int, repeats: int, stream: int
) -> dict[int, float]:
    """Give the median seconds of each, in rounds of a random order."""
    from mpicoll.device import driver  # noqa: PLC0415

    times: dict[int, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 1):  # the first loads what is loaded late
        for name in random.sample(list(calls), len(calls)):
            begin = time.perf_counter()
            for _ in range(repeats):
                calls[name]()
            driver.call("cuStreamSynchronize", stream)
            if number:
                times[name].append((time.perf_counter() - begin) / repeats)
    return {name: statistics.median(each) for name, each in times.items()}


def tell_launches(told: Tell, stream: int) -> None:
    """Time what the host spends on a launch from the compiled engine."""
    from numba import njit  # noqa: PLC0415

    from mpicoll.device import driver, functions  # noqa: PLC0415
    from mpicoll.engine import device_blocks  # noqa: PLC0415
    from mpicoll.engine import program as p  # noqa: PLC0415
    from mpicoll.kernels.cuda import THREADS  # noqa: PLC0415

    count, times = 1024, 100
    address = driver.get("cuMemAlloc_v2", 8 * count)
    kernel, lanes = functions.combine(0, "SUM", FLOAT32, 2)
    values = p.FIRST_OPERAND + p.OPERANDS
    arguments, frame = np.zeros(2 * values, np.int64), np.zeros(1024, np.int64)
    begin = arguments.ctypes.data
    arguments[:values] = begin + 8 * np.arange(values, 2 * values)  # as compiled_on_device.py has them
    arguments[values : values + 5] = address, count, 0, address, address + 4 * count
    for i, name in enumerate(p.DRIVER):
        frame[p.DEVICE_FUNCTIONS + i] = driver.address(name)
    frame[p.ARGUMENTS], frame[p.LANES], frame[p.THREADS], frame[p.GRID] = (
        begin + 8 * values,
        lanes,
        THREADS,
        1,
    )
    launch_one = device_blocks.launch

    @njit
    def launches(frame: int, times: int) -> int:
        code = 0
        for _ in range(times):
            code |= launch_one(frame, kernel, count, stream)
        return code

    seconds = []
    for _ in range(12):
        begin_time = time.perf_counter()
        code = launches(frame.ctypes.data, times)
        seconds.append((time.perf_counter() - begin_time) / times)
        driver.call("cuStreamSynchronize", stream)
        if code:
            raise RuntimeError(f"a launch was refused: {code}")
    told("a launch, on the host", statistics.median(seconds[1:]) * 1e6, "us", ("<=", 15))
    driver.call("cuMemFree_v2", address)


def tell_operands(told: Tell, stream: int) -> None:
    """Compare combining 3 to 8 operands at once with a chain of the host's kernels."""
    from mpicoll.device import driver, functions  # noqa: PLC0415

    rng, wrong = np.random.default_rng(0), []
    host = kernels.kernel("SUM", FLOAT32)
    for number in range(2, 9):
        vectors, left = rng.normal(size=(number, 4099)).astype(FLOAT32), int(rng.integers(1 << number))
        expected = vectors[0].copy()
        for j in range(1, number):
            pair = (vectors[j], expected) if left >> j & 1 else (expected, vectors[j])
            host(expected, *pair)
        there, (out,) = on_device(*vectors), on_device(np.zeros_like(expected))
        addresses = [array.address for array in there]
        kernel_call(
            functions.combine(0, "SUM", FLOAT32, number), out.address, 4099, left, addresses, stream
        )()
        driver.call("cuStreamSynchronize", stream)
        found = np.empty_like(expected)
        out.get(found)
        wrong += [str(number)] * (not same(found, expected))
    told("2 to 8 operands, bits as on the host", ", ".join(wrong) or "all", met=not wrong)


def tell_bits(options: argparse.Namespace, told: Tell, stream: int, end: float) -> None:
    """Compare all kernels with the host's, on random bits, as long as there is time."""
    pairs = [
        (op, name) for op in kernels.OPS for name in kernels.DTYPES if kernels.DTYPES[name] in kernels.OPS[op]
    ]
    if options.quick:
        pairs = [(op, name) for op, name in pairs if op in ("SUM", "MINLOC")]
    compared, wrong, missing = 0, [], []
    for op, name in pairs:
        if time.monotonic() > end:
            break
        try:
            wrong += [f"{op} {name}"] * (not same_bits(op, name, stream))
            compared += 1
        except ValueError as error:  # bfloat16, where ml_dtypes is not there
            missing.append(f"{op} {name}: {error}")
    text = f"{compared} of {len(pairs)} compared, {len(wrong)} differ {', '.join(wrong)}".strip()
    told(
        "operations and types, bits as on the host",
        text,
        met=not wrong and compared == len(pairs),
        missing=missing,
    )


def same_bits(op: str, name: str, stream: int) -> bool:
    """Whether a kernel gives what the host's gives, for vectors that are aligned to 16 bytes and others.

    Raises
    ------
    ValueError
        If there is no such type.
    """
    from mpicoll.bench.data import find_dtype  # noqa: PLC0415
    from mpicoll.device import driver, functions  # noqa: PLC0415

    dtype, rng = kernels.PAIRS.get(name) or find_dtype(name), np.random.default_rng(0)
    left, right = (random_bits(dtype, 4099, rng) for _ in range(2))
    expected = np.zeros_like(left)
    kernels.kernel(op, dtype)(expected, left, right)
    kernel = functions.combine(0, op, dtype, 2)
    for skipped in (0, 1):
        a, b, out = on_device(left, right, np.zeros_like(left))
        places = [array.address + skipped * dtype.itemsize for array in (a, b, out)]
        kernel_call(kernel, places[2], len(left) - skipped, 0, places[:2], stream)()
        driver.call("cuStreamSynchronize", stream)
        found = np.empty_like(left)
        out.get(found)
        if not same(found[skipped:], expected[skipped:]):
            return False
    return True


def random_bits(dtype: np.dtype, count: int, rng: np.random.Generator) -> np.ndarray:
    """Give elements of any bits that mean something."""
    if dtype.names:
        pairs = np.zeros(count, dtype)
        for field in dtype.names:
            pairs[field] = rng.integers(-4, 5, count)
        if pairs["value"].dtype.kind == "f":
            pairs["value"][::7] = np.nan
        return pairs
    if dtype.kind == "b":
        return rng.integers(0, 2, count).astype(dtype)
    return rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(dtype)


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether arrays have the same bits, but for which NaN it is."""
    if found.dtype.names:
        return all(same(found[name].copy(), expected[name].copy()) for name in found.dtype.names)
    if found.dtype.kind == "c":
        parts = found.real.dtype
        return same(found.view(parts), expected.view(parts))
    bits = [array.view(np.uint8).reshape(-1, array.itemsize) for array in (found, expected)]
    both_nan = (found != found) & (expected != expected)  # noqa: PLR0124
    return bool(((bits[0] == bits[1]).all(axis=1) | both_nan).all())


def on_device(*arrays: np.ndarray) -> list[Any]:
    """Copy arrays, of any type, to the device."""
    from mpicoll.bench.device import DeviceArray  # noqa: PLC0415

    return [DeviceArray(array, 0) for array in arrays]


def tell_routes(options: argparse.Namespace, told: Tell) -> None:
    """Time a long all-reduce by each route, beside copies through pageable memory."""
    from mpicoll import Communicator  # noqa: PLC0415
    from mpicoll.bench import device, run  # noqa: PLC0415
    from mpicoll.bench.measure import measure  # noqa: PLC0415

    world = world_of()
    devices = device.find(world)
    nbytes = MIB if options.stand_in else 256 * MIB
    calls = run.competitors(world, [AUTO, IPC, MESSAGES, STAGED], "SUM", devices=devices)
    del calls["native"]
    calls[NAIVE] = partial(naive, Communicator(world), {})
    what = partial(measure, world, calls, nbytes // 4, FLOAT32, "SUM", memory=devices.buffers)
    checked, refusals = what(min_time=1e-3)
    wrong = {label: timing.wrong for label, timing in checked.items() if timing.wrong}
    told(f"wrong elements of {format_size(nbytes)}", str(wrong or 0), met=not wrong)
    timings, _ = what(check=False, min_time=0.01 if options.stand_in else 0.2 if options.quick else 0.6)
    ms = {label: float(np.median(timing.samples)) * 1e3 for label, timing in timings.items()}
    goals: dict[str, Goal] = {MESSAGES: ("<=", 6.0)}
    for label, value in ms.items():
        told(
            f"{format_size(nbytes)}, {label}",
            value,
            "ms",
            goals.get(label),
            samples=len(timings[label].samples),
        )
    for label, reason in refusals.items():
        told(
            f"{format_size(nbytes)}, {label}",
            f"left out: {reason}",
            met=None if "CUDA-aware" in reason else False,
        )
    best = min(ms, key=lambda label: ms[label] if label in (IPC, MESSAGES, STAGED) else np.inf)
    told(f"the best route, {best}", ms[best], "ms", ("<=", 2.0))
    told("pageable copies / staged", ms[NAIVE] / ms[STAGED], "times", (">=", 3.0))
    told(
        f"auto, {route_taken(Communicator(world), nbytes)}, / the best",
        ms[AUTO] / ms[best],
        "times",
        ("<=", 1.1),
    )


def naive(comm: Any, kept: dict[int, list[np.ndarray]], send: Any, recv: Any) -> None:
    """Reduce by way of NumPy arrays."""
    if send.nbytes not in kept:
        kept[send.nbytes] = [np.zeros(send.shape, send.dtype) for _ in range(2)]
    host, result = kept[send.nbytes]
    send.get(host)
    comm.Allreduce(host, result, algorithm="ring")
    recv.put(result)


def route_taken(comm: Any, nbytes: int) -> str:
    """Give the route that an all-reduce of float32 was given when none was asked for."""
    for key, plan in comm._context.plans.items():
        if key[:2] == ("allreduce", (nbytes // 4,)) and key[-3] == AUTO and hasattr(plan, "route"):
            return plan.route
    return "?"


def tell_sizes(options: argparse.Namespace, told: Tell) -> None:
    """Time shorter all-reduces by each route, and a call beside a message; count bytes on the host."""
    from mpicoll import Communicator, device  # noqa: PLC0415
    from mpicoll.bench import device as on_devices  # noqa: PLC0415
    from mpicoll.bench import run  # noqa: PLC0415
    from mpicoll.bench.measure import measure  # noqa: PLC0415

    world = world_of()
    devices, comm = on_devices.find(world), Communicator(world)
    labels = [AUTO, IPC, MESSAGES, STAGED]
    calls = run.competitors(world, labels, "SUM", devices=devices)
    del calls["native"]
    sizes = (4 * KIB, 32 * KIB) if options.stand_in else (4 * KIB, 32 * KIB, 256 * KIB, MIB, 16 * MIB)
    for nbytes in sizes:
        timings, _ = measure(
            world, calls, nbytes // 4, FLOAT32, "SUM",
            check=False, min_time=0.01 if options.stand_in or options.quick else 0.1, memory=devices.buffers,
        )  # fmt: skip
        us = {label: float(np.median(timing.samples)) * 1e6 for label, timing in timings.items()}
        text = ", ".join(f"{label.rpartition('=')[2]} {value:.1f}" for label, value in us.items())
        taken = route_taken(comm, nbytes)
        told(f"{format_size(nbytes)}, auto took {taken}", f"{text} us", taken=taken, us=us)
    if devices.awareness.messages and world.size > 1:
        tell_overhead(world, devices, told, min_time=0.01 if options.stand_in else 0.1)
    for route in ("ipc", "mpi"):
        send, recv = (on_devices.DeviceArray(np.ones(MIB, FLOAT32), devices.number) for _ in range(2))
        before = device.through_host(comm)
        try:
            comm.Allreduce(send, recv, transport=route)
        except RuntimeError as error:  # on all ranks
            absent = None if "CUDA-aware" in str(error) else False
            told(f"bytes through the host, {route}", f"left out: {error}", met=absent)
            continue
        copied = world.allreduce(device.through_host(comm) - before)
        told(f"bytes through the host, {route}", copied, "", ("<=", 0))


def tell_overhead(world: MPI.Intracomm, devices: Any, told: Tell, min_time: float) -> None:
    """Compare a broadcast from one rank to another with the message that it is."""
    from mpicoll import Communicator  # noqa: PLC0415
    from mpicoll.bench.measure import measure  # noqa: PLC0415

    pair: Any = world.Split(int(world.rank > 1))
    if world.rank < 2:
        ours = Communicator(pair)

        def message(array: Any) -> None:
            if pair.rank == 0:
                pair.Send(array, 1)
            else:
                pair.Recv(array, 0)

        calls = {"call": partial(ours.Bcast, transport="mpi"), "message": message}
        for nbytes in (8, 32 * KIB, MIB):
            options = {"collective": "bcast", "check": False, "min_time": min_time, "memory": devices.buffers}
            timings, refusals = measure(pair, calls, nbytes // 4, FLOAT32, "", **options)  # type: ignore[arg-type]
            if refusals:
                raise RuntimeError(str(refusals))
            us = {label: float(np.median(timing.samples)) * 1e6 for label, timing in timings.items()}
            what = f"call of {format_size(nbytes)} by mpi, less the message"
            told(what, us["call"] - us["message"], f"us ({us['call']:.1f} - {us['message']:.1f})", us=us)
    world.Barrier()
    pair.Free()


class Part:
    """A part: what it runs, in a process alone or on all ranks, and for how many seconds at most."""

    def __init__(
        self,
        run: Callable[[argparse.Namespace, Tell], None] | None,
        limit: float,
        alone: bool = False,
        argv: list[str] | None = None,
    ) -> None:
        self.run: Any = run
        self.limit, self.alone, self.argv = limit, alone, argv


TESTS = ["-m", "pytest", "-q", "-m", "gpu", "tests/gpu", "-p", "no:cacheprovider", "--color=no"]
PARTS = {  # the tests last: they may have all the time that is left, and kernels that were compiled before
    "provenance": Part(tell_provenance, 75),  # MPI may be tried for a minute
    "kernels": Part(tell_kernels, 70, alone=True),
    "routes": Part(tell_routes, 50),
    "sizes": Part(tell_sizes, 30),
    "tests": Part(None, 120, argv=TESTS),
}

if __name__ == "__main__":
    sys.exit(main())
