"""The functions of the CUDA driver, ``libcuda.so.1``, by name and by address.

The driver comes with the GPU, not with a package, so nothing needs to be installed for it, and compiled code
can call it as it calls MPI. A context is the device's primary one, that of CuPy, PyTorch, JAX and Numba, too.
"""

import ctypes
import functools
from collections.abc import Mapping
from typing import Any

LIBRARY = "libcuda.so.1"

NOT_READY = 600  # what cuStreamQuery says of work that is under way
UNSUPPORTED_PTX = 222  # what cuModuleLoadData says of PTX from a newer toolkit
EXTRA = 'pip install "mpicoll[cuda]"'

# Attributes, of cuda.h
POINTER_DEVICE = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
COMPUTE_MAJOR, COMPUTE_MINOR, PROCESSORS = 75, 76, 16  # CU_DEVICE_ATTRIBUTE_..., of a device
NO_TIMING = 2  # CU_EVENT_DISABLE_TIMING
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream
PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for all contexts
LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS

MAX_PITCH = (1 << 31) - 1  # bytes between rows of a copy, CU_DEVICE_ATTRIBUTE_MAX_PITCH
IPC_BYTES = 64  # of a handle of memory


class IpcHandle(ctypes.Structure):
    """``CUipcMemHandle``: how another process finds memory."""

    _fields_ = (("reserved", ctypes.c_ubyte * IPC_BYTES),)


def _side(name: str) -> list[tuple[str, Any]]:
    return [
        (f"{name}XInBytes", ctypes.c_size_t),
        (f"{name}Y", ctypes.c_size_t),
        (f"{name}MemoryType", ctypes.c_int),
        (f"{name}Host", ctypes.c_void_p),
        (f"{name}Device", ctypes.c_uint64),
        (f"{name}Array", ctypes.c_void_p),
        (f"{name}Pitch", ctypes.c_size_t),
    ]


class Copy2D(ctypes.Structure):
    """``CUDA_MEMCPY2D``: a copy of rows of bytes; with the type `UNIFIED` an address says where it is."""

    _fields_ = (
        *_side("src"),
        *_side("dst"),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
    )


UNIFIED = 4  # CU_MEMORYTYPE_UNIFIED

_int, _word, _size, _out = ctypes.c_int, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p

