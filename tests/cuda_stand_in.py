"""A CUDA driver for machines without a GPU: host memory stands in for that of devices.

It does what it is told as late as it may: what a stream is given is done when somebody waits for it, and it
is said once to be not ready before. What reads or overwrites something too early then gives wrong results.
With `guarded` the host cannot touch device memory at all: whoever tries ends with a segmentation fault.

Kernels are those of the CPU, one after the other.
"""

import ctypes
import itertools
import mmap
import os
import struct
import threading
from collections import defaultdict
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from mpicoll import kernels, ops
from mpicoll.device import driver, functions
from mpicoll.kernels import cuda

NOT_READY, INVALID_VALUE, INVALID_HANDLE, OUT_OF_MEMORY, NO_CONTEXT = 600, 1, 400, 2, 201
NAMES = {1: "CUDA_ERROR_INVALID_VALUE", 2: "CUDA_ERROR_OUT_OF_MEMORY", 400: "CUDA_ERROR_INVALID_HANDLE"}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
_kernel = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)


NEED_CONTEXT = {
    name
    for name in driver.FUNCTIONS
    if name.startswith(("cuMem", "cuStream", "cuEvent", "cuIpc", "cuModule", "cuLaunch", "cuCtxGetD"))
}


class StandIn:
    """The driver of one process.

    Parameters
    ----------
    devices : int
    room : int
        Bytes of memory of each.
    guarded : bool
        Whether device memory is out of the host's reach.
    """

    def __init__(self, devices=1, room=1 << 33, guarded=False):
        self.devices, self.room, self.guarded = devices, room, guarded
        self.memory = {}  # address: (mmap, bytes, file or None, device or None)
        self.streams = defaultdict(list)  # what is still to do
        self.done = defaultdict(int)  # how much has been done
        self.told = set()  # streams that were said to be not ready
        self.events, self.contexts = {}, {}  # the contexts of streams
        self.modules, self.handles = {}, itertools.count(1 << 12)
        self._lock, self._threads = threading.RLock(), threading.local()
        self.refused = {}  # function: code
        self.left = room  # what it says, whatever there is
        self.crossed = 0  # bytes that devices have copied or read from the host, or copied there
        self.calls = defaultdict(int)
        self.texts = {}
        self.functions = {}
        for name, arguments in driver.FUNCTIONS.items():
            self.functions[name] = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(self._counted(name))

    @property
    def current(self):
        """The calling thread's contexts."""
        return vars(self._threads).setdefault("contexts", [])

    def _counted(self, name):
        function = getattr(self, name)

        def counted(*arguments):
            with self._lock:
                self.calls[name] += 1
                if name in NEED_CONTEXT and not self.current:
                    return NO_CONTEXT
                return self.refused.get(name) or function(*arguments) or 0

        return counted

    # -- devices -----------------------------------------------------------------------------

    def cuInit(self, flags):  # noqa: N802
        pass

    def cuDriverGetVersion(self, out):  # noqa: N802
        ctypes.c_int.from_address(out).value = 13000

    def cuGetErrorName(self, code, out):  # noqa: N802
        text = self.texts.setdefault(code, ctypes.c_char_p(NAMES.get(code, f"CUDA_ERROR_{code}").encode()))
        ctypes.c_void_p.from_address(out).value = ctypes.cast(text, ctypes.c_void_p).value

    cuGetErrorString = cuGetErrorName  # noqa: N815

    def cuDeviceGetCount(self, out):  # noqa: N802
        ctypes.c_int.from_address(out).value = self.devices

    def cuDeviceGet(self, out, number):  # noqa: N802
        if not 0 <= number < self.devices:
            return 101
        ctypes.c_int.from_address(out).value = number
        return 0

    def cuDeviceGetName(self, out, length, device):  # noqa: N802
        ctypes.memmove(out, b"stand-in\0", 9)

    def cuDeviceGetUuid_v2(self, out, device):  # noqa: N802
        ctypes.memmove(out, bytes([device] * 16), 16)

    def cuDeviceGetAttribute(self, out, which, device):  # noqa: N802
        ctypes.c_int.from_address(out).value = {75: 9, 76: 0, 16: 2}[which]

    def cuDeviceCanAccessPeer(self, out, device, peer):  # noqa: N802
        ctypes.c_int.from_address(out).value = 1

    def cuDevicePrimaryCtxRetain(self, out, device):  # noqa: N802
        _write(out, 500 + device)

    def cuCtxGetCurrent(self, out):  # noqa: N802
        _write(out, self.current[-1] if self.current else 0)

    def cuCtxGetDevice(self, out):  # noqa: N802
        ctypes.c_int.from_address(out).value = self.current[-1] - 500

    def cuCtxPushCurrent_v2(self, context):  # noqa: N802
        self.current.append(context)

    def cuCtxPopCurrent_v2(self, out):  # noqa: N802
        _write(out, self.current.pop())

    # -- memory ------------------------------------------------------------------------------

    def cuPointerGetAttribute(self, out, which, pointer):  # noqa: N802
        device = self._device(pointer)
        if device is None:
            return INVALID_VALUE
        ctypes.c_int.from_address(out).value = device
        return 0

    def _device(self, pointer):
        for address, (_, nbytes, _, device) in self.memory.items():
            if address <= pointer < address + nbytes:
                return device
        return None

    def cuMemGetInfo_v2(self, left, total):  # noqa: N802
        _write(left, self.left)
        _write(total, self.room)

    def cuMemAlloc_v2(self, out, nbytes):  # noqa: N802
        if nbytes > self.room or nbytes == 0:
            return OUT_OF_MEMORY if nbytes else INVALID_VALUE
        file = os.memfd_create("device")
        os.ftruncate(file, nbytes)
        _write(out, self._map(file, nbytes, self.current[-1] - 500))
        return 0

    def _map(self, file, nbytes, device):
        memory = mmap.mmap(file, nbytes) if file is not None else mmap.mmap(-1, nbytes)
        address = np.frombuffer(memory, np.uint8).ctypes.data
        self.memory[address] = memory, nbytes, file, device
        if device is not None:
            self._protect(address, 0)
        return address

    def _protect(self, address, access):
        if self.guarded:
            _, nbytes, _, device = self.memory[address]
            if device is not None and _libc.mprotect(address, nbytes, access):
                raise OSError(ctypes.get_errno(), "mprotect")

    def cuMemFree_v2(self, address):  # noqa: N802
        if address not in self.memory:
            return INVALID_VALUE
        self._drain()
        self._protect(address, mmap.PROT_READ | mmap.PROT_WRITE)
        *_, file, _ = self.memory.pop(address)
        if file is not None:
            os.close(file)
        return 0

    def cuMemHostAlloc(self, out, nbytes, flags):  # noqa: N802
        if nbytes == 0:
            return INVALID_VALUE
        _write(out, self._map(None, nbytes, None))
        return 0

    cuMemFreeHost = cuMemFree_v2  # noqa: N815

    def cuIpcGetMemHandle(self, out, address):  # noqa: N802
        _, nbytes, file, _ = self.memory[address]
        ctypes.memmove(out, struct.pack("qqq", os.getpid(), file, nbytes).ljust(64, b"\0"), 64)

    def cuIpcOpenMemHandle_v2(self, out, handle, flags):  # noqa: N802
        process, file, nbytes = struct.unpack_from("qqq", bytes(handle.reserved))
        if process == os.getpid():
            return 201  # as the real one
        opened = os.open(f"/proc/{process}/fd/{file}", os.O_RDWR)
        _write(out, self._map(opened, nbytes, self.current[-1] - 500))
        return 0

    cuIpcCloseMemHandle = cuMemFree_v2  # noqa: N815

    # -- streams and events ------------------------------------------------------------------

    def cuStreamCreate(self, out, flags):  # noqa: N802
        stream = next(self.handles)
        self.contexts[stream] = self.current[-1]
        _write(out, stream)

    def _foreign(self, stream):
        return self.contexts.get(stream, self.current[-1]) != self.current[-1]

    def cuStreamDestroy_v2(self, stream):  # noqa: N802
        self.streams.pop(stream, None)

    def _give(self, stream, work):
        self.streams[stream].append(work)
        self.told.discard(stream)

    def _run(self, stream, upto=None):
        """Do what a stream has been given, or so much of all that it was ever given."""
        while self.streams[stream] and (upto is None or self.done[stream] < upto):
            work = self.streams[stream].pop(0)
            self.done[stream] += 1
            with self.reached():
                work()

    def _drain(self):
        for stream in list(self.streams):
            self._run(stream)

    @contextmanager
    def reached(self):
        """Let device memory be touched."""
        for address in list(self.memory):
            self._protect(address, mmap.PROT_READ | mmap.PROT_WRITE)
        try:
            yield
        finally:
            for address in list(self.memory):
                self._protect(address, 0)

    def cuStreamSynchronize(self, stream):  # noqa: N802
        if self._foreign(stream):
            return INVALID_HANDLE
        self._run(stream)
        return 0

    def cuStreamQuery(self, stream):  # noqa: N802
        if self.streams[stream] and stream not in self.told:
            self.told.add(stream)
            return NOT_READY
        self._run(stream)
        return 0

    def cuEventCreate(self, out, flags):  # noqa: N802
        handle = next(self.handles)
        self.events[handle] = (0, 0)
        _write(out, handle)

    def cuEventDestroy_v2(self, event):  # noqa: N802
        del self.events[event]

    def cuEventRecord(self, event, stream):  # noqa: N802
        if event not in self.events or self._foreign(stream):
            return INVALID_HANDLE
        self.events[event] = stream, self.done[stream] + len(self.streams[stream])
        return 0

    def cuEventSynchronize(self, event):  # noqa: N802
        self._run(*self.events[event])

    def cuStreamWaitEvent(self, stream, event, flags):  # noqa: N802
        upto = self.events[event]
        self._give(stream, lambda: self._run(*upto))

    # -- work --------------------------------------------------------------------------------

    def cuMemcpyAsync(self, out, source, nbytes, stream):  # noqa: N802
        if not out or not source:
            return INVALID_VALUE
        if (self._device(out) is None) != (self._device(source) is None):
            self.crossed += nbytes
        self._give(stream, lambda: ctypes.memmove(out, source, nbytes))
        return 0

    def cuMemcpy2DAsync_v2(self, copy, stream):  # noqa: N802
        c = driver.Copy2D.from_buffer_copy(ctypes.string_at(copy, ctypes.sizeof(driver.Copy2D)))
        assert c.srcMemoryType == c.dstMemoryType == driver.UNIFIED
        self.crossed += c.WidthInBytes * c.Height

        def work():
            for row in range(c.Height):
                out, source = c.dstDevice + row * c.dstPitch, c.srcDevice + row * c.srcPitch
                ctypes.memmove(out, source, c.WidthInBytes)

        self._give(stream, work)

    def cuModuleLoadData(self, out, code):  # noqa: N802
        handle = next(self.handles)
        self.modules[handle] = _images[ctypes.string_at(code).decode()]
        _write(out, handle)

    def cuModuleGetFunction(self, out, module, name):  # noqa: N802
        _write(out, module)

    def cuLaunchKernel(self, function, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra):  # noqa: N802
        run, count, operands, item = self.modules[function]
        pointers = (ctypes.c_uint64 * count).from_address(parameters)
        arguments = [ctypes.c_int64.from_address(pointer).value for pointer in pointers]
        addresses = arguments[3 : 3 + operands] if count > 3 else []
        self.crossed += sum(arguments[1] * item for a in addresses if self._device(a) is None)
        self._give(stream, lambda: run(*arguments))


