"""Measuring collectives of device memory, on a stand-in for the CUDA driver: see ``cuda_stand_in.py``."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_stand_in import standing_in
from mpi4py import MPI

from mpicoll.bench import data, nccl, records
from mpicoll.bench import device as on_device
from mpicoll.bench.measure import ROUNDS, measure
from mpicoll.bench.run import benchmark, competitors
from mpicoll.cli.bench import ROUTES, command
from mpicoll.device.aware import Awareness
from mpicoll.errors import DeviceError

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
RANK, SIZE = WORLD.rank, WORLD.size
FLOAT32 = np.dtype("float32")
STAGED = "auto:transport=staged"


@pytest.fixture(autouse=True)
def stand_in(monkeypatch):
    monkeypatch.setenv("MPICOLL_CUDA_AWARE", "1")
    with standing_in() as found:
        yield found


@pytest.fixture
def world(stand_in):
    """Give a communicator that goes before the stand-in does, and all that ours have on its device."""
    comm = WORLD.Dup()
    yield comm
    comm.Free()


def once(world, calls, devices, count=100, dtype=FLOAT32, **options):
    return measure(
        world, calls, count, dtype, options.pop("op", "SUM"), min_time=1e-3, memory=devices.buffers, **options
    )


@pytest.mark.parametrize(
    ("collective", "in_place"),
    [
        ("allreduce", False),
        ("allreduce", True),
        ("bcast", False),
        ("scatter", True),
        ("reduce_scatter", True),
    ],
)
def test_routes_are_right_and_refusals_have_reasons(world, collective, in_place):
    devices = on_device.find(world)
    op = "SUM" if "reduce" in collective else ""
    calls = competitors(world, ROUTES.split(","), op, collective=collective, devices=devices)
    timings, refusals = once(world, calls, devices, 60, op=op, collective=collective, in_place=in_place)
    assert {label: timing.wrong for label, timing in timings.items()} == dict.fromkeys(timings, 0)
    assert {*timings, *refusals} == {"native", *ROUTES.split(",")}
    assert refusals.keys() == {"native", "nccl"}
    assert "not known to take device memory" in refusals["native"]
    if SIZE > 1:
        assert f"{SIZE} ranks share 1" in refusals["nccl"]


def test_bfloat16(world):
    devices = on_device.find(world)
    calls = competitors(world, ["auto", STAGED], "SUM", devices=devices)
    timings, _ = once(world, calls, devices, dtype=data.find_dtype("bfloat16"))
    assert {label: timing.wrong for label, timing in timings.items()} == {"auto": 0, STAGED: 0}


@pytest.mark.parametrize("rank", sorted({0, SIZE - 1}))
def test_one_wrong_element_on_the_device_of_one_rank_is_counted(world, rank):
    devices = on_device.find(world)
    ours = competitors(world, [STAGED], "SUM", devices=devices)[STAGED]

    def broken(send, recv):
        ours(send, recv)
        if rank == RANK:
            host = np.empty(recv.shape, recv.dtype)
            recv.get(host)
            host[17] += 1
            recv.put(host)

    timings, _ = once(world, {"broken": broken, "idle": lambda send, recv: None}, devices)
    assert timings["broken"].wrong == len(timings["broken"].samples) >= ROUNDS
    assert timings["idle"].wrong == 100 * SIZE * len(timings["idle"].samples)


@pytest.mark.mpi(min_size=2)
def test_what_is_refused_on_one_rank_only_is_an_error(world, monkeypatch):
    def picky(send, recv):
        if RANK == SIZE - 1:
            raise DeviceError("not on this rank")
        if waits:
            WORLD.Barrier()

    picky.prepare = lambda send, recv: None
    waits = False
    with pytest.raises(RuntimeError, match=rf"on ranks \[{SIZE - 1}\] only: not on this rank"):
        once(world, {"picky": picky}, on_device.find(world))
    waits = True
    monkeypatch.setattr("mpicoll.bench.measure.PATIENCE", 0.1)

    def run():
        try:
            once(world, {"picky": picky}, on_device.find(world))
        except DeviceError:  # where a job would end; here the others are let out
            WORLD.Barrier()
            world.allgather("not on this rank")
            raise

    # only this rank knows, until the others come back
    with pytest.raises(DeviceError if RANK == SIZE - 1 else RuntimeError, match="not on this rank"):
        run()


def test_memory_is_freed(stand_in):
    before = len(stand_in.memory)
    array = on_device.DeviceArray(np.arange(10.0), 0)
    assert len(stand_in.memory) == before + 1
    with pytest.raises(ValueError, match="array of 72 bytes given, expected 80"):
        array.get(np.empty(9))
    del array
    assert len(stand_in.memory) == before
    assert on_device.DeviceArray(np.empty(0), 0).address == 0


def test_the_baseline_is_native_where_the_library_can(world):
    devices = on_device.find(world)
    assert devices.baseline == STAGED
    able = devices._replace(awareness=Awareness(True, True, "so it is"))
    assert able.baseline == "native"
    calls = competitors(world, ["auto"], "SUM", devices=able)
    # host memory stands in for the device's, so MPI's own collective can in fact read it
    (rows, refusals), *_ = benchmark(
        world, calls, [400], dtype=FLOAT32, op="SUM", where={"ranks": SIZE}, min_time=1e-3, devices=able
    )
    assert not refusals
    assert [row["algorithm"] for row in rows] == ["native", "auto"]
    assert [row["wrong"] for row in rows] == [0, 0]
    assert rows[1]["ratio"] == pytest.approx(rows[0]["median_us"] / rows[1]["median_us"])


def test_the_command(world, monkeypatch, tmp_path):
    monkeypatch.setattr("mpicoll.cli.bench.start_mpi", lambda: world)
    path = WORLD.bcast(str(tmp_path / "records.jsonl"))
    options = ["--sizes", "40,4Ki", "--dtype", "float32", "--min-time", "0.001", "--json", path]
    result = CliRunner().invoke(
        command, ["allreduce", "--device", "cuda", "--algorithms", "auto,nccl", *options]
    )
    assert result.exception is None, result.exception
    assert result.return_value in (0, None)
    if RANK > 0:
        return
    found = records.read(path)
    assert [(row["size"], row["algorithm"]) for row in found] == [
        (size, name) for size in (40, 4096) for name in (STAGED, "auto")
    ]
    for row in found:
        assert (row["device"], row["devices"], row["baseline"], row["wrong"]) == ("stand-in", 1, STAGED, 0)
        assert row["cuda_aware"]["messages"] is True
    assert [row["ratio"] for row in found[::2]] == [1, 1]
    assert "# left out: native, 40 B to 4 KiB: " in result.stdout
    assert "1 device (stand-in)" in result.stdout


class TestNCCL:
    """Whether NCCL is told the right things; it is the buffers' host memory that stands in for it here."""

    @pytest.fixture
    def devices(self, world, monkeypatch):
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "cupy.cuda", _cupy())
        devices = on_device.find(world)
        return devices._replace(ids=tuple(bytes([rank]) for rank in range(SIZE)))

    @pytest.mark.parametrize(
        ("collective", "in_place"),
        [
            *((name, False) for name in ("allgather", "allreduce", "bcast", "reduce", "reduce_scatter")),
            *((name, True) for name in ("allgather", "allreduce", "reduce")),
        ],
    )
    def test_collectives(self, world, devices, collective, in_place):
        op = "SUM" if "reduce" in collective else ""
        call = nccl.competitor(world, devices, collective, op, SIZE - 1)
        options = {"collective": collective, "in_place": in_place, "root": SIZE - 1, "op": op}
        timings, refusals = once(world, {"nccl": call}, devices, 60, **options)
        assert not refusals
        assert timings["nccl"].wrong == 0

    def test_refusals(self, world, devices):
        for collective, op, reason in (("scan", "SUM", "no scan"), ("allreduce", "BOR", "no BOR")):
            with pytest.raises(DeviceError, match=reason):
                nccl.competitor(world, devices, collective, op, 0)()
        call = nccl.competitor(world, devices, "allreduce", "SUM", 0)
        _, refusals = once(world, {"nccl": call}, devices, dtype=np.dtype("int16"))
        assert "nccl has no int16" in refusals["nccl"]


