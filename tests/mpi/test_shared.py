"""Collectives through shared memory: on one node, and mixed with messages between nodes."""

import os
import time
from contextlib import contextmanager
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
from collective_calls import FORMS, METHODS, REDUCING, ROOTED, UNEQUAL, draw, run
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import mpicoll
from mpicoll.engine.lowering import Limits
from mpicoll.schedule import algorithms, find

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.Get_rank(), WORLD.Get_size()


@contextmanager
def environment(**variables):
    before = dict(os.environ)
    os.environ.update({f"MPICOLL_{name.upper()}": value for name, value in variables.items()})
    yield
    os.environ.clear()
    os.environ.update(before)


def cut(*nodes):
    """Leave those ranks that there are."""
    left = (tuple(rank for rank in node if rank < SIZE) for node in nodes)
    return tuple(node for node in left if node)


def communicator(nodes=None, limits=None, **variables):
    """Make a communicator in an environment, which it reads once."""
    more = {} if limits is None else {"limits": limits}
    with environment(**variables):
        comm = mpicoll.Communicator(WORLD.Dup(), nodes=nodes, **more)
        comm.Barrier()
    return comm


TWO, APART = cut((0, 2), (1, 3, 4)), cut((0,), (1, 2, 3, 4))
NODES = {"one node": cut(range(5)), "two nodes": TWO, "one rank apart": APART}
SMALL = {"staging": "262144"}
COMMUNICATORS = {
    "one node": (communicator(), NODES["one node"]),
    "two nodes": (communicator(TWO), TWO),
    "one rank apart": (communicator(APART), APART),
    "small stage": (communicator(**SMALL), NODES["one node"]),
    "two nodes, small stage": (communicator(TWO, **SMALL), TWO),
    "short segments": (communicator(TWO, Limits(segment=1 << 14, message=1 << 15)), TWO),
}
REFERENCE = {
    name: mpicoll.Communicator(WORLD, nodes=nodes, engine="reference") for name, nodes in NODES.items()
}
COUNTS = [1, 3, 17, 1000, 20_000, 70_000]
UNKNOWN = ["Gatherv", "Scatterv", "Alltoallv"]  # where not every rank knows the lengths of all blocks
ALONE = 1000  # elements of 8 bytes that are a single block
WAYS = [
    (method, algorithm.name)
    for method in METHODS
    if method not in UNKNOWN
    for algorithm in algorithms(METHODS[method])
    if algorithm.serves(SIZE) and not (algorithm.transit and method in UNEQUAL)
]


def shares(nodes):
    """Ask for shared memory where there can be any."""
    return {"transport": "shared"} if max(map(len, nodes)) > 1 else {}


