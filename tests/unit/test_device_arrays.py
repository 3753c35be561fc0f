"""Arrays on a GPU, read by both protocols: the objects and the driver's functions are stand-ins."""

import ctypes
import gc
import sys
import types
import weakref

import numpy as np
import pytest

from mpicoll import dlpack
from mpicoll.device import arrays, driver
from mpicoll.device.driver import DeviceError

ADDRESS, DEVICE, OURS = 0x7F00_0000_1000, 3, 77
NAME = "allreduce: sendbuf"


@pytest.fixture(autouse=True)
def calls():
    """Let a driver stand in whose memory is all on one device; what it was asked, but for contexts."""
    asked = []

    def record(name):
        def function(*arguments):
            asked.append((name, *arguments))
            return 0

        return function

    def write(word, value):
        ctypes.cast(word, ctypes.POINTER(ctypes.c_uint64))[0] = value
        return 0

    def pointer(word, attribute, address):
        assert attribute == driver.POINTER_DEVICE
        return write(word, DEVICE) if address else 1

    def text(code, word):
        return 1

    driver.stand_in(
        {
            "cuDeviceGet": write,
            "cuDevicePrimaryCtxRetain": lambda word, device: write(word, 1000 + device),
            "cuCtxGetCurrent": lambda word: write(word, 0),
            "cuCtxPushCurrent_v2": record("push"),
            "cuCtxPopCurrent_v2": lambda word: record("pop")() or write(word, 0),
            "cuPointerGetAttribute": pointer,
            "cuEventCreate": lambda word, flags: record("create")(flags) or write(word, 5),
            "cuEventRecord": record("record"),
            "cuStreamWaitEvent": record("wait"),
            "cuEventDestroy_v2": record("destroy"),
            "cuGetErrorName": text,
            "cuGetErrorString": text,
        }
    )
    yield asked
    driver.stand_in(None)


class Interface:
    """An array with ``__cuda_array_interface__``."""

    def __init__(self, **entries):
        plain = {"shape": (2, 3), "typestr": "<f4", "data": (ADDRESS, False), "version": 3}
        self.__cuda_array_interface__ = plain | entries


_new = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


class Exporter:
    """An array with DLPack, of any version."""

    def __init__(self, code=2, bits=32, lanes=1, shape=(2, 3), strides=(3, 1), **options):
        self.options = {"address": ADDRESS, "offset": 0, "flags": 0, "major": None, "device": (2, DEVICE)}
        self.options |= options
        self.type, self.shape, self.strides = (code, bits, lanes), shape, strides
        self.asked, self.freed = [], 0

    def __dlpack_device__(self):
        return self.options["device"]

    def __dlpack__(self, *, stream=None, **version):
        self.asked.append((stream, version))
        if self.options["major"] is None and version:
            raise TypeError("__dlpack__() got an unexpected keyword argument 'max_version'")
        tensor = dlpack._Tensor()
        tensor.data, tensor.byte_offset = self.options["address"], self.options["offset"]
        tensor.device[:] = self.options["device"]
        tensor.code, tensor.bits, tensor.lanes = self.type
        tensor.ndim = len(self.shape)
        tensor.shape = (ctypes.c_int64 * tensor.ndim)(*self.shape)
        if self.strides is not None:
            tensor.strides = (ctypes.c_int64 * tensor.ndim)(*self.strides)
        name, managed = b"dltensor", tensor
        if self.options["major"] is not None:
            name, managed = b"dltensor_versioned", dlpack._Versioned()
            managed.major, managed.flags, managed.tensor = (
                self.options["major"],
                self.options["flags"],
                tensor,
            )
        return self.capsule(managed, name)

    def capsule(self, managed, name):
        """Make a capsule that counts when it is freed unused, as the protocol has it."""

        def destroy(_capsule):
            self.freed += 1

        self.kept = managed, name, _destructor(destroy)
        return _new(ctypes.addressof(managed), name, ctypes.cast(self.kept[2], ctypes.c_void_p))


class Unreadable:
    """A tensor whose ``__cuda_array_interface__`` raises, as PyTorch's does."""

    error: Exception = RuntimeError("Can't get it: the tensor requires grad")

    @property
    def __cuda_array_interface__(self):
        raise self.error


def both(**options):
    class Tensor(Unreadable, Exporter):
        pass

    return Tensor(**options)


# What is an array on a GPU


