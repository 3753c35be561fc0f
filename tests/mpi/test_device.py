"""Collectives of device memory, on a stand-in for the CUDA driver: see ``cuda_stand_in.py``."""

import ctypes
import gc
import os
import weakref
from contextlib import contextmanager
from functools import partial

import collective_calls as cc
import numpy as np
import pytest
from cuda_stand_in import DeviceArray, standing_in
from mpi4py import MPI

import mpicoll
from mpicoll.device import driver, functions
from mpicoll.errors import DeviceError
from mpicoll.schedule import algorithms

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
METHODS = [method for method in cc.METHODS if method != "Barrier"]
ROUTES = ["staged", "mpi"] + ["ipc"] * (SIZE > 1)
NODES = {  # placements that have something between nodes
    2: [[[0], [1]]],
    3: [[[0, 1], [2]], [[0, 2], [1]]],
    4: [[[0, 1], [2, 3]], [[0, 3], [1, 2]]],
    5: [[[0, 1, 2], [3, 4]], [[0, 2, 4], [1, 3]]],
}

pytestmark = pytest.mark.mpi


@contextmanager
def on_devices(aware="1", nodes=None, guarded=False, **environment):
    """Give a communicator and the stand-in that it uses."""
    variables = {"MPICOLL_CUDA_AWARE": aware} | environment
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        with standing_in(guarded=guarded) as stand_in:
            comm = mpicoll.Communicator(WORLD.Dup(), nodes=nodes)
            try:
                yield comm, stand_in
            finally:
                comm.Free()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run(comm, stand_in, method, form="blocking", *, options, **drawn):
    def get(there, array):
        array[...] = there.get()

    call = cc.Elsewhere(cc.draw(method, RANK, SIZE, **drawn), partial(DeviceArray, stand_in), get)
    cc.run(comm, form, method, call.arguments, **options)
    call.check()


