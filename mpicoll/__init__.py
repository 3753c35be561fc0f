"""mpicoll: collective communication on MPI that can be seen, proved, run, modelled and tuned."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .communicator import Communicator as Communicator

__version__ = "0.1.0"
__all__ = ["Communicator", "__version__"]


def __getattr__(name: str) -> Any:
    # Importing MPI starts it, and the proof, the drawing and the help text need none.
    if name == "Communicator":
        from .communicator import Communicator  # noqa: PLC0415

        return Communicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