@pytest.mark.parametrize(
    "thing",
    [
        Interface(),
        Unreadable(),
        Exporter(),
        Exporter(device=(13, 0)),
        both(),
    ],
    ids=["interface", "unreadable", "dlpack", "managed", "both"],
)
def test_on_a_gpu(thing, calls):
    assert arrays.is_device(thing)
    assert calls == []


@pytest.mark.parametrize(
    "thing",
    [
        np.zeros(3),
        b"x",
        None,
        [1],
        5,
        Exporter(device=(1, 0)),
        Exporter(device=(3, 0)),
        Exporter(device=(10, 0)),
    ],
    ids=["numpy", "bytes", "none", "list", "int", "host", "pinned", "rocm"],
)
def test_not_on_a_gpu(thing):
    assert not arrays.is_device(thing)


def test_a_subclass_of_numpys_is_not_asked():
    class Loud(np.ndarray):
        def __dlpack_device__(self):
            return 2, 0

    assert not arrays.is_device(np.zeros(3).view(Loud))


def test_a_host_tensor_whose_class_knows_gpus():
    class Tensor(Exporter):
        @property
        def __cuda_array_interface__(self):
            raise AttributeError("not on a GPU")

    assert not arrays.is_device(Tensor(device=(1, 0)))


def test_an_array_on_several_devices_is_one_that_cannot_be_read():
    class Sharded(Unreadable):
        error = ValueError("supported only for unsharded arrays")

        def __dlpack_device__(self):
            raise BufferError("only for unsharded arrays")

    assert arrays.is_device(Sharded())
    with pytest.raises(TypeError, match=r"^allreduce: sendbuf: Sharded given, .*unsharded arrays"):
        arrays.view(Sharded(), NAME)


# __cuda_array_interface__


def test_interface():
    thing = Interface(stream=9)
    found = arrays.view(thing, NAME)
    assert found == (ADDRESS, 24, 4, np.dtype("f4"), (2, 3), False, DEVICE, 9, thing)
    assert found.owner is thing


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"strides": None}, {}),
        ({"strides": (12, 4)}, {}),
        ({"strides": (4, 8)}, {}),
        ({"strides": [12, 4], "shape": [2, 3]}, {"shape": (2, 3)}),
        ({"shape": (1, 3), "strides": (-99, 4)}, {"nbytes": 12}),
        ({"shape": (3, 1), "strides": (4, 99)}, {"nbytes": 12}),
        ({"shape": (), "strides": ()}, {"nbytes": 4}),
        ({"version": 2}, {"stream": None}),
        ({"stream": None}, {"stream": None}),
        ({"stream": 0}, {"stream": None}),
        ({"stream": 1}, {"stream": 1}),
        ({"data": (ADDRESS, True)}, {"readonly": True}),
        ({"data": (np.int64(ADDRESS), 0)}, {"readonly": False}),
        ({"shape": (0, 3), "data": (0, False)}, {"address": 0, "nbytes": 0, "device": None}),
        ({"shape": (0, 3), "data": (None, False)}, {"address": 0}),
        ({"shape": (0, 3), "strides": (-1, 5)}, {"address": 0, "device": None}),
        ({"typestr": "<f4", "descr": [("", "<f4")]}, {"dtype": np.dtype("f4")}),
        ({"typestr": "|b1"}, {"dtype": np.dtype(bool), "nbytes": 6}),
        ({"typestr": "|V4", "descr": [("", "|V4")]}, {"dtype": np.dtype("V4")}),
        ({"typestr": "|V8", "descr": [("a", "<f4"), ("b", "<i4")]}, {"dtype": np.dtype("f4,i4")}),
        ({"typestr": "<c16", "shape": (1,), "data": (ADDRESS + 8, False)}, {"itemsize": 16}),
    ],
)
def test_interfaces_that_are_taken(entries, expected):
    if "descr" in entries and entries["typestr"] == "|V8":
        expected = {"dtype": np.dtype([("a", "<f4"), ("b", "<i4")]), "nbytes": 48}
    found = arrays.view(Interface(**entries), NAME)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("entries", "error", "message"),
    [
        ({"strides": (24, 4)}, ValueError, r"is not contiguous: strides \(24, 4\) for shape \(2, 3\)"),
        ({"strides": (12, -4)}, ValueError, r"is not contiguous: strides \(12, -4\)"),
        ({"strides": (0, 4)}, ValueError, r"is not contiguous: strides \(0, 4\)"),
        ({"strides": (12, 8)}, ValueError, r"is not contiguous"),
        (
            {"data": (ADDRESS + 2, False)},
            ValueError,
            r"is at address 0x7f0000001002, expected a multiple of 4",
        ),
        ({"typestr": ">f4"}, ValueError, r": dtype >f4 given, expected native byte order"),
        ({"typestr": "|V4", "descr": [("a", ">f4")]}, ValueError, "expected native byte order"),
        ({"typestr": "|O"}, TypeError, ": dtype object given, expected plain data"),
        ({"mask": Interface(typestr="|b1")}, TypeError, ": masked array given, expected plain data"),
        ({"typestr": "<q7"}, TypeError, "Interface given, expected an array on a GPU .*q7"),
        ({"typestr": None}, TypeError, "expected an array on a GPU .*__cuda_array_interface__"),
        ({"strides": (4,)}, TypeError, "expected an array on a GPU .*strides"),
        ({"shape": None}, TypeError, "expected an array on a GPU .*TypeError"),
        ({"shape": ("two",)}, TypeError, "expected an array on a GPU"),
        ({"data": ADDRESS}, TypeError, "expected an array on a GPU"),
        ({"data": ("x", False)}, TypeError, "expected an array on a GPU"),
        ({"stream": "blue"}, TypeError, "expected an array on a GPU"),
    ],
)
def test_interfaces_that_are_refused(entries, error, message):
    with pytest.raises(error, match=f"^{NAME}.*{message}"):
        arrays.view(Interface(**entries), NAME)


