"""How a vector is cut into blocks, each of which runs through the whole schedule by itself."""

from collections.abc import Iterator
from itertools import accumulate

from ..schedule.collectives import COLLECTIVES
from .layout import Shape


def cut(collective: str, shape: Shape, nbytes: int) -> Iterator[tuple[Shape, int]]:
    """Cut the vector, or each rank's part of it, alike on all ranks.

    Parameters
    ----------
    collective : str
    shape : Shape
    nbytes : int
        Of a block, of all ranks' parts together. Its parts have at least one element each.

    Yields
    ------
    shape : Shape
        Of the block.
    shift : int
        Bytes that it is into each buffer.
    """
    counts, parts = shape.counts, len(shape.counts)
    longest = max((*counts, *(shape.incoming or ())), default=0)
    length = max(nbytes // shape.itemsize // parts, 1)
    if longest <= length:
        yield shape, 0
        return
    if COLLECTIVES[collective].blocks(2) > 1:  # parts stay where they are in the buffer that holds them all
        shape = shape._replace(displacements=shape.displacements or _starts(counts))
    if collective == "alltoall":
        incoming = shape.incoming or counts
        places = shape.incoming_displacements or _starts(incoming)
        shape = shape._replace(incoming=incoming, incoming_displacements=places)
    for begin in range(0, longest, length):

        def clip(numbers: tuple[int, ...], begin: int = begin) -> tuple[int, ...]:
            return tuple(min(max(number - begin, 0), length) for number in numbers)

        arriving = None if shape.incoming is None else clip(shape.incoming)
        yield shape._replace(counts=clip(counts), incoming=arriving), begin * shape.itemsize


def _starts(counts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(accumulate(counts, initial=0))[:-1]
