"""From one rank's part of a schedule to a program."""

from ..schedule.schedule import Schedule
from .layout import Shape
from .messages import LIMITS, Limits, Lowering
from .on_device import DeviceRegions, OnDevice
from .program import Program
from .sharing import Regions, Sharing

__all__ = ["LIMITS", "DeviceRegions", "Limits", "Regions", "lower"]


def lower(
    schedule: Schedule,
    shape: Shape,
    limits: Limits = LIMITS,
    window: Regions | DeviceRegions | None = None,
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
    window : Regions or DeviceRegions, optional
        Of the shared memory through which ranks of the node exchange; the program then never blocks in MPI.

    Returns
    -------
    Program
    """
    given = schedule, shape, limits
    lowering: Lowering
    if window is None:
        lowering = Lowering(*given)
    elif isinstance(window, DeviceRegions):
        lowering = OnDevice(*given, window)
    else:
        lowering = Sharing(*given, window)
    for step in schedule.steps(shape.rank):
        lowering.step(step)
    return lowering.finish()