@pytest.mark.parametrize("interface", [{}, [], None, 5])
def test_an_interface_that_is_none(interface):
    thing = Interface()
    thing.__cuda_array_interface__ = interface
    with pytest.raises(TypeError, match=f"^{NAME}: Interface given, expected an array on a GPU"):
        arrays.view(thing, NAME)


def test_memory_that_is_not_cudas():
    driver.stand_in(
        {
            "cuPointerGetAttribute": lambda *_: 1,
            "cuGetErrorName": lambda *_: 1,
            "cuGetErrorString": lambda *_: 1,
        }
    )
    with pytest.raises(DeviceError, match="cuPointerGetAttribute"):
        arrays.view(Interface(), NAME)


@pytest.fixture(params=["no driver", "a driver that does not know the memory"])
def not_cudas(request, monkeypatch):
    """Let no memory be CUDA's."""
    if request.param == "no driver":
        monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
        driver.stand_in(None)
    else:
        names = "cuPointerGetAttribute", "cuGetErrorName", "cuGetErrorString"
        driver.stand_in(dict.fromkeys(names, lambda *_: 1))
    return request.param


@pytest.mark.parametrize("readonly", [False, True])
def test_an_array_of_the_hosts_that_says_it_is_on_a_gpu(not_cudas, readonly):
    """mpi4py's own tests have such."""
    values = np.arange(6.0).reshape(2, 3)
    data = values.ctypes.data, readonly
    for thing in (
        Interface(shape=(2, 3), typestr="<f8", data=data),
        Interface(shape=(2, 3), typestr="<f8", data=data, strides=(24, 8)),
    ):
        assert arrays.is_device(thing)
        view = arrays.view(thing, NAME)
        assert view.ctypes.data == values.ctypes.data
        assert view.flags.writeable != readonly
        np.testing.assert_array_equal(view, values)


def test_an_empty_array_where_there_is_no_driver(monkeypatch):
    monkeypatch.setattr(driver, "LIBRARY", "libno-such-driver.so.1")
    driver.stand_in(None)
    for address in (0, ADDRESS):
        thing = Interface(shape=(0, 3), typestr="<f8", data=(address, False))
        view = arrays.view(thing, NAME)
        assert isinstance(view, np.ndarray)
        assert (view.shape, view.dtype) == ((0, 3), np.float64)


def test_the_hosts_memory_is_kept(not_cudas):
    values = np.arange(6.0)
    thing = Interface(shape=(6,), typestr="<f8", data=(values.ctypes.data, False))
    thing.values, alive = values, weakref.ref(thing)
    view = arrays.view(thing, NAME)
    del thing, values
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("lazy", ["is_conj", "is_neg"])
@pytest.mark.parametrize("is_so", [True, False])
def test_a_tensor_whose_memory_is_yet_to_be_conjugated_or_negated(lazy, is_so):
    thing = Interface(typestr="<c8")
    setattr(thing, lazy, lambda: is_so)
    if is_so:
        with pytest.raises(ValueError, match=rf"{NAME}: {lazy}\(\) of the tensor is true"):
            arrays.view(thing, NAME)
    else:
        assert arrays.view(thing, NAME).nbytes == 48


