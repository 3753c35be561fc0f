"""Schedules as data: moves and steps, their composition, the proof and the drawing."""

from .compose import mapped, mirrored, together
from .moves import Move, combine, copy, recv, reduce, scratch, send
from .registry import Algorithm, algorithm, algorithms, evaluate, find
from .schedule import Schedule, bounds

__all__ = [
    "Algorithm",
    "Move",
    "Schedule",
    "algorithm",
    "algorithms",
    "bounds",
    "combine",
    "copy",
    "evaluate",
    "find",
    "mapped",
    "mirrored",
    "recv",
    "reduce",
    "scratch",
    "send",
    "together",
]