def _write(address, value):
    ctypes.c_uint64.from_address(address).value = value


# -- kernels ---------------------------------------------------------------------------------

_images = {}


def _image(name, run, arguments, operands=0, item=0):
    _images[name] = run, arguments, operands, item
    return cuda.Image(name.encode(), "kernel", 4)


def _combine(op, dtype, operands, capability):
    kernel = kernels.kernel(op, dtype) if isinstance(op, str) else op.kernel(dtype)
    call = _kernel(kernel.address)

    def run(out, n, left, *sources):
        value = (ctypes.c_uint8 * (n * dtype.itemsize))()
        ctypes.memmove(value, sources[0], len(value))
        here = ctypes.addressof(value)
        for j in range(1, operands):
            first, second = (sources[j], here) if left >> j & 1 else (here, sources[j])
            call(here, first, second, n)
        ctypes.memmove(out, here, len(value))

    name = op if isinstance(op, str) else f"op {op.token}"
    return _image(f"combine {name} {dtype} {operands}", run, 11, operands, dtype.itemsize)


def _divide(dtype, capability):
    def run(out, n, size):
        memory = (ctypes.c_uint8 * (n * dtype.itemsize)).from_address(out)
        ops.divide(np.frombuffer(memory, dtype), size)

    return _image(f"divide {dtype}", run, 3)


