"""All ranks' moves of a schedule as arrays, which compiled code can walk through.

An algorithm says what one rank does. Where that does not depend on the rank but by arithmetic, as in a ring,
it can say what all ranks do at once: its generator is given the ranks as an array, and what it yields are
arrays of peers and chunks, few of which differ. So a ring of 4,096 ranks takes a second and not minutes. An
algorithm that asks whether its rank is this or that cannot: NumPy refuses to call an array true or false, and
then each rank is asked by itself.
"""

from array import array
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..schedule import Move, Schedule
from ..schedule.collectives import COLLECTIVES
from ..schedule.moves import Scratch, resolve
from ..schedule.schedule import bounds, moves_of

SEND, RECV, REDUCE, COPY, COMBINE = range(5)
KINDS = {"send": SEND, "recv": RECV, "reduce": REDUCE, "copy": COPY, "combine": COMBINE}
LAST = 8  # added to the kind of a step's last move
BYTES = 13  # of memory for each move

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int32]
Longs: TypeAlias = npt.NDArray[np.int64]
Row: TypeAlias = tuple[int, int, int, int]  # kind, peer, first slot, slots


class Program(NamedTuple):
    """The moves of all ranks, a run of slots each; steps without moves are left out.

    Where all ranks do alike, there is one line of kinds and lengths for all of them, and peers and first
    slots are in rows of one for each rank: those of the n-th move begin at ``peer_at[n]`` and
    ``first_at[n]``. Otherwise rank r's moves are the lines from ``begin[r]`` to ``begin[r + 1]``.

    Attributes
    ----------
    size, chunks, vectors : int
        Ranks, chunks, and how many ranks' vectors these make up: more than one in an all-to-all.
    alike : bool
    kind : ndarray of uint8
        One of `KINDS`, and `LAST` where the step ends.
    length : ndarray of int32
        Slots that are sent or written.
    peer, first : ndarray of int32
        The other rank, and the first slot.
    peer_at, first_at : ndarray of int64
        Empty where ranks differ.
    begin : ndarray of int64
        Empty where they do not.
    """

    size: int
    chunks: int
    vectors: int
    alike: bool
    kind: Bytes
    length: Ints
    peer: Ints
    first: Ints
    peer_at: Longs
    first_at: Longs
    begin: Longs

    @property
    def moves(self) -> int:
        """Of all ranks."""
        return len(self.kind) * (self.size if self.alike else 1)

    def slots(self, nbytes: int) -> Longs:
        """Give the bytes before each slot where a rank's vector has so many, and after the last one."""
        nbytes *= self.vectors
        vector = np.array(bounds(nbytes, self.chunks)[:-1], np.int64)
        most = int(self.first.max(initial=0)) + int(self.length.max(initial=0))
        times = most // self.chunks + 1  # more than once where there is scratch
        return np.concatenate([*(vector + number * nbytes for number in range(times)), [times * nbytes]])

    def of(self, rank: int) -> list[Row]:
        """Give a rank's moves."""
        if self.alike:
            peer, first = self.peer[self.peer_at + rank], self.first[self.first_at + rank]
            columns = (self.kind, peer, first, self.length)
        else:
            every = slice(self.begin[rank], self.begin[rank + 1])
            columns = (self.kind[every], self.peer[every], self.first[every], self.length[every])
        return list(zip(*(column.tolist() for column in columns), strict=True))


