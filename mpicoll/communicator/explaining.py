"""What would serve a collective, and why."""

from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from .. import calls, selection
from ..calls import Call, Where
from ..errors import FreedCommunicator
from ..plan import decide, parameters_as_run
from ..schedule import find

if TYPE_CHECKING:
    from .calling import Calling

_SUM = MPI.SUM


def choice(
    comm: "Calling",
    collective: str,
    nbytes: int,
    *,
    op: Any = _SUM,
    datatype: Any = "float64",
    algorithm: str = selection.AUTO,
    **parameters: Any,
) -> tuple[Call, selection.Choice]:
    """Choose for a call that is not made; arguments and errors are those of :func:`explain`."""
    if comm == MPI.COMM_NULL:
        raise FreedCommunicator("explain: the communicator was freed, or is MPI.COMM_NULL")
    if not hasattr(nbytes, "__index__") or nbytes < 0:
        raise ValueError(f"{collective}: nbytes {nbytes!r} given, expected an integer from 0 on")
    context = comm._connected()
    call = calls.imagine(Where(context.rank, context.size), collective, nbytes, op, datatype)
    return call, decide(context, call, algorithm, parameters)


def explain(comm: "Calling", collective: str, nbytes: int, **question: Any) -> str:
    """Say in words what would serve a collective on this communicator, and why. Local.

    Parameters
    ----------
    comm : Communicator
    collective : str
        Its name in ``mpicoll list``, such as ``"allreduce"``.
    nbytes : int
        Bytes of the whole vector: of all ranks' blocks together, where it is made of blocks.
    **question
        ``op`` (MPI.SUM unless given) and ``datatype`` (of NumPy or MPI, float64 unless given), for
        reductions and for datatypes with holes; ``algorithm`` and its parameters, as of a call.

    Returns
    -------
    str
        Several lines.

    Raises
    ------
    ValueError, TypeError, MPI.Exception
        If the collective is unknown, and what the call would raise.
    """
    call, chosen = choice(comm, collective, nbytes, **question)
    context = comm._connected()
    ranks, nodes = context.size, len(context.nodes)
    lines = [
        f"{collective} of {nbytes} bytes, {ranks} rank{'s'[: ranks > 1]}, {nodes} node{'s'[: nodes > 1]}"
    ]
    if chosen.algorithm == selection.NATIVE:
        return "\n".join([*lines, "  native: the MPI library's own", f"  why: {chosen.reason}"])
    algorithm = find(collective, chosen.algorithm)
    own = parameters_as_run(context, call, chosen)
    steps, sent = map(float, algorithm.cost(ranks, nodes=context.nodes, **own))
    settings = ", ".join(f"{name}={value}" for name, value in own.items() if name != "root")
    lines += [
        f"  {chosen.algorithm}{f' ({settings})' if settings else ''}: {algorithm.summary}",
        f"  why: {chosen.reason}",
        f"  cost: {steps:.4g} steps; a rank sends {sent:.4g} vectors, {sent * nbytes:.0f} bytes",
    ]
    reference = context.engine == "reference" or bool(call.unsuited)
    shared = chosen.transport == selection.SHARED and context.shares
    over = "messages" if not shared else "shared memory" + ", between nodes messages" * (nodes > 1)
    lines.append(f"  engine: {'reference' if reference else 'compiled'}, over {over}")
    if call.before:
        lines.append("  memory: a datatype with holes, packed before and unpacked after")
    return "\n".join(lines)