#: The functions and the types of their arguments; all give a CUresult. Handles and addresses are integers.
FUNCTIONS: dict[str, tuple] = {
    "cuInit": (ctypes.c_uint,),
    "cuDriverGetVersion": (_out,),
    "cuGetErrorName": (_int, _out),
    "cuGetErrorString": (_int, _out),
    "cuDeviceGetCount": (_out,),
    "cuDeviceGet": (_out, _int),
    "cuDeviceGetName": (_out, _int, _int),
    "cuDeviceGetUuid_v2": (_out, _int),
    "cuDeviceGetAttribute": (_out, _int, _int),
    "cuDeviceCanAccessPeer": (_out, _int, _int),
    "cuDevicePrimaryCtxRetain": (_out, _int),
    "cuCtxGetCurrent": (_out,),
    "cuCtxGetDevice": (_out,),
    "cuCtxPushCurrent_v2": (_word,),
    "cuCtxPopCurrent_v2": (_out,),
    "cuPointerGetAttribute": (_out, _int, _word),
    "cuMemGetInfo_v2": (_out, _out),
    "cuMemAlloc_v2": (_out, _size),
    "cuMemFree_v2": (_word,),
    "cuMemHostAlloc": (_out, _size, ctypes.c_uint),
    "cuMemFreeHost": (_word,),
    "cuMemcpyAsync": (_word, _word, _size, _word),
    "cuMemcpy2DAsync_v2": (_out, _word),
    "cuStreamCreate": (_out, ctypes.c_uint),
    "cuStreamDestroy_v2": (_word,),
    "cuStreamSynchronize": (_word,),
    "cuStreamQuery": (_word,),
    "cuStreamWaitEvent": (_word, _word, ctypes.c_uint),
    "cuEventCreate": (_out, ctypes.c_uint),
    "cuEventDestroy_v2": (_word,),
    "cuEventRecord": (_word, _word),
    "cuEventSynchronize": (_word,),
    "cuIpcGetMemHandle": (_out, _word),
    "cuIpcOpenMemHandle_v2": (_out, IpcHandle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (_word,),
    "cuModuleLoadData": (_out, _out),
    "cuModuleGetFunction": (_out, _word, ctypes.c_char_p),
    "cuLaunchKernel": (_word, *[ctypes.c_uint] * 7, _word, _out, _out),
}


class DeviceError(RuntimeError):
    """The CUDA driver is missing, or has refused something."""


class RefusedError(DeviceError):
    """The driver has refused something; `code` is its CUresult."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Driver:
    """The functions, once they are found: those of the library, or those that tests put in their place."""

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self.functions = functions

    @classmethod
    def load(cls) -> "_Driver":
        """Find the library and start it.

        Raises
        ------
        DeviceError
            If there is no driver, or no device that it can use.
        """
        try:
            library = ctypes.CDLL(LIBRARY)
            functions = {name: getattr(library, name) for name in FUNCTIONS}
        except (OSError, AttributeError) as error:
            raise DeviceError(f"no CUDA driver: {error}; device memory needs a GPU of NVIDIA's") from None
        for name, arguments in FUNCTIONS.items():
            functions[name].argtypes, functions[name].restype = arguments, _int
        driver = cls(functions)
        if code := functions["cuInit"](0):
            raise DeviceError(f"the CUDA driver cannot start: {driver.text(code)}")
        return driver

    def text(self, code: int) -> str:
        """Give an error's name and meaning."""
        parts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            found = self.functions[name](code, ctypes.byref(text)) == 0 and text.value
            parts.append(found.decode() if found else str(code))
        return ": ".join(parts)


_standing_in: Mapping[str, Any] | None = None


def stand_in(functions: Mapping[str, Any] | None) -> None:
    """Let tests put functions in the place of the library's."""
    global _standing_in  # noqa: PLW0603
    _standing_in = functions
    for cached in (_driver, address, context, capability, processors):
        cached.cache_clear()


@functools.cache
def _driver() -> _Driver:
    return _Driver.load() if _standing_in is None else _Driver(_standing_in)


def starts() -> bool:
    """Whether there is a driver, and a device that it can use."""
    try:
        _driver()
    except DeviceError:
        return False
    return True


def trouble() -> str:
    """Say what keeps this process from using a GPU; "" if nothing does."""
    try:
        return "" if count() else "the CUDA driver sees no device"
    except DeviceError as error:
        return str(error)


def call(name: str, *arguments: Any) -> None:
    """Call a function.

    Raises
    ------
    DeviceError
        If it does not succeed, or there is no driver.
    """
    driver = _driver()
    if code := driver.functions[name](*arguments):
        raise RefusedError(f"{name}: {driver.text(code)}", code)


def get(name: str, *arguments: Any) -> int:
    """Call a function that writes a word where its first argument says, and give that; see :func:`call`."""
    word = ctypes.c_uint64(0)
    call(name, ctypes.byref(word), *arguments)
    return word.value


def text(code: int) -> str:
    """Give an error's name and meaning."""
    return _driver().text(code)


@functools.cache
def address(name: str) -> int:
    """Give the address of a function, for compiled code."""
    return ctypes.cast(_driver().functions[name], ctypes.c_void_p).value or 0


def count() -> int:
    """Give the number of devices."""
    return get("cuDeviceGetCount") & 0xFFFFFFFF


def name(device: int) -> str:
    """Give the name of a device's model."""
    buffer = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", buffer, len(buffer), _handle(device))
    return buffer.value.decode()


def uuid(device: int) -> bytes:
    """Give what tells a device from all others, in any process."""
    buffer = ctypes.create_string_buffer(16)
    call("cuDeviceGetUuid_v2", buffer, _handle(device))
    return buffer.raw


@functools.cache
def capability(device: int) -> tuple[int, int]:
    """Give a device's compute capability."""
    major, minor = (
        get("cuDeviceGetAttribute", which, _handle(device)) for which in (COMPUTE_MAJOR, COMPUTE_MINOR)
    )
    return major, minor


@functools.cache
def processors(device: int) -> int:
    """Give the number of a device's multiprocessors."""
    return get("cuDeviceGetAttribute", PROCESSORS, _handle(device))


@functools.cache
def context(device: int) -> int:
    """Give the primary context of a device; it is made if nobody has."""
    return get("cuDevicePrimaryCtxRetain", _handle(device))


class current:  # noqa: N801 - used as a function is
    """Let the calling thread work on a device, inside a ``with`` statement.

    It mostly does already, which costs less to see than to make so.
    """

    def __init__(self, device: int) -> None:
        self._context, self._pushed = context(device), False

    def __enter__(self) -> None:
        if get("cuCtxGetCurrent") != self._context:
            call("cuCtxPushCurrent_v2", self._context)
            self._pushed = True

    def __exit__(self, *_: object) -> None:
        if self._pushed:
            get("cuCtxPopCurrent_v2")


def present() -> int:
    """Give the device that the calling thread works on, or else the first."""
    return get("cuCtxGetDevice") & 0xFFFFFFFF if get("cuCtxGetCurrent") else 0


def device_of(pointer: int) -> int:
    """Give the device that memory is on.

    Raises
    ------
    DeviceError
        If it is no memory of CUDA's.
    """
    return get("cuPointerGetAttribute", POINTER_DEVICE, pointer) & 0xFFFFFFFF


def _handle(device: int) -> int:
    return get("cuDeviceGet", device) & 0xFFFFFFFF