def cases(seed, number):
    """Draw what else varies, alike on all ranks."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        yield {
            "count": int(rng.choice([0, 1, 2, 7, 100, 5000, 70_001])),
            "dtype": str(rng.choice(["int32", "float64", "float32", "int8", "complex128", "uint16"])),
            "seed": int(rng.integers(1 << 30)),
            "root": int(rng.integers(SIZE)),
        }


def places(method, root):
    """Say where IN_PLACE may stand, on this rank, of each of both kinds of a call."""
    here = method in ("Gather", "Gatherv", "Reduce", "Scatter", "Scatterv")
    return (False,) if method == "Bcast" else (False, not here or root == RANK)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("route", ROUTES)
def test_every_collective(method, route):
    staged_only = ("Gatherv", "Scatterv", "Alltoallv")
    with on_devices() as (comm, stand_in):
        for number, case in enumerate(cases(len(method), 6 if SIZE < 4 else 2)):  # more ranks than cores
            for in_place in places(method, case["root"]):
                refused = method in staged_only or (method == "Alltoall" and in_place)
                options = {"transport": "staged" if refused else route}
                run(comm, stand_in, method, cc.FORMS[number % 3], options=options, in_place=in_place, **case)


@pytest.mark.parametrize("route", [route for route in ROUTES if route != "mpi"])
def test_the_host_touches_no_device_memory(route):
    with on_devices(guarded=True, aware="0") as (comm, stand_in):
        for method in ("Allreduce", "Bcast", "Allgather", "Reduce_scatter_block", "Scan", "Gather"):
            for case in cases(7, 3):
                run(comm, stand_in, method, options={"transport": route}, **case)


@pytest.mark.parametrize("nodes", NODES.get(SIZE, []), ids=str)
@pytest.mark.parametrize("aware", "01")
def test_nodes(nodes, aware):
    """Within nodes over the devices, between them in device memory or through the host."""
    several = any(len(node) > 1 for node in nodes)
    with on_devices(aware, nodes, guarded=aware == "0") as (comm, stand_in):
        for method in ("Allreduce", "Bcast", "Allgather", "Reduce", "Alltoall", "Reduce_scatter_block"):
            for case in cases(11, 4):
                run(comm, stand_in, method, options={"transport": "ipc" if several else "staged"}, **case)
                run(comm, stand_in, method, options={}, **case)
        if several:
            case = {"count": 200_000, "dtype": "float32", "seed": 5}
            for name in ("two_level", "ring"):
                run(comm, stand_in, "Allreduce", options={"transport": "ipc", "algorithm": name}, **case)


@pytest.mark.parametrize("method", [method for method in METHODS if method not in cc.UNEQUAL])
@pytest.mark.parametrize("route", [route for route in ROUTES if route != "staged"])
def test_every_algorithm(route, method):
    with on_devices() as (comm, stand_in):
        for algorithm in algorithms(cc.METHODS[method]):
            if not algorithm.serves(SIZE):
                continue
            variants = {key: choices[-1] for key, choices in algorithm.variants.items()}
            for count, more in ((1000, variants), (1, {}), (1000, {}))[: 3 if SIZE < 4 else 1]:
                options = {"transport": route, "algorithm": algorithm.name} | more
                run(comm, stand_in, method, options=options, count=count, dtype="float32", seed=3)


@pytest.mark.parametrize("route", ROUTES)
def test_long_vectors(route):
    """So long that they go in several pieces and segments, and stages of several lengths are there."""
    with on_devices() as (comm, stand_in):
        for count in (100, 3_000_000, 200_000, 6_000_001)[: 4 if SIZE < 4 else 2]:
            options = {"transport": route}
            run(comm, stand_in, "Allreduce", options=options, count=count, dtype="float32", seed=1)
        for method in ("Allgather", "Alltoall", "Reduce_scatter_block", "Scatter"):
            run(
                comm,
                stand_in,
                method,
                options=options,
                count=2_000_003 if SIZE < 4 else 500_003,
                dtype="int16",
                seed=2,
            )


def test_blocks_that_are_too_far_apart_for_one_copy(monkeypatch):
    monkeypatch.setattr(driver, "MAX_PITCH", 1000)
    with on_devices() as (comm, stand_in):
        for method in ("Allgather", "Alltoall", "Scatter", "Reduce_scatter_block"):
            options = {"transport": "staged"}
            run(comm, stand_in, method, options=options, count=1_200_001, dtype="int32", seed=6)


@pytest.mark.parametrize("route", ROUTES)
def test_operations(route):
    rng = np.random.default_rng(4)
    with on_devices() as (comm, stand_in):
        for dtype in ("float16", "int64", "float32"):
            vectors = [rng.integers(-9, 9, 301).astype(dtype) for _ in range(SIZE)]
            for op, function in ((MPI.MAX, np.maximum), (MPI.SUM, np.add), (MPI.PROD, np.multiply)):
                x, y = DeviceArray(stand_in, vectors[RANK]), DeviceArray(stand_in, np.zeros_like(vectors[0]))
                comm.Allreduce(x, y, op, transport=route)
                host = np.zeros_like(vectors[0])
                comm.Allreduce(vectors[RANK], host, op, algorithm="direct")
                if function is not np.multiply:  # which rounds by the order
                    np.testing.assert_array_equal(y.get().astype(float), host.astype(float))
        pairs = np.array([(v % 3, RANK) for v in range(20)], [("v", "f4"), ("i", "i4")])
        x, y = DeviceArray(stand_in, pairs), DeviceArray(stand_in, np.zeros_like(pairs))
        comm.Allreduce([x, MPI.FLOAT_INT], [y, MPI.FLOAT_INT], MPI.MINLOC, transport=route)
        assert (y.get()["i"] == 0).all()


@pytest.mark.parametrize("route", ROUTES)
def test_average(route):
    with on_devices() as (comm, stand_in):
        for dtype in ("float32", "int32"):
            x = DeviceArray(stand_in, np.arange(50, dtype=dtype) * SIZE + RANK)
            y = DeviceArray(stand_in, np.zeros(50, dtype))
            comm.Allreduce(x, y, op=mpicoll.AVG, transport=route)
            wanted = np.arange(50) * SIZE + sum(range(SIZE)) / SIZE
            np.testing.assert_allclose(y.get(), wanted if dtype == "float32" else np.trunc(wanted), rtol=1e-6)


@pytest.mark.parametrize("route", ROUTES)
def test_functions_of_the_users_in_rank_order(route):
    second = mpicoll.op(lambda a, b: b)
    with on_devices() as (comm, stand_in):
        for count in (3, 40_000):
            x, y = (DeviceArray(stand_in, np.full(count, value, np.int32)) for value in (RANK, -1))
            comm.Allreduce(x, y, op=second, transport=route)
            assert (y.get() == SIZE - 1).all()
            comm.Scan(x, y, op=second, transport=route)
            assert (y.get() == RANK).all()
    second.Free()


def test_the_same_bits_on_all_ranks_and_as_on_the_host():
    x = np.random.default_rng(RANK).random(5000)
    host = np.empty_like(x)
    with on_devices() as (comm, stand_in):
        for name in ("ring", "direct", "recursive_halving_doubling"):
            comm.Allreduce(x, host, algorithm=name)
            for route in ROUTES:
                dx, dy = DeviceArray(stand_in, x), DeviceArray(stand_in, np.zeros_like(x))
                comm.Allreduce(dx, dy, algorithm=name, transport=route)
                np.testing.assert_array_equal(dy.get(), host)


def test_no_vector_goes_through_the_host():
    with on_devices() as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(100_000)), DeviceArray(stand_in, np.zeros(100_000))
        for route in ROUTES:
            before = mpicoll.device.through_host(comm), stand_in.crossed
            comm.Allreduce(x, y, transport=route)
            copied = mpicoll.device.through_host(comm) - before[0]
            assert copied == stand_in.crossed - before[1] == (1_600_000 if route == "staged" else 0)


@pytest.mark.parametrize("nodes", NODES.get(SIZE, [])[:1], ids=str)
def test_what_goes_between_nodes_through_the_host_is_counted(nodes):
    with on_devices("0", nodes) as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(100_000)), DeviceArray(stand_in, np.zeros(100_000))
        comm.Allreduce(x, y)
        before = mpicoll.device.through_host(comm), stand_in.crossed
        comm.Allreduce(x, y)
        copied = mpicoll.device.through_host(comm) - before[0]
        assert copied == stand_in.crossed - before[1]
        assert WORLD.allreduce(copied) > 0


def test_two_levels_where_nodes_have_several_ranks():
    if SIZE < 3:
        pytest.skip("no node has several")
    with on_devices(nodes=NODES[SIZE][0]) as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(100_000)), DeviceArray(stand_in, np.zeros(100_000))
        comm.Allreduce(x, y)
        [plan] = [plan for plan in comm._context.plans.values() if hasattr(plan, "route")]
        assert (plan.route, plan.algorithm) == ("ipc", "two_level")


@pytest.mark.skipif(SIZE < 3, reason="with fewer ranks two operands are all there are")
def test_operands_are_combined_at_once():
    """A rank's share of the vector is combined by one kernel, whatever the number of ranks."""
    with on_devices() as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(50_000)), DeviceArray(stand_in, np.zeros(50_000))
        comm.Allreduce(x, y, transport="ipc", algorithm="direct")
        before = stand_in.calls["cuLaunchKernel"]
        comm.Allreduce(x, y, transport="ipc", algorithm="direct")
        assert stand_in.calls["cuLaunchKernel"] == before + 1