def options_of(method, name, nodes, seed):
    """Give the algorithm as an option, and half of the times parameters of its own."""
    options = {"algorithm": name} | shares(nodes)
    found = find(METHODS[method], name)
    if seed % 2:
        options |= {key: choices[seed // 2 % len(choices)] for key, choices in found.variants.items()}
    if seed % 3 == 0 and found.pipelined:
        options |= {"chunks": seed % 7 + 1}
    return options


def fits(method, name, count):
    """Whether the vector is not too long for the algorithm."""
    limit = find(METHODS[method], name).limit
    return limit is None or 8 * count <= limit


@pytest.mark.parametrize(("method", "name"), WAYS)
@settings(max_examples=16 if SIZE < 4 else 6)  # more ranks than cores take long
@given(
    form=st.sampled_from(FORMS),
    kind=st.sampled_from(list(COMMUNICATORS)),
    count=st.sampled_from(COUNTS),
    root=st.integers(0, SIZE - 1),
    in_place=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_algorithm(method, name, form, kind, count, root, in_place, seed):
    comm, nodes = COMMUNICATORS[kind]
    count = count if fits(method, name, count) else 17
    in_place = in_place and (method not in ROOTED or root == RANK)
    dtype = np.dtype(["f8", "i4", "c16"][seed % 3])
    call = draw(method, RANK, SIZE, count=count, dtype=dtype, root=root, in_place=in_place, seed=seed)
    options = options_of(method, name, nodes, seed)
    if form == "persistent":  # they send messages
        options.pop("transport", None)
    run(comm, form, method, call.arguments, **options)
    call.check()


@pytest.mark.parametrize(("method", "name"), [way for way in WAYS if way[0] in REDUCING])
@settings(max_examples=6 if SIZE < 4 else 3)
@given(
    kind=st.sampled_from(list(NODES)),
    count=st.sampled_from([count for count in COUNTS if count <= ALONE]),
    root=st.integers(0, SIZE - 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_as_the_reference_engine_to_the_bit(method, name, kind, count, root, seed):
    options = {"algorithm": name}
    nodes = NODES[kind]
    results = []
    for comm, more in ((REFERENCE[kind], {}), (COMMUNICATORS[kind][0], shares(nodes))):
        call = draw(method, RANK, SIZE, count=count, dtype="f8", root=root, seed=seed)
        call.sent[0][:] = np.random.default_rng([RANK, seed]).standard_normal(len(call.sent[0]))
        getattr(comm, method)(*call.arguments, **options, **more)
        results.append(call.received)
    np.testing.assert_array_equal(*(result.view(np.uint8) for result in results))


@pytest.mark.parametrize("name", [name for method, name in WAYS if method == "Allreduce"])
@pytest.mark.parametrize("kind", list(NODES))
def test_all_ranks_get_the_same_bits(kind, name):
    comm, nodes = COMMUNICATORS[kind]
    count = 60_000 if fits("Allreduce", name, 60_000) else ALONE
    x, y = np.random.default_rng(RANK).standard_normal(count), np.empty(count)
    comm.Allreduce(x, y, algorithm=name, **shares(nodes))
    assert len(set(WORLD.allgather(crc32(y.tobytes())))) == 1


@pytest.mark.parametrize("kind", list(COMMUNICATORS))
def test_stages_are_used_again_and_again(kind):
    """Vectors that take little or much of a stage in turn; ranks that are now early, now late."""
    comm, nodes = COMMUNICATORS[kind]
    order, mine = np.random.default_rng(5), np.random.default_rng([5, RANK])
    ways = [way for way in WAYS if way[0] != "Barrier"]
    for seed in range(150 if SIZE < 4 else 60):
        method, name = ways[order.integers(len(ways))]
        count = int(2 ** order.uniform(0, 16))
        count = count if fits(method, name, count) else 9
        root = int(order.integers(SIZE))
        call = draw(method, RANK, SIZE, count=count, dtype="f8", root=root, seed=seed)
        if mine.random() < 0.1:
            time.sleep(0.002)
        run(comm, "blocking", method, call.arguments, algorithm=name, **shares(nodes))
        call.check()


@pytest.mark.parametrize("kind", ["one node", "two nodes"])
def test_a_plan_is_used_again(kind):
    """The fast path, too, which runs it from the third call on; and what the buffers hold is read anew."""
    comm, _ = COMMUNICATORS[kind]
    for count in (3, 500, 30_000):
        x, y = np.empty(count), np.empty(count)
        for turn in range(200 if count < ALONE else 20):
            x[:], y[:] = RANK + turn, np.nan
            comm.Allreduce(x, y)
            assert (y == SIZE * turn + SIZE * (SIZE - 1) / 2).all()


@pytest.mark.parametrize("name", [name for method, name in WAYS if method == "Reduce_scatter"])
@pytest.mark.parametrize("kind", list(NODES))
def test_results_in_place_wait_for_what_they_overwrite(kind, name):
    """The result of a block goes to where data of an earlier one were, if ranks have unequal parts."""
    comm, nodes = COMMUNICATORS[kind]
    mine, order = np.random.default_rng(RANK), np.random.default_rng(6)
    for turn in range(24):
        counts = [int(count) for count in order.choice([0, 3, 1000, 8191, 9000, 100_000], SIZE)]
        data = [np.random.default_rng([turn, rank]).integers(0, 99, sum(counts)) for rank in range(SIZE)]
        begin = sum(counts[:RANK])
        received = data[RANK].copy()
        if mine.random() < 0.3:
            time.sleep(0.002)
        comm.Reduce_scatter(MPI.IN_PLACE, received, counts, algorithm=name, **shares(nodes))
        wanted = sum(data)[begin : begin + counts[RANK]]
        np.testing.assert_array_equal(received[: counts[RANK]], wanted, err_msg=f"{counts}")


def test_a_root_may_be_ahead_of_the_others():
    comm, nodes = COMMUNICATORS["one node"]
    vectors = [np.full(2000, turn if RANK == 0 else -1) for turn in range(300)]
    if RANK > 0:
        time.sleep(0.05)
    for vector in vectors:
        comm.Bcast(vector, 0, algorithm="binomial", **shares(nodes))
    for turn, vector in enumerate(vectors):
        assert (vector == turn).all()


@pytest.mark.parametrize("kind", list(NODES))
@pytest.mark.parametrize("name", [name for method, name in WAYS if method == "Barrier"])
def test_no_rank_leaves_a_barrier_before_all_have_come(kind, name):
    comm, nodes = COMMUNICATORS[kind]
    for late in range(SIZE):
        if late == RANK:
            time.sleep(0.02)
        came = time.monotonic()
        comm.Barrier(algorithm=name, **shares(nodes))
        left = time.monotonic()
        assert WORLD.allreduce(left, MPI.MIN) >= WORLD.allreduce(came, MPI.MAX)


def test_in_company():
    """Nonblocking ones of several communicators, persistent ones, and blocking ones in between."""
    for seed in range(20 if SIZE < 4 else 8):
        started = []
        for kind in NODES:
            comm, nodes = COMMUNICATORS[kind]
            for method in ("Allreduce", "Alltoall", "Bcast"):
                call = draw(method, RANK, SIZE, count=2000 * (seed % 2) + 7, dtype="f8", seed=seed)
                options = {} if method == "Bcast" else shares(nodes)
                request = getattr(comm, f"I{method.lower()}")(*call.arguments, **options)
                started.append((request, call))
        kept = draw("Scan", RANK, SIZE, count=11, dtype="f8", seed=seed)
        persistent = COMMUNICATORS["one node"][0].Scan_init(*kept.arguments)
        persistent.Start()
        between = draw("Allgather", RANK, SIZE, count=300, dtype="f8", seed=seed)
        run(COMMUNICATORS["two nodes"][0], "blocking", "Allgather", between.arguments)
        between.check()
        for at in np.random.default_rng([seed, RANK]).permutation(len(started)):
            request, call = started[at]
            request.Wait()
            call.check()
        persistent.Wait()
        kept.check()
        persistent.Free()


def held():
    """Give how many files this process has open, and how many of ours it has mapped."""
    mapped = Path("/proc/self/maps").read_text()
    return len(list(Path("/proc/self/fd").iterdir())), mapped.count("/mpicoll-")


def test_communicators_leave_nothing_behind():
    x, y = np.ones(100), np.empty(100)
    before = None
    for turn in range(25 if SIZE < 4 else 10):
        comm = mpicoll.Communicator(WORLD.Dup())
        comm.Allreduce(x, y, algorithm="ring", **shares(NODES["one node"]))
        assert (y == SIZE).all()
        during = held()
        comm.Free()
        before = before or held()  # after the first, which may open what all of them share
        assert held() == before
        assert (during[1] > before[1]) == (SIZE > 1), turn


GAPS = MPI.DOUBLE.Create_vector(1 << 19, 1, 2).Commit()
MESSAGES = {  # in 8 MiB of memory; the last two need the sender's help to arrive
    "whole": lambda memory: [memory],
    "with gaps": lambda memory: [[memory, 1, GAPS]],
    "in parts": lambda memory: np.split(memory, 1024),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("wait", ["spin", "yield", "sleep"])
@pytest.mark.parametrize("kind", list(MESSAGES))
@pytest.mark.parametrize(("nodes", "name"), [(NODES["one node"], "ring"), (TWO, "two_level")])
def test_messages_go_on_while_a_rank_waits(wait, kind, nodes, name):
    """Rank 0 waits for rank 1 in a collective, and rank 1 for a long message that rank 0 is sending."""
    comm = communicator(nodes, wait=wait)
    x, y, memory = np.ones(10), np.empty(10), np.full(1 << 20, float(RANK))
    parts, requests = MESSAGES[kind](memory), []
    comm.Allreduce(x, y, algorithm=name, **shares(nodes))  # whatever is made by messages is made now
    if RANK == 0:
        requests = [WORLD.Isend(part, 1) for part in parts]
    elif RANK == 1:
        for part in parts:
            WORLD.Recv(part, 0)
        assert (memory[::2] == 0).all()
    comm.Allreduce(x, y, algorithm=name, **shares(nodes))
    MPI.Request.Waitall(requests)
    assert (y == SIZE).all()
    comm.Free()


def test_what_cannot_be_shared_is_refused_before_anything_is_sent():
    comm = COMMUNICATORS["one node"][0]
    alone = mpicoll.Communicator(WORLD, nodes=tuple((rank,) for rank in range(SIZE)))
    x, y, blocks = np.ones(3), np.empty(3), np.empty(3 * SIZE)
    refused = [
        (alone, "Allreduce", (x, y), "every rank is on a node of its own"),
        (REFERENCE["one node"], "Bcast", (x, 0), "every rank is|the reference engine sends messages"),
        (comm, "Gatherv", (x, [blocks, [3] * SIZE], 0), "every rank is|not every rank knows the lengths"),
    ]
    with pytest.raises(ValueError, match=r"transport 'shared' given, but (every rank is|persistent)"):
        run(comm, "persistent", "Allreduce", (x, y), algorithm="ring", transport="shared")
    for form in FORMS:
        for each, method, arguments, reason in refused if form != "persistent" else ():
            with pytest.raises(ValueError, match=f"transport 'shared' given, but ({reason})"):
                run(each, form, method, arguments, transport="shared")
        with pytest.raises(ValueError, match="transport 'pigeon' given, expected auto, message or shared"):
            run(comm, form, "Allreduce", (x, y), algorithm="ring", transport="pigeon")
        run(comm, form, "Allreduce", (x, y), algorithm="ring", transport="message")
        assert (y == SIZE).all()


@pytest.mark.parametrize(
    ("name", "value"), [("transport", "pigeon"), ("wait", "long"), ("staging", "much"), ("staging", "-1")]
)
def test_a_wrong_setting_is_refused(name, value):
    with (
        environment(**{name: value}),
        pytest.raises(ValueError, match=f"MPICOLL_{name.upper()}: '{value}' given, expected auto"),
    ):
        mpicoll.Communicator(WORLD.Dup()).Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("name", "values"),
    [("transport", ["shared", "message"]), ("wait", ["spin", "sleep"]), ("staging", ["auto", "262144"])],
)
def test_settings_that_differ_are_refused(name, values):
    with (
        environment(**{name: values[RANK == 1]}),
        pytest.raises(ValueError, match=f"MPICOLL_{name.upper()}: .* expected the same on all"),
    ):
        mpicoll.Communicator(WORLD.Dup()).Barrier()


def test_a_setting_chooses_the_transport():
    x, y = np.ones(3), np.empty(3)
    for transport in ("message", "shared"):
        comm = communicator(transport=transport)
        comm.Allreduce(x, y, algorithm="ring")
        maps = held()[1]
        comm.Free()
        assert held()[1] == maps - (transport == "shared" and SIZE > 1)