def program(schedule: Schedule, memory: int | None = None) -> Program:
    """Write out a schedule.

    Parameters
    ----------
    schedule : Schedule
    memory : int, optional
        Bytes that it may take; those that the machine has free unless given.

    Raises
    ------
    MemoryError
        If it would take more, and how much.
    ValueError
        If a move names a rank or chunks that are not there.
    """
    memory = available() if memory is None else memory
    samples = sorted({0, schedule.size // 3, schedule.size // 2, schedule.size - 1})
    alone = {rank: _rows(schedule, rank) for rank in samples}
    counts = [len(rows) for rows in alone.values()]
    if len(set(counts)) == 1:
        alike = _alike(schedule, counts[0], memory)
        if alike is not None and all(alike.of(rank) == rows for rank, rows in alone.items()):
            return alike
    # a root, which is rank 0 or one of few, may have many more than the others
    _check(schedule, (schedule.size * sorted(counts)[len(counts) // 2] + max(counts)) * BYTES, memory)
    return _one_by_one(schedule)


def available() -> int:
    """Give the bytes of memory that are free."""
    with open("/proc/meminfo", encoding="ascii") as file:
        [line] = [line for line in file if line.startswith("MemAvailable:")]
    return int(line.split()[1]) << 10


def _check(schedule: Schedule, needed: int, memory: int) -> None:
    if needed > memory:
        raise MemoryError(
            f"{schedule.name} on {schedule.size} ranks takes up to {needed / 2**30:.3g} GiB of memory to be "
            f"written out, and {memory / 2**30:.3g} GiB are free"
        )


def _rows(schedule: Schedule, rank: int) -> list[Row]:
    """Write out one rank's moves."""
    chunks, vectors, size = schedule.chunks, schedule.vectors, schedule.size
    rows: list[Row] = []
    for step in schedule.generate(rank):
        moves = moves_of(step)
        for move in moves:
            local = move.source is not None
            if not local and (not 0 <= move.peer < size or move.peer == rank):
                raise ValueError(
                    f"{schedule.name}: rank {rank} of {size} cannot {move.kind} with rank {move.peer}"
                )
            kind, peer, spec = KINDS[move.kind], rank if local else move.peer, move.chunks
            if type(spec) is int:  # as most are; resolve() takes longer
                rows.append((kind, peer, spec % chunks, 1))
            elif type(spec) is range and 0 <= spec.start < spec.stop <= chunks and spec.step == 1:
                rows.append((kind, peer, spec.start, spec.stop - spec.start))
            else:
                runs = resolve(spec, chunks, vectors)
                rows += [(kind, peer, first, stop - first) for first, stop in runs]
        if moves and rows:
            kind, *rest = rows[-1]
            rows[-1] = kind | LAST, *rest  # type: ignore[assignment]
    return rows


def _one_by_one(schedule: Schedule) -> Program:
    """Ask each rank by itself."""
    kind, columns = array("B"), [array("i") for _ in range(3)]
    begin = np.zeros(schedule.size + 1, np.int64)
    for rank in range(schedule.size):
        if rows := _rows(schedule, rank):
            kinds, *others = zip(*rows, strict=True)
            kind.extend(kinds)
            for column, values in zip(columns, others, strict=True):
                column.extend(values)
        begin[rank + 1] = len(kind)
    peer, first, length = (np.array(column, np.int32) for column in columns)
    none = np.zeros(0, np.int64)
    kinds_of_all = np.array(kind, np.uint8)
    return Program(
        schedule.size,
        schedule.chunks,
        _vectors(schedule),
        False,
        kinds_of_all,
        length,
        peer,
        first,
        none,
        none,
        begin,
    )


def _vectors(schedule: Schedule) -> int:
    return COLLECTIVES[schedule.collective].vectors(schedule.size)


class _Rows:
    """Arrays of one number for each rank, each kept once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._rows: list[Ints] = []
        self._places: dict[bytes, int] = {}

    @property
    def nbytes(self) -> int:
        return 4 * self._size * len(self._rows)

    def place(self, values: Any) -> int:
        """Give where they begin."""
        row = np.ascontiguousarray(np.broadcast_to(values, (self._size,)), np.int32)
        key = row.tobytes()
        if key not in self._places:
            self._places[key] = len(self._rows) * self._size
            self._rows.append(row)
        return self._places[key]

    def join(self) -> Ints:
        return np.concatenate([*self._rows, np.zeros(0, np.int32)])


def _alike(schedule: Schedule, moves: int, memory: int) -> Program | None:
    """Ask all ranks at once; None if the algorithm cannot answer."""
    size = schedule.size
    ranks = np.arange(size)
    ranks.flags.writeable = False  # a generator that changes its rank in place must not change what it gave
    kind, length = np.empty(moves, np.uint8), np.empty(moves, np.int32)
    peer_at, first_at = np.empty(moves, np.int64), np.empty(moves, np.int64)
    peers, firsts = _Rows(size), _Rows(size)
    at = 0
    try:
        for step in schedule.generate(ranks):  # type: ignore[arg-type]
            for move in moves_of(step):
                local = move.source is not None
                first, length[at] = _run(move, schedule)
                kind[at], first_at[at] = KINDS[move.kind], firsts.place(first)
                peer_at[at] = peers.place(ranks if local else move.peer)
                if not local and not _are_others(move.peer, ranks):
                    return None
                at += 1
            if moves_of(step):
                kind[at - 1] |= LAST
            kept = 2 * (peers.nbytes + firsts.nbytes)  # they are joined at the end
            expected = kept * moves // max(at, 1)  # or less, as rows come again
            if kept > memory or expected > 8 * memory:
                _check(schedule, expected, memory)
    except MemoryError:
        raise
    except Exception:  # whatever NumPy or the generator says of arrays; the ranks are asked one by one next
        return None
    if at != moves:
        return None
    none = np.zeros(0, np.int64)
    return Program(
        size,
        schedule.chunks,
        _vectors(schedule),
        True,
        kind,
        length,
        peers.join(),
        firsts.join(),
        peer_at,
        first_at,
        none,
    )


def _are_others(peers: Any, ranks: npt.NDArray[Any]) -> bool:
    return bool(((peers >= 0) & (peers < len(ranks)) & (peers != ranks)).all())


def _run(move: Move, schedule: Schedule) -> tuple[Any, int]:
    """Give the first slots of all ranks and how many there are, where they are one run."""
    spec, chunks, offset = move.chunks, schedule.chunks, 0
    if isinstance(spec, Scratch):
        spec, chunks, offset = spec.slots, schedule.chunks * schedule.vectors, schedule.chunks
    if isinstance(spec, np.ndarray):
        return spec % chunks + offset, 1
    [(first, stop)] = resolve(move.chunks, schedule.chunks, schedule.vectors)
    return first, stop - first
