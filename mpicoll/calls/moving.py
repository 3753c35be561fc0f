"""The collectives that move data.

They are described in bytes, so that the ranks need not describe their memory alike; a datatype with holes is
packed into memory of its own before, and unpacked after.
"""

from dataclasses import replace
from typing import Any

from mpi4py import MPI

from ..buffers import Buffer, parse
from .call import Call, Where, check_equal, check_writable, checked_root, on_devices, says_in_place
from .sides import Side, check_apart, copied, in_bytes, parse_side


def bcast(where: Where, buf: Any, root: int) -> Call:
    """One buffer."""
    root = checked_root("bcast", root, where)
    buffer = parse(buf, "bcast: buf")
    if where.rank != root:
        check_writable(buffer, "bcast: buf")
    side = in_bytes(buf, buffer)
    return Call(
        "bcast",
        (buffer.nbytes,),
        root=root,
        recvbuf=side.address,
        nbytes=buffer.nbytes,
        before=side.pack if where.rank == root else (),
        after=side.unpack if where.rank != root else (),
        owners=side.owners,
        native=(side.native, root),
        devices=on_devices("bcast", buf=buffer),
    )


def gather(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """A block of each rank, all of them at the root."""
    return _gather(where, sendbuf, recvbuf, root, counted=False)


def gatherv(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Blocks as the root's counts say; the others know their own."""
    return _gather(where, sendbuf, recvbuf, root, counted=True)


def scatter(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """A block for each rank, all of them at the root."""
    return _scatter(where, sendbuf, recvbuf, root, counted=False)


def scatterv(where: Where, sendbuf: Any, recvbuf: Any, root: int) -> Call:
    """Blocks as the root's counts say; the others know their own."""
    return _scatter(where, sendbuf, recvbuf, root, counted=True)


def allgather(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """A block of each rank, all of them everywhere."""
    return _allgather(where, sendbuf, recvbuf, counted=False)


def allgatherv(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """Blocks as counts say that every rank knows."""
    return _allgather(where, sendbuf, recvbuf, counted=True)


def alltoall(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """A block from each rank to each."""
    return _alltoall(where, sendbuf, recvbuf, counted=False)


def alltoallv(where: Where, sendbuf: Any, recvbuf: Any) -> Call:
    """Blocks as counts say of which each rank knows its own."""
    return _alltoall(where, sendbuf, recvbuf, counted=True)


def _gather(where: Where, sendbuf: Any, recvbuf: Any, root: int, counted: bool) -> Call:
    root = checked_root("gather", root, where)
    if where.rank != root:
        send = parse(sendbuf, "gather: sendbuf")
        away = in_bytes(sendbuf, send)
        native = away.native, recvbuf, root
        devices = on_devices("gather", sendbuf=send)
        return _rooted(
            "gather",
            where,
            root,
            counted,
            away,
            native,
            sendbuf=away.address,
            before=away.pack,
            devices=devices,
        )
    call = _collected("gather", where, sendbuf, recvbuf, counted)
    nbytes = None if counted else call.nbytes
    return replace(call, root=root, nbytes=nbytes, native=(*call.native, root))


def _scatter(where: Where, sendbuf: Any, recvbuf: Any, root: int, counted: bool) -> Call:
    root = checked_root("scatter", root, where)
    if where.rank != root:
        block = parse(recvbuf, "scatter: recvbuf")
        check_writable(block, "scatter: recvbuf")
        away = in_bytes(recvbuf, block)
        native = sendbuf, away.native, root
        devices = on_devices("scatter", recvbuf=block)
        return _rooted(
            "scatter",
            where,
            root,
            counted,
            away,
            native,
            recvbuf=away.address,
            after=away.unpack,
            devices=devices,
        )
    send = parse_side(sendbuf, "scatter: sendbuf", where.size, counted)
    all_blocks = in_bytes(sendbuf, send, where.size)
    mine: Side | None = None
    recv: Buffer | None = None
    if not says_in_place(recvbuf):
        recv = parse(recvbuf, "scatter: recvbuf")
        check_writable(recv, "scatter: recvbuf")
        mine = _apart("scatter", where, all_blocks, "sendbuf", in_bytes(recvbuf, recv), "recvbuf")
    return Call(
        "scatter",
        all_blocks.counts,
        root=root,
        in_place=mine is None,
        displacements=all_blocks.displacements,
        sendbuf=all_blocks.address,
        recvbuf=mine.address if mine else 0,
        nbytes=None if counted else all_blocks.nbytes,
        counted=counted,
        before=all_blocks.pack,
        after=mine.unpack if mine else (),
        owners=all_blocks.owners + (mine.owners if mine else ()),
        native=(all_blocks.native, mine.native if mine else MPI.IN_PLACE, root),
        devices=on_devices("scatter", sendbuf=send, recvbuf=recv),
    )


def _rooted(
    collective: str, where: Where, root: int, counted: bool, mine: "Side", native: tuple, **more: Any
) -> Call:
    """Describe a gather or scatter away from the root, where only this rank's block is known."""
    counts = [0 if counted else mine.nbytes] * where.size
    counts[where.rank] = mine.nbytes
    nbytes = None if counted else sum(counts)
    return Call(
        collective,
        tuple(counts),
        root=root,
        nbytes=nbytes,
        counted=counted,
        owners=mine.owners,
        native=native,
        **more,
    )


def _allgather(where: Where, sendbuf: Any, recvbuf: Any, counted: bool) -> Call:
    return _collected("allgather", where, sendbuf, recvbuf, counted)


def _collected(collective: str, where: Where, sendbuf: Any, recvbuf: Any, counted: bool) -> Call:
    """Describe a collective of which this rank receives the blocks of all."""
    recv = parse_side(recvbuf, f"{collective}: recvbuf", where.size, counted)
    check_writable(recv, f"{collective}: recvbuf")
    all_blocks = in_bytes(recvbuf, recv, where.size)
    mine, send = None, None
    if not says_in_place(sendbuf):
        send = parse(sendbuf, f"{collective}: sendbuf")
        mine = in_bytes(sendbuf, send)
        mine = _apart(collective, where, all_blocks, "recvbuf", mine, "sendbuf")
    return Call(
        collective,
        all_blocks.counts,
        in_place=mine is None,
        displacements=all_blocks.displacements,
        sendbuf=(mine or all_blocks).address,
        recvbuf=all_blocks.address,
        nbytes=all_blocks.nbytes,
        counted=counted,
        before=(mine or all_blocks).pack,
        after=all_blocks.unpack,
        owners=all_blocks.owners + (mine.owners if mine else ()),
        native=(mine.native if mine else MPI.IN_PLACE, all_blocks.native),
        devices=on_devices(collective, sendbuf=send, recvbuf=recv),
    )


def _apart(
    collective: str, where: Where, all_blocks: Side, its_name: str, mine: Side, my_name: str
) -> Side | None:
    """Give this rank's block in memory of its own; None where it is the one among all blocks."""
    own = all_blocks.block(where.rank)
    check_equal(collective, its_name, own.nbytes, my_name, mine.nbytes)
    if mine.address == own.address:
        return None
    check_apart(collective, mine, all_blocks)
    return mine


def _alltoall(where: Where, sendbuf: Any, recvbuf: Any, counted: bool) -> Call:
    recv = parse_side(recvbuf, "alltoall: recvbuf", where.size, counted)
    check_writable(recv, "alltoall: recvbuf")
    into = in_bytes(recvbuf, recv, where.size)
    send = None
    if says_in_place(sendbuf):  # on a device, what runs it makes the copy
        out, before = copied(into) if recv.device is None else (into, into.pack)
    else:
        send = parse_side(sendbuf, "alltoall: sendbuf", where.size, counted)
        out = in_bytes(sendbuf, send, where.size)
        before = out.pack
        check_apart("alltoall", out, into)
    if not counted:
        check_equal("alltoall", "recvbuf", into.counts[0], "sendbuf", out.counts[0])
    check_equal("alltoall", "recvbuf", into.counts[where.rank], "sendbuf", out.counts[where.rank])
    return Call(
        "alltoall",
        out.counts,
        displacements=out.displacements,
        incoming=into.counts if counted else None,
        incoming_displacements=into.displacements,
        sendbuf=out.address,
        recvbuf=into.address,
        nbytes=None if counted else out.nbytes,
        counted=counted,
        before=before,
        after=into.unpack,
        owners=out.owners + into.owners,
        native=(MPI.IN_PLACE if says_in_place(sendbuf) else out.native, into.native),
        in_place=out is into,
        devices=on_devices("alltoall", sendbuf=send, recvbuf=recv),
    )
