"""Mean, variance and largest value of distributed data, each in one all-reduce of an operation of our own.

    mpiexec -n 4 python examples/merge_statistics.py

Merging means and sums of squared differences is as exact as computing them from the whole, where the sum of
squares minus the square of the sum is not: T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise
algorithm for computing sample variances", Stanford, 1979.
"""

import numpy as np
from mpi4py import MPI

import mpicoll

COLUMNS = 3
STATISTICS = np.dtype(
    [("n", "i8"), ("mean", "f8"), ("m2", "f8")]
)  # m2: sum of squared differences from the mean
PEAK = np.dtype([("value", "f8"), ("rank", "i4"), ("row", "i8")])


@mpicoll.op(commutative=True)
def merge(a, b):
    """Give the statistics of two samples together."""
    n = a.n + b.n
    delta = b.mean - a.mean
    return n, a.mean + delta * b.n / n, a.m2 + b.m2 + delta * delta * a.n * b.n / n


@mpicoll.op  # not commutative: of equal values the one of the lowest rank stays
def higher(a, b):
    """Give the peak with the larger value, and where it was."""
    return a if a.value >= b.value else b


comm = mpicoll.Communicator(MPI.COMM_WORLD)
rank = comm.Get_rank()
data = np.random.default_rng(rank).normal(1e6, 1, size=(1000 + 100 * rank, COLUMNS))

mine, total = np.empty(COLUMNS, STATISTICS), np.empty(COLUMNS, STATISTICS)
mine["n"], mine["mean"] = len(data), data.mean(axis=0)
mine["m2"] = ((data - mine["mean"]) ** 2).sum(axis=0)
comm.Allreduce(mine, total, op=merge)

peak, highest = np.empty(COLUMNS, PEAK), np.empty(COLUMNS, PEAK)
peak["value"], peak["rank"], peak["row"] = data.max(axis=0), rank, data.argmax(axis=0)
comm.Allreduce(peak, highest, op=higher)

parts = comm.gather(data)
if parts is not None:
    everything = np.concatenate(parts)
    np.testing.assert_allclose(total["mean"], everything.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(total["m2"] / total["n"], everything.var(axis=0), rtol=1e-9)
    np.testing.assert_array_equal(highest["value"], everything.max(axis=0))
    for column, (one, best) in enumerate(zip(total, highest, strict=True)):
        assert parts[best["rank"]][best["row"], column] == best["value"]
        print(f"column {column}: mean {one['mean']:.6f}, variance {one['m2'] / one['n']:.6f}, ", end="")
        print(f"highest {best['value']:.6f} at row {best['row']} of rank {best['rank']}")