def test_results_are_there_for_every_stream_and_started_ones_see_what_was_computed_before():
    with on_devices() as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.full(10, RANK + 1.0)), DeviceArray(stand_in, np.zeros(10))
        request = comm.Iallreduce(x, y)
        request.Wait()
        assert (y.get() == SIZE * (SIZE + 1) / 2).all()
        persistent = comm.Allreduce_init(x, y)
        for k in range(3):
            stand_in._give(x._stream, lambda k=k: np.copyto(_memory(x), k))
            persistent.Start()
            persistent.Wait()
            assert (y.get() == k * SIZE).all()


def _memory(array):
    memory = (ctypes.c_uint8 * (array.size * array.dtype.itemsize)).from_address(array._address)
    return np.frombuffer(memory, array.dtype)


@pytest.mark.parametrize("route", ROUTES)
def test_ranks_may_start_persistent_ones_in_any_order(route):
    with on_devices() as (comm, stand_in):
        pairs = [
            (DeviceArray(stand_in, np.full(n, value)), DeviceArray(stand_in, np.zeros(n)))
            for n, value in ((40_000, 1.0), (40_000, 100.0), (3, 7.0))
        ]
        requests = [comm.Allreduce_init(x, y, transport=route) for x, y in pairs]
        for turn in range(3):
            order = requests if (RANK + turn) % 2 else requests[::-1]
            for request in order:
                request.Start()
            for request in order:
                request.Wait()
            for (_, y), value in zip(pairs, (1, 100, 7), strict=True):
                assert (y.get() == value * SIZE).all()


