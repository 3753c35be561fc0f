"""The face of the package: communicators whose collectives run schedules."""

from .communicator import Cartcomm, Communicator, Distgraphcomm, Graphcomm

__all__ = ["Cartcomm", "Communicator", "Distgraphcomm", "Graphcomm"]
