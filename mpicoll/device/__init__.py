"""Memory of GPUs: reading arrays that are there, and getting their bytes from rank to rank.

No CUDA context is made before the first array on a device is given, and no package needed before the first
kernel.
"""

from typing import Any

__all__ = ["assign", "through_host"]


def __getattr__(name: str) -> Any:  # what follows needs MPI
    if name == "assign":
        from .assigning import assign  # noqa: PLC0415

        return assign
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def through_host(comm: Any) -> int:
    """Give the bytes of device memory that this rank has copied to the host, or back, for collectives.

    Parameters
    ----------
    comm : Communicator
        Whose collectives.

    Raises
    ------
    TypeError
        If it is not a Communicator.
    """
    if not hasattr(comm, "_connected"):
        raise TypeError(f"through_host: {type(comm).__name__} given, expected a Communicator")
    return comm._connected().copied
