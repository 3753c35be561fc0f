"""Calls of collectives on arrays of a library, and which routes they can take."""

import collective_calls as cc
import numpy as np
import pytest
from mpi4py import MPI

from mpicoll.bench.device import DeviceArray
from mpicoll.errors import DeviceError

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
ROUTES = ["ipc", "mpi", "staged"]
NO_FAULTS = "MPI is not CUDA-aware", "every rank is on a node of its own", "no compiler for GPUs"

by_route = pytest.mark.parametrize("route", ROUTES, ids="by-{}".format)  # "mpi" alone would pass for a mark

_troubles = {}  # of each route, of reductions and of others


def need(comm, route, reducing=True):
    """Skip the test where a route cannot be had here, for a reason that is no fault; collective."""
    if route == "staged":
        return
    key = route, reducing
    if key not in _troubles:
        _troubles[key] = _trouble(comm, route, reducing)
    if _troubles[key]:
        pytest.skip(_troubles[key])


def had(comm):
    """Give the routes that can be had; collective."""

    def can(route):
        try:
            need(comm, route)
        except pytest.skip.Exception:
            return False
        return True

    return [route for route in ROUTES if can(route)]


def _trouble(comm, route, reducing):
    vector = DeviceArray(np.ones(3, np.float32), comm._connected().device(None).number)
    try:
        if reducing:
            comm.Allreduce(MPI.IN_PLACE, vector, transport=route)
        else:
            comm.Bcast(vector, transport=route)
    except DeviceError as error:
        if not any(reason in str(error) for reason in NO_FAULTS):
            raise
        return str(error)
    return ""


def run(comm, library, device, method, form="blocking", *, options, **drawn):
    """Draw a call, alike on all ranks, run it in one of its forms, and check what is received.

    Where the library's arrays never change, arrays of nobody's receive. Results are read as its stream finds
    them.
    """
    drawn = cc.draw(method, RANK, SIZE, **drawn)

    def put(array):
        sent = library.receives or any(array is each for each in drawn.sent)
        return library.array(array) if sent else DeviceArray(array, device)

    def get(there, array):
        if isinstance(there, DeviceArray):
            there.get(array)
        else:
            array[...] = library.get(there)

    call = cc.Elsewhere(drawn, put, get)
    cc.run(comm, form, method, call.arguments, **options)
    call.check()
