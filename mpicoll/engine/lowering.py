"""From one rank's part of a schedule to a program."""

from ..schedule.schedule import Schedule
from .layout import Shape
from .messages import LIMITS, Limits, Lowering
from .program import Program
from .sharing import Regions, Sharing

__all__ = ["LIMITS", "Limits", "Regions", "lower"]


def lower(
    schedule: Schedule, shape: Shape, limits: Limits = LIMITS, window: Regions | None = None
) -> Program:
    """Lower the steps of the rank that `shape` is of.

    Parameters
    ----------
    schedule : Schedule
        A schedule that :func:`~mpicoll.schedule.proof.prove` accepts.
    shape : Shape
        Its counts, and the rank.
    limits : Limits
        Sizes of segments.
    window : Regions, optional
        Of the shared memory through which ranks of the node exchange; the program then never blocks in MPI.

    Returns
    -------
    Program
    """
    given = schedule, shape, limits
    lowering = Lowering(*given) if window is None else Sharing(*given, window)
    for step in schedule.steps(shape.rank):
        lowering.step(step)
    return lowering.finish()
