"""Calls that are not made, for questions about them."""

from typing import Any

from .. import buffers
from ..schedule.collectives import COLLECTIVES
from .call import Call, Where
from .reducing import barrier, reducing


def imagine(where: Where, collective: str, nbytes: int, op: Any, kind: Any) -> Call:
    """Describe a call of equal blocks in memory that is not there, for questions about it.

    Raises
    ------
    ValueError
        If there is no such collective.
    """
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective!r}, expected one of {', '.join(COLLECTIVES)}")
    if collective == "barrier":
        return barrier(where)
    buffer = buffers.imagine(nbytes, kind)
    if COLLECTIVES[collective].reduces:
        return Call(collective, **reducing(collective, where, buffer, op, buffer.count) | {"nbytes": nbytes})
    stages = () if buffer.packed else (lambda: None,)
    return Call(collective, nbytes=nbytes, before=stages, after=stages)
