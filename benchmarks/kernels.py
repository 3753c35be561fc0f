"""How fast the kernels are beside NumPy's ufuncs, in place, on operands that fit a cache.

Kernels are called from compiled code, as the engine calls them; NumPy as ``ufunc(left, right, out=left)``.
All rows of one size run in turn, in a new random order each round, and the median is taken. The ratio is the
kernel's time over its rival's. NumPy has no fast code for float16 and bfloat16, so their rival is the
float32 kernel on as many elements.
"""

from __future__ import annotations

import ctypes
import random
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import click
import ml_dtypes  # noqa: F401  (makes np.dtype("bfloat16") work)
import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from mpicoll.kernels import DTYPES, kernel, supported

UFUNCS = {
    "SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "LAND": np.logical_and,
    "LOR": np.logical_or, "LXOR": np.logical_xor, "BAND": np.bitwise_and, "BOR": np.bitwise_or,
    "BXOR": np.bitwise_xor,
}  # fmt: skip
NAMES = [name for name, kind in DTYPES.items() if kind != "pair"]
Run = Callable[[], object]


class Row(NamedTuple):
    """A kernel and its rival, each of which runs `repeats` times when called."""

    op: str
    dtype: np.dtype
    nbytes: int
    repeats: int
    ours: Run
    rival: Run
    against: str


def row(op: str, dtype: np.dtype, nbytes: int, place: str) -> Row:
    """Prepare one row of the table; `nbytes` is the size of one operand."""
    count, repeats = nbytes // dtype.itemsize, max(1, (1 << 20) // nbytes)
    ours = kernel_run(op, dtype, count, repeats, place)
    if dtype.name in ("float16", "bfloat16"):
        rival, against = kernel_run(op, np.dtype("float32"), count, repeats, place), "float32 kernel"
    else:
        rival, against = numpy_run(op, dtype, count, repeats, place), "NumPy"
    return Row(op, dtype, nbytes, repeats, ours, rival, against)


def vectors(op: str, dtype: np.dtype, count: int, place: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return out, left and right on which the operation may be repeated without leaving ordinary numbers."""
    left, right = (
        np.random.default_rng(0).uniform(0, 1 if dtype.kind in "fcV" else 100, (2, count)).astype(dtype)
    )
    if op == "PROD":
        right[:] = 1
    return {"left": left, "right": right, "apart": np.empty_like(left)}[place], left, right


def numpy_run(op: str, dtype: np.dtype, count: int, repeats: int, place: str) -> Run:
    """Return a function that runs the operation in NumPy."""
    ufunc = UFUNCS[op]
    out, left, right = vectors(op, dtype, count, place)

    def run():
        for _ in range(repeats):
            ufunc(left, right, out=out)

    return run


def kernel_run(op: str, dtype: np.dtype, count: int, repeats: int, place: str) -> Run:
    """Return a function that runs the operation by the kernel."""
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel(op, dtype).address)
    arrays = [array.view("u1") for array in vectors(op, dtype, count, place)]  # Numba has no float16 arrays

    @numba.njit
    def run(out, left, right):
        for _ in range(repeats):
            call(out.ctypes.data, left.ctypes.data, right.ctypes.data, count)

    run(*arrays)  # compiles
    return lambda: run(*arrays)


def medians(runs: list[Run], rounds: int) -> list[float]:
    """Run everything once per round, in random order; return the median seconds of each."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for i in random.sample(range(len(runs)), len(runs)):
            start = time.perf_counter()
            runs[i]()
            seconds[i].append(time.perf_counter() - start)
    return [statistics.median(each) for each in seconds]


@click.command(help=__doc__)
@click.option("--op", "ops", multiple=True, type=click.Choice(list(UFUNCS)), default=["SUM", "MIN"])
@click.option("--dtype", "names", multiple=True, type=click.Choice(NAMES), help="Default: floating point.")
@click.option("--size", "sizes", multiple=True, default=[16, 64, 256, 512], help="KiB per operand.")
@click.option("--place", type=click.Choice(["left", "right", "apart"]), default="left", help="Where out is.")
@click.option("--rounds", default=51, show_default=True)
def main(
    ops: tuple[str, ...], names: tuple[str, ...], sizes: tuple[int, ...], place: str, rounds: int
) -> None:
    """Print the table."""
    dtypes = [np.dtype(name) for name in names or NAMES if names or DTYPES[name] == "floating"]
    table = Table("op", "dtype", "KiB", "us", "rival us", "rival", "ratio", "GB/s", title=f"out: {place}")
    for size in sizes:
        rows = [row(op, dtype, size << 10, place) for op in ops for dtype in dtypes if supported(op, dtype)]
        times = medians([run for each in rows for run in (each.ours, each.rival)], rounds)
        for each, ours, rival in zip(rows, times[::2], times[1::2], strict=True):
            us, rival_us = (1e6 * seconds / each.repeats for seconds in (ours, rival))
            rate = 3 * each.nbytes / us / 1e3
            figures = f"{us:.2f}", f"{rival_us:.2f}", each.against, f"{us / rival_us:.2f}", f"{rate:.0f}"
            table.add_row(each.op, each.dtype.name, str(size), *figures)
    Console().print(table)


if __name__ == "__main__":
    main()
