"""Classes that stand in for mpi4py's."""

from typing import Any


class StandIn(type):
    """The type of a class that compares equal to the one it stands in for.

    A communicator's class is not the one that programs name when they compare types, as in
    ``type(comm) == MPI.Cartcomm``; mpi4py's own tests do. A class says which one it is for in `stands_for`; a
    class that is derived from it stands for itself.
    """

    def __eq__(cls, other: Any) -> bool:
        return cls is other or (other is not None and other is vars(cls).get("stands_for"))

    def __hash__(cls) -> int:
        return hash(vars(cls).get("stands_for")) if "stands_for" in vars(cls) else super().__hash__()
