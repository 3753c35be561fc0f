"""What MPI says that a collective does, on values of any kind: what the package's promises are compared with.

``data[rank][chunk]`` is what a rank gives for a chunk, were it to give all of them. An entry is None where
nothing is held, or where the result is undefined.
"""

from functools import reduce


def _block(schedule, rank):
    """Give the chunks of a rank's block."""
    length = schedule.chunks // schedule.size
    return range(rank * length, (rank + 1) * length)


def _ends_of(schedule, chunk):
    """Give the source and the target of a chunk of an all-to-all."""
    source, within = divmod(chunk, schedule.chunks // schedule.size)
    return source, within // (schedule.chunks // schedule.size**2)


def given(schedule, data):
    """Give what each rank holds in each chunk before the collective."""

    def holds(rank, chunk):
        match schedule.collective:
            case "bcast" | "scatter":
                return rank == schedule.root
            case "gather" | "allgather":
                return chunk in _block(schedule, rank)
            case "alltoall":
                return rank == _ends_of(schedule, chunk)[0]
            case _:
                return True

    chunks = range(schedule.chunks)
    return [[data[r][c] if holds(r, c) else None for c in chunks] for r in range(schedule.size)]


def wanted(schedule, data, op):
    """Give what each rank must hold in each chunk after it; `op` combines two values."""

    def combined(chunk, many):
        return reduce(op, [data[rank][chunk] for rank in range(many)])

    def result(rank, chunk):
        at_root = rank == schedule.root
        match schedule.collective:
            case "allreduce" | "barrier":
                return combined(chunk, schedule.size)
            case "reduce":
                return combined(chunk, schedule.size) if at_root else None
            case "reduce_scatter":
                return combined(chunk, schedule.size) if chunk in _block(schedule, rank) else None
            case "scan":
                return combined(chunk, rank + 1)
            case "exscan":
                return combined(chunk, rank) if rank > 0 else None
            case "bcast":
                return data[schedule.root][chunk]
            case "scatter":
                return data[schedule.root][chunk] if chunk in _block(schedule, rank) else None
            case "allgather":
                return next(data[r][chunk] for r in range(schedule.size) if chunk in _block(schedule, r))
            case "gather":
                owner = next(r for r in range(schedule.size) if chunk in _block(schedule, r))
                return data[owner][chunk] if at_root else None
            case "alltoall":
                source, target = _ends_of(schedule, chunk)
                return data[source][chunk] if rank == target else None
        raise AssertionError(schedule.collective)

    return [[result(r, c) for c in range(schedule.chunks)] for r in range(schedule.size)]


def compared(schedule, values, data, op):
    """Yield the rank, the chunk, what is there and what must be, of every place that has a result."""
    for rank, row in enumerate(wanted(schedule, data, op)):
        for chunk, due in enumerate(row):
            if due is not None:
                yield rank, chunk, values[rank][chunk], due
