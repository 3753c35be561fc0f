"""What the measuring says of each collective agrees with what the schedules say of it."""

import pytest

from mpicoll.bench.forms import FORMS
from mpicoll.schedule import algorithms
from mpicoll.schedule.collectives import COLLECTIVES, Place


def contributions(collective, size):
    """Return how many of them there are in any rank's result, at most."""
    promised = COLLECTIVES[collective]
    chunks = promised.blocks(size)
    places = [Place(rank, chunk, size, chunks) for rank in range(size) for chunk in range(chunks)]
    return max((promised.after(place) or 0).bit_count() for place in places)


def test_every_collective_has_a_form():
    assert list(FORMS) == list(COLLECTIVES)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_forms(collective):
    form = FORMS[collective]
    assert form.blocked == (COLLECTIVES[collective].blocks(2) > 1)
    assert form.rooted == any(algorithm.rooted for algorithm in algorithms(collective))
    assert form.combines == (form.vector and contributions(collective, 4) > 1)
    assert form.blocks(5) == (5 if form.blocked else 1)


@pytest.mark.parametrize(
    ("collectives", "factor"),
    [
        ("allreduce", 1.5),
        ("allgather alltoall gather reduce_scatter scatter", 0.75),
        ("bcast exscan reduce scan", 1),
    ],
)
def test_factors_of_busbw(collectives, factor):
    assert [FORMS[name].busbw(4) for name in collectives.split()] == [factor] * len(collectives.split())


@pytest.mark.parametrize(
    ("collective", "options"),
    [
        ("allgather", ["op", "root"]),
        ("allreduce", ["root"]),
        ("barrier", ["sizes", "dtype", "plot", "op", "root", "in_place"]),
        ("bcast", ["op", "in_place"]),
        ("reduce", []),
        ("scatter", ["op"]),
    ],
)
def test_options_that_mean_nothing(collective, options):
    assert FORMS[collective].lacks() == options