def test_empty_arrays_are_of_any_device():
    with standing_in(devices=2) as stand_in:
        comm = mpicoll.Communicator(WORLD.Dup())
        nothing = DeviceArray(stand_in, np.ones(0))
        comm.Allreduce(nothing, DeviceArray(stand_in, np.ones(0)))
        x, y = (DeviceArray(stand_in, np.ones(40_000), device=1) for _ in range(2))
        comm.Allreduce(x, y)
        assert (y.get() == SIZE).all()
        comm.Allreduce(nothing, DeviceArray(stand_in, np.ones(0)))
        comm.Free()


def test_empty_arrays_are_not_taken_for_the_hosts():
    with on_devices(MPICOLL_GATHER="native") as (comm, stand_in):
        counts = [2] + [0] * (SIZE - 1)
        mine = np.full(counts[RANK], 5.0)
        for _ in range(2):
            out = np.zeros(2) if RANK == 0 else None
            comm.Gatherv(mine, [out, counts] if RANK == 0 else None)
            there = DeviceArray(stand_in, np.zeros(2))
            comm.Gatherv(DeviceArray(stand_in, mine), [there, counts] if RANK == 0 else None)
            if RANK == 0:
                assert (out == 5).all()
                assert (there.get() == 5).all()


def test_stages_stay_the_same_for_a_length_when_memory_gets_short():
    with on_devices() as (comm, stand_in):

        def gather(seed, count):
            rng = np.random.default_rng(seed)
            counts, gap = [count] * SIZE, int(rng.integers(1, 5)) * (RANK == SIZE - 1)
            places = [(count + gap) * rank for rank in range(SIZE)]
            out = DeviceArray(stand_in, np.zeros((count + gap) * SIZE, np.int32))
            mine = DeviceArray(stand_in, np.full(count, RANK + 1, np.int32))
            comm.Allgatherv(mine, [out, (counts, places)])
            assert all((out.get()[place : place + count] == r + 1).all() for r, place in enumerate(places))

        gather(1, 600_000)
        stand_in.left = 1 << 20
        gather(2, 30_000)
        gather(3, 600_000)  # kept by some, made anew by others


def test_a_collective_that_fails_halfway_is_the_last():
    with on_devices("0") as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(5)), DeviceArray(stand_in, np.ones(5))
        comm.Allreduce(x, y)
        stand_in.refused["cuMemcpyAsync"] = 700
        with pytest.raises(DeviceError, match="CUDA_ERROR_700"):
            comm.Allreduce(x, y)
        del stand_in.refused["cuMemcpyAsync"]
        for _ in range(2):
            with pytest.raises(DeviceError, match="has failed before"):
                comm.Allreduce(x, y)
        comm.Allreduce(np.ones(3), out := np.empty(3))  # which do not go by the device
        assert (out == SIZE).all()


def test_events_are_given_back():
    with on_devices() as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(50)), DeviceArray(stand_in, np.zeros(50))
        comm.Iallreduce(x, y).Wait()
        comm.Allreduce(x, y)
        assert not stand_in.events
        stand_in.refused["cuEventRecord"] = 700
        with pytest.raises(DeviceError):
            comm.Iallreduce(x, y)
        del stand_in.refused["cuEventRecord"]
        gc.collect()
        assert not stand_in.events