@pytest.mark.parametrize("kind", [Interface, Exporter])
def test_jax_arrays_are_read_only(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(Array=kind))
    assert arrays.view(kind(), NAME).readonly


# DLPack


@pytest.mark.parametrize("major", [None, 1])
@pytest.mark.parametrize("make", [Exporter, both])
def test_dlpack(major, make):
    thing = make(major=major, offset=8)
    found = arrays.view(thing, NAME)
    assert found == (ADDRESS + 8, 24, 4, np.dtype("f4"), (2, 3), False, DEVICE, None, thing)
    # No host synchronisation, as None could be, and no -1.
    assert [stream for stream, _ in thing.asked] == [1] * (2 if major is None else 1)
    gc.collect()
    assert thing.freed == 1


def test_the_device_is_current_while_dlpack_is_asked(calls):
    class Strict(Exporter):
        def __dlpack__(self, **options):
            assert calls == [("push", 1000 + DEVICE)]
            return super().__dlpack__(**options)

    assert arrays.view(Strict(major=1), NAME).device == DEVICE
    assert calls == [("push", 1000 + DEVICE), ("pop",)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"strides": None}, {"nbytes": 24}),
        ({"strides": (1, 2)}, {"nbytes": 24}),
        ({"code": 0, "bits": 8}, {"dtype": np.dtype("i1")}),
        ({"code": 1, "bits": 16}, {"dtype": np.dtype("u2")}),
        ({"code": 5, "bits": 64}, {"dtype": np.dtype("c8")}),
        ({"code": 2, "bits": 32, "lanes": 2}, {"dtype": np.dtype("c8")}),
        ({"code": 6, "bits": 8}, {"dtype": np.dtype(bool)}),
        ({"major": 1, "flags": 1}, {"readonly": True}),
        ({"major": 1, "flags": 4}, {"readonly": False}),
        ({"shape": (0, 3), "address": None}, {"address": 0, "device": DEVICE}),
        ({"shape": (0, 3), "address": None, "device": (13, 0)}, {"device": 0}),
        ({"shape": (), "strides": None}, {"nbytes": 4, "shape": ()}),
    ],
)
def test_dlpack_that_is_taken(options, expected):
    found = arrays.view(Exporter(**options), NAME)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"strides": (4, 1)}, ValueError, r" is not contiguous: strides \(16, 4\) for shape \(2, 3\)"),
        ({"strides": (-3, 1)}, ValueError, " is not contiguous"),
        ({"offset": 2}, ValueError, " is at address"),
        ({"code": 3}, TypeError, ": DLPack type code 3 given, expected numbers"),
        ({"code": 10, "bits": 8}, TypeError, ": DLPack type code 10 given"),
        ({"lanes": 4}, TypeError, ": DLPack type code 2 given"),
        ({"code": 0, "lanes": 2}, TypeError, ": DLPack type code 0 given"),
        ({"major": 2}, TypeError, ": DLPack version 2 given, expected 0 or 1"),
        ({"major": 1, "flags": 2}, TypeError, ": a copy of the memory given"),
        ({"device": (1, 0)}, TypeError, ": Exporter given, expected an array on a GPU"),
    ],
)
def test_dlpack_that_is_refused(options, error, message):
    thing = Exporter(**options)
    with pytest.raises(error, match=f"^{NAME}{message}"):
        arrays.view(thing, NAME)
    gc.collect()
    assert thing.freed == (options.get("device") != (1, 0))


def test_no_capsule():
    thing = Exporter()
    thing.__dlpack__ = lambda **_: 5
    with pytest.raises(TypeError, match=f"^{NAME}: 5 given, expected a DLPack capsule"):
        arrays.view(thing, NAME)


def test_neither_can_be_read_and_both_say_why():
    class Tensor(Unreadable, Exporter):
        def __dlpack__(self, **options):
            raise BufferError("use tensor.detach()")

    with pytest.raises(
        TypeError, match=rf"^{NAME}: Tensor cannot be read: .*requires grad; use tensor.detach\(\)"
    ):
        arrays.view(Tensor(), NAME)


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    class Torch(Interface, Exporter):
        def __init__(self):
            Exporter.__init__(self, code=4, bits=16, major=1)
            Interface.__init__(self, typestr="<V2", version=2)

    for thing in (Exporter(code=4, bits=16), Torch()):
        found = arrays.view(thing, NAME)
        assert found.dtype == ml_dtypes.bfloat16
        assert (found.address, found.nbytes, found.device) == (ADDRESS, 12, DEVICE)