def _cupy():
    """As much of ``cupy.cuda`` as is used, with CuPy's order of arguments."""

    class Device:
        def __init__(self, number):
            pass

        def __enter__(self):
            pass

        def __exit__(self, *_):
            pass

    def memory(address, count):
        return np.frombuffer(MPI.memory.fromaddress(address, 4 * count), FLOAT32)

    class Comm:
        def __init__(self, size, number, rank):
            assert (size, number, rank) == (SIZE, 7, RANK)

        def size(self):
            return SIZE

        def rank_id(self):
            return RANK

        def allGather(self, sent, received, count, kind, stream):  # noqa: N802
            assert (kind, stream) == (32, 5)
            WORLD.Allgather(memory(sent, count).copy(), memory(received, count * SIZE))

        def allReduce(self, sent, received, count, kind, op, stream):  # noqa: N802
            assert (kind, op, stream) == (32, "sum", 5)
            WORLD.Allreduce(memory(sent, count).copy(), memory(received, count))

        def broadcast(self, sent, received, count, kind, root, stream):
            assert (kind, stream, sent) == (32, 5, received)
            WORLD.Bcast(memory(received, count), root)

        def reduce(self, sent, received, count, kind, op, root, stream):
            assert (kind, op, stream) == (32, "sum", 5)
            WORLD.Reduce(memory(sent, count).copy(), memory(received, count), MPI.SUM, root)

        def reduceScatter(self, sent, received, count, kind, op, stream):  # noqa: N802
            assert (kind, op, stream) == (32, "sum", 5)
            WORLD.Reduce_scatter_block(memory(sent, count * SIZE).copy(), memory(received, count))

    library = SimpleNamespace(
        available=True,
        get_unique_id=lambda: 7,
        NcclCommunicator=Comm,
        NcclError=RuntimeError,
        NCCL_FLOAT32=32,
        NCCL_SUM="sum",
    )
    stream = SimpleNamespace(ptr=5, synchronize=lambda: None)
    return SimpleNamespace(nccl=library, Device=Device, Stream=lambda non_blocking: stream)