@contextmanager
def standing_in(**options):
    """Use a stand-in for the driver, and its kernels."""
    stand_in = StandIn(**options)
    theirs = functions.cuda
    driver.stand_in(stand_in.functions)
    functions.cuda = SimpleNamespace(combine=_combine, divide=_divide, Image=cuda.Image)
    functions.forget()
    try:
        yield stand_in
    finally:
        functions.cuda = theirs
        functions.forget()
        driver.stand_in(None)


class DeviceArray:
    """An array on a device, computed by work that is still under way in a stream."""

    def __init__(self, stand_in, array, device=0, stream=None, readonly=False, offset=0):
        array = np.asarray(array)
        self.shape, self.dtype, self.size, self._stand_in = array.shape, array.dtype, array.size, stand_in
        self._readonly, self._stream = readonly, next(stand_in.handles) if stream is None else stream
        self._base = 0
        if array.nbytes:
            with driver.current(device):
                self._base = driver.get("cuMemAlloc_v2", array.nbytes + offset)
        self._address = self._base + offset if array.nbytes else 0
        content = array.tobytes(order="A")
        stand_in._give(self._stream, lambda: ctypes.memmove(self._address, content, len(content)))

    @property
    def __cuda_array_interface__(self):
        kind = {"descr": self.dtype.descr} if self.dtype.names else {}
        return kind | {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self._address, self._readonly),
            "version": 3,
            "strides": None,
            "stream": self._stream,
        }

    def get(self):
        """Read it, as a stream that waits for nothing would."""
        result = np.empty(self.shape, self.dtype)
        if result.nbytes:
            with self._stand_in.reached():
                ctypes.memmove(result.ctypes.data, self._address, result.nbytes)
        return result
