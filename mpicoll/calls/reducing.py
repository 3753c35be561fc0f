"""The collectives that reduce, described in elements; and the barrier, which is one of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from .. import buffers, ops
from ..buffers import Buffer, parse
from ..reduction import Reduction
from .call import Call, Where, check_equal, check_writable, checked_root, on_devices, says_in_place
from .sides import check_apart, extent, memory_at


def allreduce(where: Where, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """A vector of each rank, the result everywhere."""
    return _vectors("allreduce", where, sendbuf, recvbuf, op)


def scan(where: Where, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """A vector of each rank, and what the ranks up to this one give."""
    return _vectors("scan", where, sendbuf, recvbuf, op)


def exscan(where: Where, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """A vector of each rank, and what the ranks before this one give."""
    return _vectors("exscan", where, sendbuf, recvbuf, op)


def reduce(where: Where, sendbuf: Any, recvbuf: Any, op: Any, root: int) -> Call:
    """A vector of each rank, the result at the root."""
    root = checked_root("reduce", root, where)
    if where.rank == root:
        call = _vectors("reduce", where, sendbuf, recvbuf, op)
        return replace(call, root=root, native=(*call.native, root))
    send = parse(sendbuf, "reduce: sendbuf")
    return Call(
        "reduce",
        (send.count,),
        root=root,
        sendbuf=send.address,
        owners=(send.owner,),
        native=(sendbuf, recvbuf, op, root),
        devices=on_devices("reduce", sendbuf=send),
        **reducing("reduce", where, send, op, send.count),
    )


def reduce_scatter_block(where: Where, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """A vector of each rank, an equal block of the result on each."""
    blocks = where.size if says_in_place(sendbuf) else 1
    recv = parse(recvbuf, "reduce_scatter: recvbuf", blocks)
    send = None if says_in_place(sendbuf) else parse(sendbuf, "reduce_scatter: sendbuf", where.size)
    counts = (recv.count,) * where.size
    return _reduce_scatter(where, counts, send, recv, op, (sendbuf, recvbuf, op), False)


def reduce_scatter(where: Where, sendbuf: Any, recvbuf: Any, recvcounts: Sequence[int], op: Any) -> Call:
    """A vector of each rank, a block of the result on each as the counts say."""
    native = (sendbuf, recvbuf, recvcounts, op)
    counts = buffers.integers(recvcounts, where.size, "reduce_scatter: recvcounts")
    if min(counts) < 0:
        raise ValueError(f"reduce_scatter: recvcounts {list(counts)} given, expected 0 or more")
    recv = parse(recvbuf, "reduce_scatter: recvbuf")
    send = None if says_in_place(sendbuf) else parse(sendbuf, "reduce_scatter: sendbuf")
    total, own = sum(counts), counts[where.rank]
    check_equal("reduce_scatter", "recvbuf", recv.count, "recvcounts", total if send is None else own)
    if send is not None:
        check_equal("reduce_scatter", "sendbuf", send.count, "recvcounts", total)
    return _reduce_scatter(where, counts, send, recv, op, native, True)


def barrier(where: Where) -> Call:
    """Nothing but the wait for each other: one byte, that nobody reads."""
    return Call(
        "barrier",
        (1,),
        in_place=True,
        sendbuf=BYTE,
        recvbuf=BYTE,
        reduction=_BARRIER,
    )


def _vectors(collective: str, where: Where, sendbuf: Any, recvbuf: Any, op: Any) -> Call:
    """Describe a reduction of whole vectors."""
    recv = parse(recvbuf, f"{collective}: recvbuf")
    check_writable(recv, f"{collective}: recvbuf")
    send = recv
    if not says_in_place(sendbuf):
        send = parse(sendbuf, f"{collective}: sendbuf")
        if send.count != recv.count:
            raise ValueError(f"{collective}: recvbuf has {recv.count} items, expected {send.count}")
        if not send.like(recv):
            raise ValueError(f"{collective}: recvbuf has {recv.kind} items, expected {send.kind}")
        if send.address != recv.address:
            check_apart(collective, extent(send), extent(recv))
    in_place = send.address == recv.address
    received = 0 if collective == "exscan" and where.rank == 0 else recv.count
    return Call(
        collective,
        (recv.count,),
        in_place=in_place,
        sendbuf=send.address,
        recvbuf=recv.address,
        owners=(send.owner, recv.owner),
        native=(MPI.IN_PLACE if in_place else sendbuf, recvbuf, op),
        devices=on_devices(collective, sendbuf=send, recvbuf=recv),
        **reducing(collective, where, recv, op, recv.count, received),
    )


def _reduce_scatter(
    where: Where,
    counts: tuple[int, ...],
    send: Buffer | None,
    recv: Buffer,
    op: Any,
    native: tuple,
    counted: bool,
) -> Call:
    check_writable(recv, "reduce_scatter: recvbuf")
    if send is not None:
        if not send.like(recv):
            raise ValueError(f"reduce_scatter: recvbuf has {recv.kind} items, expected {send.kind}")
        if not counted:
            check_equal("reduce_scatter", "recvbuf", recv.count, "sendbuf", send.count)
        whole = replace(send, count=sum(counts))
        check_apart("reduce_scatter", extent(whole), extent(recv))
    return Call(
        "reduce_scatter",
        counts,
        in_place=send is None,
        sendbuf=(send or recv).address,
        recvbuf=recv.address,
        counted=counted,
        owners=((send or recv).owner, recv.owner),
        native=native,
        devices=on_devices("reduce_scatter", sendbuf=send, recvbuf=recv),
        **reducing("reduce_scatter", where, recv, op, sum(counts), counts[where.rank]),
    )


def reducing(
    collective: str, where: Where, buffer: Buffer, op: Any, count: int, received: int = 0
) -> dict[str, Any]:
    """Describe a reduction of `count` elements, of which this rank receives some at its buffer's address."""
    reduction = Reduction.of(collective, buffer, op)

    def average() -> None:
        ops.divide(
            memory_at(buffer.address, received * buffer.itemsize).view(np.dtype(buffer.dtype)), where.size
        )

    predefined = buffer.datatype is None or buffer.datatype.is_predefined
    unsuited, holes = "", not (buffer.packed or predefined)
    if holes:
        unsuited = "not plain: a datatype with holes"
    elif not reduction.compiled:
        unsuited = f"no kernel for {reduction.op_name} on {buffer.kind}"
    return {
        "reduction": reduction,
        "itemsize": buffer.itemsize,
        "nbytes": count * buffer.itemsize,
        "unsuited": unsuited,
        "holes": holes,
        "after": (average,) if reduction.average and buffer.device is None else (),
        "received": received,
    }


_byte = np.zeros(1, np.uint8)
BYTE: int = _byte.ctypes.data  # what barriers combine
_BARRIER = Reduction("barrier", np.dtype(np.uint8), None, 1, MPI.BOR)
