"""Heat in a rod, of which each rank has a piece: a program of mpi4py's, with mpicoll's communicator.

    mpiexec -n 4 python examples/drop_in.py

The grid, the halo exchange and the requests are mpi4py's; the collectives run mpicoll's algorithms. Without
the line that makes the Communicator, `python -m mpicoll run` does the same.
"""

import numpy as np
from mpi4py import MPI

import mpicoll

POINTS = 48  # inside the rod, whose ends are kept at 0
COLD = 1e-3
RATIO = 0.4  # time step / step in space**2; stable up to 1/2
STEPS = 25  # between two looks at how cold it is

world = mpicoll.Communicator(MPI.COMM_WORLD)  # the line that is not plain mpi4py's
rod = world.Create_cart([world.Get_size()])
left, right = rod.Shift(0, 1)  # MPI.PROC_NULL at the ends

x = np.array_split(np.arange(1, POINTS + 1) / (POINTS + 1), rod.Get_size())[rod.Get_rank()]
heat = np.zeros(len(x) + 2)  # the neighbours' edges, or the ends of the rod, around our piece
heat[1:-1] = np.sin(np.pi * x)


def flow(heat):
    """Give the change of each point that has both its neighbours in an array."""
    return RATIO * (heat[:-2] - 2 * heat[1:-1] + heat[2:])


def step(heat):
    """Give the heat after a time step; the edges travel while the points between them are computed."""
    edges = [rod.Irecv(heat[:1], left), rod.Irecv(heat[-1:], right)]
    edges += [rod.Isend(heat[1:2], left), rod.Isend(heat[-2:-1], right)]
    after = heat.copy()
    after[2:-2] += flow(heat[1:-1])
    MPI.Request.Waitall(edges)
    after[[1, -2]] = heat[[1, -2]] + flow(heat)[[0, -1]]
    return after


total, steps = np.array([np.inf]), 0
while np.sqrt(total[0] / POINTS) > COLD and steps < 10_000:
    squares = np.array([heat[1:-1] @ heat[1:-1]])
    request = rod.Iallreduce(squares, total)  # goes on while the next steps are computed
    for _ in range(STEPS):
        heat = step(heat)
    steps += STEPS
    request.Wait()

decay = (1 - 4 * RATIO * np.sin(np.pi / 2 / (POINTS + 1)) ** 2) ** steps  # exact, but for rounding
error = np.abs(heat[1:-1] - decay * np.sin(np.pi * x)).max(keepdims=True)
rod.Allreduce(MPI.IN_PLACE, error, op=MPI.MAX)
assert error[0] < 1e-12
assert decay < COLD * np.sqrt(2)  # the root mean square of a sine is 1/sqrt(2)
if rod.Get_rank() == 0:
    print(f"cold after {steps} steps; at most {error[0]:.0e} from the exact solution")
