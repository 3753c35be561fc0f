"""Which device is for which rank."""

import warnings

from mpi4py import MPI

from ..errors import DeviceError
from . import driver


def assign(comm: MPI.Intracomm | None = None) -> int:
    """Give the device for the calling rank; collective.

    The ranks of a node take the devices that they see in turn. Nothing is set, and no context made: tell the
    library whose arrays you use.

        >>> device = mpicoll.device.assign()
        >>> cupy.cuda.Device(device).use()  # CuPy
        >>> torch.cuda.set_device(device)  # PyTorch
        >>> numba.cuda.select_device(device)  # Numba

    JAX takes its devices when it starts, so before that
    ``jax.config.update("jax_cuda_visible_devices", str(device))``.

    Parameters
    ----------
    comm : MPI.Intracomm, optional
        ``MPI.COMM_WORLD`` unless given.

    Returns
    -------
    int
        Its number among those that this rank sees, of which ``CUDA_VISIBLE_DEVICES`` may leave some out.

    Raises
    ------
    DeviceError
        If this rank has no driver or sees no device.

    Warns
    -----
    UserWarning
        If another rank of the node has the same device.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    node = MPI.Intracomm.Split_type(comm, MPI.COMM_TYPE_SHARED)
    device, uuid, trouble = _choose(node.Get_rank())
    # Each rank may see other devices, or none: the numbers tell little, and all take part before one raises.
    chosen = MPI.Intracomm.allgather(node, (comm.Get_rank(), uuid))
    node.Free()
    if trouble:
        raise DeviceError(trouble)
    ranks = [rank for rank, theirs in chosen if theirs == uuid]
    if len(ranks) > 1:
        warnings.warn(
            f"assign: ranks {', '.join(map(str, ranks))} share device {device} ({driver.name(device)})",
            stacklevel=2,
        )
    return device


def _choose(place: int) -> tuple[int, bytes, str]:
    """Give the device for a place on the node, what it is known by, and why there is none."""
    try:
        if trouble := driver.trouble():
            return -1, b"", trouble
        device = place % driver.count()
        return device, driver.uuid(device), ""
    except DeviceError as error:
        return -1, b"", str(error)