def test_bfloat16_without_ml_dtypes(monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(TypeError, match=f"^{NAME}: bfloat16 needs ml_dtypes"):
        arrays.view(Exporter(code=4, bits=16), NAME)


def test_numpys_own_capsules():
    for version in ({}, {"max_version": (1, 0)}):
        memory = np.zeros((2, 3), np.int16, order="F")
        if version:
            memory.flags.writeable = False
        try:
            capsule = memory.__dlpack__(**version)
        except (TypeError, BufferError):  # NumPy before 2.1
            continue
        found = dlpack.describe(capsule, NAME)
        assert found == (memory.ctypes.data, (2, 3), (2, 4), np.dtype("i2"), (1, 0), bool(version))
        references = sys.getrefcount(memory)
        del capsule
        assert sys.getrefcount(memory) == references - 1


# Waiting for the producer


def waited(thing, calls):
    found = arrays.view(thing, NAME)
    del calls[:]
    if hasattr(thing, "asked"):
        del thing.asked[:]
    arrays.wait_for_producer(thing, found, OURS)
    inside = [call for call in calls if call[0] not in ("push", "pop")]
    if inside:
        assert calls[0] == ("push", 1000 + DEVICE)
        assert calls[-1] == ("pop",)
    return inside


def by_event(stream):
    return [("create", driver.NO_TIMING), ("record", 5, stream), ("wait", OURS, 5, 0), ("destroy", 5)]


@pytest.mark.parametrize("stream", [1, 2, 0x55AA])
def test_wait_for_a_stream(stream, calls):
    assert waited(Interface(stream=stream), calls) == by_event(stream)


def test_our_own_stream_is_not_waited_for(calls):
    assert waited(Interface(stream=OURS), calls) == []


@pytest.mark.parametrize("entries", [{"version": 2}, {"stream": None}, {}])
def test_what_names_no_stream_is_waited_for_on_the_default_stream(entries, calls):
    assert waited(Interface(**entries), calls) == by_event(1)


@pytest.mark.parametrize("make", [Exporter, both])
def test_dlpack_makes_our_stream_wait(make, calls):
    thing = make()
    assert waited(thing, calls) == []
    assert [stream for stream, _ in thing.asked] == [OURS]
    assert calls == [("push", 1000 + DEVICE), ("pop",)]
    gc.collect()
    assert thing.freed == 2  # of view and wait


def test_dlpack_rather_than_an_interface_without_a_stream(calls):
    class Torch(Interface, Exporter):
        def __init__(self):
            Exporter.__init__(self)
            Interface.__init__(self, version=2)

    thing = Torch()
    assert waited(thing, calls) == []
    assert [stream for stream, _ in thing.asked] == [OURS]


def test_a_tensor_that_has_come_to_require_a_gradient(calls):
    class Torch(Exporter):
        requires_grad = False

        def __dlpack__(self, **options):
            if self.requires_grad:
                raise BufferError("use tensor.detach()")
            return super().__dlpack__(**options)

        def detach(self):
            twin = Torch()
            twin.asked = self.asked
            return twin

    thing = Torch()
    found = arrays.view(thing, NAME)
    del thing.asked[:]
    thing.requires_grad = True
    arrays.wait_for_producer(thing, found, OURS)
    assert [stream for stream, _ in thing.asked] == [OURS]


def test_the_stream_is_asked_for_anew(calls):
    thing = Interface(stream=8)
    found = arrays.view(thing, NAME)
    thing.__cuda_array_interface__["stream"] = 9
    del calls[:]
    arrays.wait_for_producer(thing, found, OURS)
    assert calls[1:-1] == by_event(9)


def test_nothing_is_waited_for_without_elements(calls):
    assert waited(Interface(shape=(0,), stream=9), calls) == []
    assert calls == []


def test_the_event_goes_where_the_driver_refuses(calls):
    thing = Interface(stream=9)
    found = arrays.view(thing, NAME)
    functions = dict(driver._standing_in, cuStreamWaitEvent=lambda *_: 1)
    driver.stand_in(functions)
    with pytest.raises(DeviceError, match="cuStreamWaitEvent"):
        arrays.wait_for_producer(thing, found, OURS)
    assert calls[-2:] == [("destroy", 5), ("pop",)]