@pytest.mark.parametrize("route", ROUTES)
def test_nothing_keeps_arrays_alive(route):
    with on_devices() as (comm, stand_in):
        arrays = [DeviceArray(stand_in, np.ones(9)) for _ in range(2)]
        gone = [weakref.ref(array) for array in arrays]
        comm.Allreduce(*arrays, transport=route)
        comm.Iallreduce(*arrays, transport=route).Wait()
        request = comm.Allreduce_init(*arrays, transport=route)
        request.Start()
        request.Wait()
        request.Free()
        stand_in._drain()
        del arrays
        gc.collect()
        assert [array() for array in gone] == [None, None]
        assert request is not None


def test_groups_leave_them_by_themselves():
    with on_devices() as (comm, stand_in):
        arrays = [DeviceArray(stand_in, np.full(5, float(RANK))) for _ in range(3)]
        host = np.ones(4)
        with comm.group():
            for array in arrays:
                comm.Allreduce(MPI.IN_PLACE, array)
            comm.Allreduce(MPI.IN_PLACE, host)
        assert (host == SIZE).all()
        assert all((array.get() == sum(range(SIZE))).all() for array in arrays)


def test_plans_are_kept():
    with on_devices() as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(100)), DeviceArray(stand_in, np.zeros(100))
        comm.Allreduce(x, y)
        plans = set(comm._context.plans)
        other = DeviceArray(stand_in, np.zeros(100))
        comm.Allreduce(x, other)
        assert set(comm._context.plans) == plans
        assert (other.get() == SIZE).all()


def test_memory_is_given_back():
    with on_devices() as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(40_000)), DeviceArray(stand_in, np.zeros(40_000))
        mine = len(stand_in.memory)
        for route in ROUTES:
            comm.Allreduce(x, y, transport=route)
        assert len(stand_in.memory) > mine
        other = comm.Dup()
        other.Allreduce(x, y)
        other.Free()
        comm.Free()
        assert len(stand_in.memory) == mine
        comm._context.comm = MPI.COMM_NULL
        comm.Free = lambda: None


