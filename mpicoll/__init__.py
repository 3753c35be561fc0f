"""mpicoll: collective communication on MPI that can be seen, proved, run, modelled and tuned.

:class:`Communicator` is mpi4py's intracommunicator with collectives of our own: blocking, nonblocking and
persistent. :func:`op` compiles an operation of the user's, and :data:`AVG` is the average.

    >>> comm = mpicoll.Communicator(MPI.COMM_WORLD)
    >>> comm.Allreduce(send, recv, op=mpicoll.AVG)
    >>> print(comm.explain("allreduce", nbytes=send.nbytes))

``python -m mpicoll run script.py`` gives these communicators to a program as it is.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import device as device
    from .communicator import Communicator as Communicator
    from .ops import AVG as AVG
    from .ops import Op as Op
    from .ops import op as op

__version__ = "0.1.0"
__all__ = ["AVG", "Communicator", "Op", "__version__", "device", "op"]


def __getattr__(name: str) -> Any:
    # Importing MPI starts it, and the proof, the drawing and the help text need none.
    if name == "Communicator":
        from .communicator import Communicator  # noqa: PLC0415

        return Communicator
    if name in ("AVG", "Op", "op"):
        from . import ops  # noqa: PLC0415

        return getattr(ops, name)
    if name == "device":
        return importlib.import_module(".device", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
