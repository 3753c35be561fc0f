"""The libraries that make arrays on GPUs, each in a stream of its own that is not the default one.

What they put into an array is still under way when the array is there: a collective that does not wait for it
reads, or is overwritten by, something else. What they read is what their stream finds.
"""

import ctypes
import importlib
import os
import warnings

import numpy as np
import pytest
from cuda_stand_in import DeviceArray

LONG = 1 << 24  # elements that are gone over again and again to pass the time
TIMES = 50
POISON = 0xA5

_NONE = ImportError, RuntimeError, OSError, AttributeError, AssertionError  # of packages that are for no GPU


def load(name, device):
    """Give a library that uses a device; skip the test where it cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return LIBRARIES[name](device)
    except _NONE as error:
        return pytest.skip(f"{name}: {' '.join(str(error).split())[:200]}")


class Library:
    """What is common to them: arrays that are poisoned first, and written by work that takes its time."""

    receives = True

    def array(self, host):
        """Make an array of the host's values, which are still under way."""
        array = self.empty(host.shape, host.dtype)
        self.write(array, np.full(host.nbytes, POISON, np.uint8).view(host.dtype), late=False)
        self.write(array, host)
        return array


class CuPy(Library):
    name = "cupy"

    def __init__(self, device):
        self._cupy = importlib.import_module("cupy")
        self._cupy.cuda.Device(device).use()
        self._stream = self._cupy.cuda.Stream(non_blocking=True)
        self._stream.use()
        self._long = self._cupy.ones(LONG, np.float32)

    def takes(self, dtype):
        return dtype.char in "?bhilqBHILQefdFD"

    def empty(self, shape, dtype):
        return self._cupy.empty(shape, dtype)

    def write(self, array, host, late=True):
        new = self._cupy.asarray(host)
        for _ in range(TIMES * late):
            self._long *= 1
        array[...] = new

    def get(self, array):
        return self._cupy.asnumpy(array)


class PyTorch(Library):
    name = "torch"

    def __init__(self, device):
        self._torch = importlib.import_module("torch")
        self._torch.cuda.set_device(device)
        self._stream = self._torch.cuda.Stream()
        self._torch.cuda.set_stream(self._stream)
        self._long = self._torch.ones(LONG, device="cuda")

    def takes(self, dtype):
        return isinstance(getattr(self._torch, dtype.name, None), self._torch.dtype)

    def empty(self, shape, dtype):
        return self._torch.empty(shape, dtype=getattr(self._torch, dtype.name), device="cuda")

    def write(self, array, host, late=True):
        new = self._torch.from_numpy(host.view(np.uint8).copy()).cuda()
        for _ in range(TIMES * late):
            self._long.mul_(1)
        array.view(self._torch.uint8).copy_(new)

    def get(self, array):
        values = array.view(self._torch.uint8).cpu().numpy()
        return values.view(np.dtype(str(array.dtype).removeprefix("torch.")))


class Numba(Library):
    name = "numba"

    def __init__(self, device):
        numba = importlib.import_module("numba")
        numba.config.CUDA_LOW_OCCUPANCY_WARNINGS = 0
        cuda = self._cuda = importlib.import_module("numba.cuda")
        cuda.select_device(device)
        self._stream = cuda.stream()

        @cuda.jit
        def wait(array):
            for _ in range(TIMES):
                for i in range(cuda.grid(1), array.size, cuda.gridsize(1)):
                    array[i] *= 1

        self._wait, self._long = wait, cuda.to_device(np.ones(LONG, np.float32))

    def takes(self, dtype):
        return dtype.name not in ("bfloat16", "float16")

    def empty(self, shape, dtype):
        return self._cuda.device_array(shape, dtype, stream=self._stream)

    def write(self, array, host, late=True):
        if not host.size:
            return
        new = self._cuda.to_device(host)
        if late:
            self._wait[256, 256, self._stream](self._long)
        array.copy_to_device(new, stream=self._stream)

    def get(self, array):
        host = array.copy_to_host(stream=self._stream) if array.size else np.empty(array.shape, array.dtype)
        self._stream.synchronize()
        return host


class JAX(Library):
    """JAX, whose arrays never change: they can be sent, and are received into arrays of nobody's."""

    name = "jax"
    receives = False

    def __init__(self, device):
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # ranks may share the device
        jax = self._jax = importlib.import_module("jax")
        jax.config.update("jax_cuda_visible_devices", str(device))
        jax.config.update("jax_enable_x64", True)
        self._device = jax.devices("cuda")[0]
        self._long = jax.device_put(np.ones(LONG, np.float32), self._device)

        @jax.jit
        def late(new, array):
            long = jax.lax.fori_loop(0, TIMES, lambda _, array: array * 1.0001, array)
            return jax.numpy.where(long[0] > 0, new, jax.numpy.zeros_like(new))

        self._late = late

    def takes(self, dtype):
        return dtype.names is None

    def array(self, host):
        return self._late(self._jax.device_put(host, self._device), self._long)

    def get(self, array):
        return np.asarray(array)


class StandIn(Library):
    """Arrays of the stand-in for the driver, to test the tests."""

    names = ("stand-in", "read-only")

    def __init__(self, stand_in, receives=True):
        self._stand_in, self.receives = stand_in, receives

    def array(self, host):
        if self.receives:
            return super().array(host)
        return DeviceArray(self._stand_in, host, readonly=True)

    def takes(self, dtype):
        return dtype.name != "bfloat16"

    def empty(self, shape, dtype):
        return DeviceArray(self._stand_in, np.empty(shape, dtype))

    def write(self, array, host, late=True):
        content = host.tobytes()
        self._stand_in._give(
            array._stream, lambda: ctypes.memmove(array._address, content, len(content)) if content else None
        )

    def get(self, array):
        return array.get()


LIBRARIES = {kind.name: kind for kind in (CuPy, PyTorch, JAX, Numba)}