class TestRefusals:
    def test_host_and_device_memory_in_one_call(self):
        with on_devices() as (comm, stand_in):
            array = DeviceArray(stand_in, np.ones(3))
            with pytest.raises(TypeError, match="sendbuf is in host memory and recvbuf on a device"):
                comm.Allreduce(np.ones(3), array)
            with pytest.raises(TypeError, match="recvbuf is in host memory and sendbuf on a device"):
                comm.Allgather(array, np.ones(3 * SIZE))

    def test_host_memory_after_the_native_collective_was_remembered(self):
        with on_devices() as (comm, stand_in):
            comm.Allreduce(np.ones(3), np.empty(3), algorithm="native")
            comm.Allreduce(np.ones(3), np.empty(3), algorithm="native")
            with pytest.raises(TypeError, match="host memory"):
                comm.Allreduce(DeviceArray(stand_in, np.ones(3)), np.empty(3), algorithm="native")

    def test_several_devices(self):
        with standing_in(devices=2) as stand_in:
            comm = mpicoll.Communicator(WORLD.Dup())
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3), device=1)
            with pytest.raises(ValueError, match="sendbuf on device 0 and recvbuf on device 1"):
                comm.Allreduce(x, y)
            comm.Allreduce(x, DeviceArray(stand_in, np.ones(3)))
            with pytest.raises(ValueError, match="this communicator's collectives are on device 0"):
                comm.Allreduce(y, DeviceArray(stand_in, np.ones(3), device=1))
            comm.Free()

    def test_a_stream_of_another_device(self):
        with standing_in(devices=2) as stand_in:
            comm = mpicoll.Communicator(WORLD.Dup())
            with driver.current(1):
                stream = driver.get("cuStreamCreate", driver.NON_BLOCKING)
            x, y = DeviceArray(stand_in, np.ones(3), stream=stream), DeviceArray(stand_in, np.zeros(3))
            for call in (comm.Allreduce, comm.Iallreduce):
                with pytest.raises(DeviceError, match=r"expected one of device 0: .*INVALID_HANDLE"):
                    call(x, y)
            comm.Allreduce(y, DeviceArray(stand_in, np.ones(3)))  # nothing was sent, nothing is broken
            comm.Free()

    def test_native_where_the_library_would_crash(self):
        with on_devices("0") as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3))
            with pytest.raises(DeviceError, match="not known to take device memory"):
                comm.Allreduce(x, y, algorithm="native")

    def test_native_where_it_cannot_serve(self):
        own = mpicoll.op(lambda a, b: a + b)
        with on_devices() as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3))
            with pytest.raises(ValueError, match="AVG is not an op of MPI's"):
                comm.Allreduce(x, y, op=mpicoll.AVG, algorithm="native")
            with pytest.raises(TypeError, match="the user's op reads the host's memory only"):
                comm.Allreduce(x, y, op=own, algorithm="native")
            with pytest.raises(ValueError, match="native takes no parameters"):
                comm.Allreduce(x, y, algorithm="native", transport="mpi")
            with pytest.raises(TypeError, match="do not wait for a device when they start"):
                comm.Allreduce_init(x, y, algorithm="native")
        own.Free()

    @pytest.mark.parametrize("name", ["Alltoallw", "Ialltoallw"])
    def test_collectives_without_schedules(self, name):
        with on_devices("0", guarded=True) as (comm, stand_in):
            x = DeviceArray(stand_in, np.ones(SIZE))
            spec = [x, ([1] * SIZE, [8 * rank for rank in range(SIZE)]), [MPI.DOUBLE] * SIZE]
            with pytest.raises(DeviceError, match=f"{name}: device memory given, but there is no schedule"):
                getattr(comm, name)(spec, spec)
            grid = comm.Create_cart([SIZE], [True])
            for method in ("Neighbor_allgather", "Ineighbor_alltoall", "Neighbor_alltoallv"):
                with pytest.raises(DeviceError, match=f"{method}: device memory given"):
                    getattr(grid, method)(x, x)
            host = np.zeros(2)
            grid.Neighbor_allgather(np.full(1, float(RANK)), host)
            assert host.tolist() == [(RANK - 1) % SIZE, (RANK + 1) % SIZE]
            grid.Free()

    def test_routes(self):
        with on_devices("0") as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3))
            with pytest.raises(ValueError, match="transport 'shared' given, expected auto, ipc, mpi, staged"):
                comm.Allreduce(x, y, transport="shared")
            if SIZE > 1:
                with pytest.raises(DeviceError, match="mpi asked for, but MPI is not CUDA-aware"):
                    comm.Allreduce(x, y, transport="mpi")

    @pytest.mark.skipif(SIZE == 1, reason="there are no others")
    def test_memory_that_others_cannot_open(self):
        with on_devices("0") as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(30_000)), DeviceArray(stand_in, np.ones(30_000))
            if RANK == SIZE - 1:  # one is enough
                stand_in.refused["cuIpcGetMemHandle"] = 801
            with pytest.raises(DeviceError, match="CUDA_ERROR_801"):
                comm.Allreduce(x, y, transport="ipc")
            comm.Allreduce(x, y)  # another way
            assert (y.get() == SIZE).all()

    def test_holes(self):
        with on_devices() as (comm, stand_in):
            strided = MPI.DOUBLE.Create_vector(2, 1, 2).Commit()
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3))
            with pytest.raises(TypeError, match="device memory with a datatype with holes"):
                comm.Bcast([x, 1, strided])
            strided.Free()
            comm.Bcast(y)

    def test_read_only(self):
        with on_devices() as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3), readonly=True)
            with pytest.raises(ValueError, match="recvbuf is read-only"):
                comm.Allreduce(x, y)

    def test_algorithms(self):
        with on_devices() as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3))
            with pytest.raises(ValueError, match="unknown"):
                comm.Allreduce(x, y, algorithm="nothing")
            with pytest.raises(ValueError, match="chunks"):
                comm.Allreduce(x, y, algorithm="ring", chunks=3)
            with pytest.raises(ValueError, match="expected an algorithm with them"):
                comm.Allreduce(x, y, chunks=3)

    @pytest.mark.skipif(SIZE > 1, reason="the others would wait")
    def test_what_the_driver_refuses(self):
        with on_devices() as (comm, stand_in):
            x, y = DeviceArray(stand_in, np.ones(3)), DeviceArray(stand_in, np.ones(3))
            comm.Allreduce(x, y, transport="mpi")
            stand_in.refused["cuMemcpyAsync"] = 700
            with pytest.raises(DeviceError, match="CUDA_ERROR_700"):
                comm.Allreduce(x, y, transport="mpi")
            del stand_in.refused["cuMemcpyAsync"]

    @pytest.mark.parametrize("count", [0, 3])
    def test_arrays_of_the_hosts_that_say_they_are_on_a_gpu(self, count):
        """As mpi4py's own tests have them; MPI takes them."""

        class Array:
            def __init__(self, values):
                self.values = values
                self.__cuda_array_interface__ = values.__array_interface__ | {"version": 3}

        if driver.trouble() == "":
            pytest.skip("there is a driver, which may know all of the host's memory")
        x, y = np.ones(count), np.zeros(count)
        comm = mpicoll.Communicator(WORLD)
        for algorithm in ("auto", "ring", "native"):
            y[:] = 0
            comm.Allreduce(Array(x), Array(y), algorithm=algorithm)
            assert (y == SIZE).all()
            comm.Allreduce(x, Array(y), algorithm=algorithm)  # among others
        comm.Alltoallw(
            [Array(x), [0] * SIZE, [0] * SIZE, [MPI.DOUBLE] * SIZE],
            [Array(y), [0] * SIZE, [0] * SIZE, [MPI.DOUBLE] * SIZE],
        )

    def test_no_driver(self):
        class Array:
            __cuda_array_interface__ = {  # noqa: RUF012
                "shape": (3,), "typestr": "<f8", "data": (4096, False), "version": 3, "strides": None,
            }  # fmt: skip

        if driver.trouble() == "":
            pytest.skip("there is one")
        with pytest.raises(DeviceError, match="no CUDA driver"):
            mpicoll.Communicator(WORLD).Allreduce(Array(), Array())


def test_settings():
    with on_devices(MPICOLL_DEVICE="staged", MPICOLL_ALLREDUCE="ring") as (comm, stand_in):
        x, y = DeviceArray(stand_in, np.ones(90_000)), DeviceArray(stand_in, np.zeros(90_000))
        comm.Allreduce(x, y)
        plan = next(plan for plan in comm._context.plans.values() if hasattr(plan, "route"))
        assert (plan.route, plan.algorithm) == ("staged", "ring")
        assert (y.get() == SIZE).all()


def test_a_wrong_setting_is_refused(monkeypatch):
    monkeypatch.setenv("MPICOLL_DEVICE", "wrong")
    with pytest.raises(ValueError, match="MPICOLL_DEVICE: 'wrong' given, expected auto, ipc, mpi, staged"):
        mpicoll.Communicator(WORLD.Dup())


def test_without_kernels_reductions_go_through_the_host(monkeypatch):
    with on_devices() as (comm, stand_in):

        def missing(*_):
            raise DeviceError('no numba-cuda: pip install "mpicoll[cuda]"')

        monkeypatch.setattr(functions.cuda, "combine", missing)
        x, y = DeviceArray(stand_in, np.ones(90_000)), DeviceArray(stand_in, np.zeros(90_000))
        with pytest.warns(UserWarning, match="mpicoll\\[cuda\\]"):
            comm.Allreduce(x, y)
        assert (y.get() == SIZE).all()
        with pytest.raises(DeviceError, match="mpicoll\\[cuda\\]"):
            comm.Allreduce(x, y, transport="mpi")
        comm.Bcast(y)
