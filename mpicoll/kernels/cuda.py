"""Kernels of a GPU: code that combines vectors in device memory, for every (op, dtype).

A kernel takes the elements of 2 to 8 vectors, combines them from the first to the last and writes the
results, with the bits that a chain of the CPU's kernels gives: both compile the functions of `table`, or the
user's. A thread takes 16 bytes of each vector at a time where the addresses allow it.

Addresses and numbers are int64 arguments, as those of the CPU's kernels are. So memory may be anybody's, of
CuPy, of PyTorch or of another process, and compiled code can fill in the arguments and launch: there is no
array object to make for each call.

A kernel is compiled to PTX, the assembly language of no GPU in particular, for a compute capability that is
told and not looked up. So compiling needs no GPU and makes no CUDA context, the code can be kept on disk, and
tests can read it where there is no GPU. The driver makes machine code of it for its GPU when it loads it.

Numba (numba-cuda) alone would make ``fma`` of a product and a sum, which has other bits than the CPU: NVVM
does so unless told not to, and Numba has no way to tell it. So Numba stops at NVVM's intermediate code, and
nvJitLink makes PTX of that with ``-fma=0``. The PTX then says ``mul.rn`` and ``add.rn``, which the driver may
not fuse either.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import pickle
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..device.driver import EXTRA, DeviceError
from . import kernel, supported
from .table import name_of

# Numba and numba-cuda are imported in the functions that need them: they take a second, and may be missing.
# ruff: noqa: PLC0415

if TYPE_CHECKING:
    from ..ops import Op

__all__ = ["THREADS", "Image", "assembled", "combine", "divide", "simulated"]

THREADS = 256  # of a block

_users: dict[tuple, Image] = {}  # of the user's operations, for as long as the process lives


class Image(NamedTuple):
    """A compiled kernel.

    Attributes
    ----------
    code : bytes
        PTX, ended by a zero, as cuModuleLoadData takes it.
    name : str
        Of the kernel in it.
    lanes : int
        The number of elements that a thread takes at once where addresses are aligned.
    """

    code: bytes
    name: str
    lanes: int


def combine(op: str | Op, dtype: Any, operands: int, capability: tuple[int, int]) -> Image:
    """Compile the kernel that combines the elements of several vectors.

    Parameters
    ----------
    op : str or mpicoll.Op
        An operation of MPI's by its name, as ``"SUM"``, or one of the user's.
    dtype : numpy.dtype
        The element type.
    operands : int
        The number of vectors, 2 to 8.
    capability : tuple of two int
        The compute capability of the GPU, as (9, 0).

    Returns
    -------
    Image
        Of ``kernel(out, n, left, s0, s1, ..., s7)``, int64 all of them: address of the result, number of
        elements, bits, addresses of the operands, of which those beyond `operands` are ignored. For each
        element the accumulator is that of s0, then ``s_j op accumulator`` for each further j whose bit
        ``1 << j`` is set in `left`, and ``accumulator op s_j`` for the others. `out` may be any of the
        operands; otherwise it may not overlap them. Any grid of blocks of one dimension will do.

    Raises
    ------
    TypeError
        If there is no such operation on this type, the user's function cannot be compiled, or its result does
        not fit.
    ValueError
        If the number of operands is another, or the operation was freed.
    DeviceError
        If numba-cuda or a library that it needs is missing, or does not know the compute capability.

    Notes
    -----
    What :func:`mpicoll.kernels.user.compiled` says of the user's functions holds here, too, but for this:

    - An exception ends the kernel by a trap, since a result without the element would be wrong. The driver
      then reports CUDA_ERROR_LAUNCH_FAILED (719) at the next synchronisation, without the exception's text,
      and the process can use its CUDA context no more. A record that is neither operand does the same.
    - The fields of a structured type must be aligned, as ``numpy.dtype(..., align=True)`` makes them; where
      the function touches one that is not, it is a TypeError.
    - Of an ``njit`` function the Python function is compiled, without its options, such as fast-math. Where
      it calls other ``njit`` functions, Numba asks a GPU before it compiles them.
    """
    dtype = np.dtype(dtype)
    if not 2 <= operands <= 8:
        raise ValueError(f"{operands} operands given, expected 2 to 8")
    if isinstance(op, str):
        if not supported(op, dtype):
            raise TypeError(f"no kernel for {op} on {dtype}")
        return _of_mpi(op, name_of(dtype), operands, capability)
    if not op:
        raise ValueError(f"{op!r} was freed")
    key = op.token, dtype, dtype.isalignedstruct, operands, capability
    if key not in _users:
        _users[key] = _of_user(op, dtype, operands, capability)
    return _users[key]


def divide(dtype: Any, capability: tuple[int, int]) -> Image:
    """Compile the kernel that divides the elements of a vector by the number of ranks, for `mpicoll.AVG`.

    Parameters
    ----------
    dtype : numpy.dtype
        The element type: integers, floating point or complex numbers.
    capability : tuple of two int
        The compute capability of the GPU.

    Returns
    -------
    Image
        Of ``kernel(out, n, size)``, int64 all of them, which does in place what :func:`mpicoll.ops.divide`
        does.

    Raises
    ------
    TypeError
        If the average is not defined for the type.
    DeviceError
        As :func:`combine`.
    """
    dtype = np.dtype(dtype)
    if not supported("SUM", dtype):
        raise TypeError(f"AVG is not defined for {dtype}")
    return _of_mpi(None, name_of(dtype), 1, capability)


def assembled(image: Image, capability: tuple[int, int]) -> bytes:
    """Make machine code of a kernel, for a driver that is too old for its PTX.

    Such a driver says CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222).

    Parameters
    ----------
    image : Image
        The kernel.
    capability : tuple of two int
        The compute capability of the GPU.

    Returns
    -------
    bytes
        A cubin, for cuModuleLoadData; the kernel's name is the same.

    Raises
    ------
    DeviceError
        If nvJitLink is missing, or refuses the code.
    """
    _versions()
    return _linked("PTX", image.code, "cubin", capability)


def simulated(op: str | Op | None, dtype: Any, operands: int = 2) -> Any:
    """Return a kernel for Numba's simulator, to test the loops without a GPU.

    Parameters
    ----------
    op : str or mpicoll.Op, optional
        As for :func:`combine`; None is what :func:`divide` does.
    dtype, operands
        As for :func:`combine`.

    Returns
    -------
    callable
        ``kernel[blocks, threads](out, n, ...)``, with addresses in host memory. It combines packets of
        elements by the CPU's kernels.

    Raises
    ------
    RuntimeError
        If the simulator is off: ``NUMBA_ENABLE_CUDASIM=1`` switches it on, before Numba is imported.
    """
    import numba
    from numba import cuda

    from . import cuda_loop
    from .cuda_simulated import simulated_means

    settings: Any = numba.config
    if not settings.ENABLE_CUDASIM:
        raise RuntimeError("Numba's simulator is off, expected NUMBA_ENABLE_CUDASIM=1")
    dtype = np.dtype(dtype)
    if op is None:
        from ..ops import divide

        return cuda.jit(cuda_loop.dividing(simulated_means(dtype, divide=divide)))
    host = kernel(op, dtype) if isinstance(op, str) else op.kernel(dtype)
    means = simulated_means(dtype, combine=host, commutes=isinstance(op, str))
    return cuda.jit(cuda_loop.combining(means, operands))


@functools.cache
def _of_mpi(op: str | None, name: str, operands: int, capability: tuple[int, int]) -> Image:
    """Compile the kernel of one of MPI's operations, or the division, or find it on disk.

    Of the processes of a node that look for it at the same time one compiles, as for the CPU's kernels. A
    file is there as a whole or not at all.
    """
    from .compiling import sources, turn

    stamp = *_versions(), sources(Path(__file__).parent)
    path = _path(f"{op or 'divide'}-{name}-{operands}-{capability[0]}.{capability[1]}")
    found = _read(path, stamp)
    if found is None:
        with turn():
            found = _read(path, stamp) or _made(op, name, operands, capability)
            _write(path, stamp, found)
    return found


def _versions() -> tuple:
    """Give the versions of all that compiles, or say what to install."""
    try:
        packages = [importlib.metadata.version(name) for name in ("numba", "numba-cuda", "llvmlite")]
        return *packages, _binding("nvvm").version(), _binding("nvjitlink").version()
    except (
        Exception
    ) as error:  # a package is missing, or a library that one loads; each says so in its own way
        reason = str(error).split("\n")[0]
        raise DeviceError(f"no compiler for GPUs: {reason}; {EXTRA} installs it") from error


def _binding(name: str) -> Any:
    return importlib.import_module(f"cuda.bindings.{name}")


def _path(name: str) -> Path | None:
    """Say where code is kept: where Numba keeps the CPU's, and nowhere if it finds no folder to write to."""
    from numba.core.caching import FunctionCache

    try:
        return Path(FunctionCache(combine).cache_path, f"cuda.{name}.ptx")
    except RuntimeError:
        return None


def _read(path: Path | None, stamp: tuple) -> Image | None:
    try:
        found, *image = pickle.loads(path.read_bytes())  # type: ignore[union-attr]
    except Exception:  # there is none, or it is damaged, which pickle reports in many ways
        return None
    return Image(*image) if found == stamp else None


def _write(path: Path | None, stamp: tuple, image: Image) -> None:
    if path is None:
        return
    unfinished = path.with_suffix(f".{uuid.uuid4().hex}")
    try:
        unfinished.write_bytes(pickle.dumps((stamp, *image)))
        unfinished.replace(path)
    except OSError:  # a full disk costs the others time, no more
        unfinished.unlink(missing_ok=True)


def _made(op: str | None, name: str, operands: int, capability: tuple[int, int]) -> Image:
    from .compiling import importable

    with importable():
        from . import cuda_loop, cuda_memory

        element = cuda_memory.element_of(name, cuda_memory.GPU)
        if op is None:
            means = cuda_memory.emitted(element, **_target())
            return _image(cuda_loop.dividing(means), 3, means.lanes, capability)
        operation = cuda_memory.mpi_operation(op, name, element)
        means = cuda_memory.emitted(element, operation, commutes=True, **_target())
        return _image(cuda_loop.combining(means, operands), 11, means.lanes, capability)


def _of_user(op: Op, dtype: np.dtype, operands: int, capability: tuple[int, int]) -> Image:
    from .compiling import importable

    _versions()
    with importable():
        from numba.cuda.compiler import compile_cuda

        from . import cuda_loop, cuda_memory, user

        function = getattr(op.function, "py_func", op.function)

        def scalar(element: Any) -> Any:
            return compile_cuda(function, None, (element, element), cc=capability)

        code = user.prepared(scalar, dtype, op.__name__, cuda_memory.GPU)
        means = cuda_memory.emitted(code.element, cuda_memory.user_operation(code), **_target())
        return _image(cuda_loop.combining(means, operands), 11, means.lanes, capability)


def _target() -> dict[str, Any]:
    """Give what makes a GPU's code of intrinsics and of the functions that call them."""
    from numba import cuda
    from numba.cuda.extending import intrinsic

    # Inlined before types are known: to compile a function for others to call, Numba would ask a GPU.
    return {"intrinsic": intrinsic, "inline": cuda.jit(device=True, inline="always")}


def _image(function: Callable, arguments: int, lanes: int, capability: tuple[int, int]) -> Image:
    """Compile a kernel of so many int64."""
    from numba import cuda, types

    signature = types.void(*[types.int64] * arguments)
    try:
        between, _ = cuda.compile(
            function, signature, device=False, cc=capability, output="ltoir", abi="numba"
        )
    except Exception as error:  # Numba and NVVM report in many ways
        raise DeviceError(f"no code for compute capability {capability}: {error}") from error
    code = _linked("LTOIR", between, "ptx", capability, "-lto", "-ptx", "-fma=0")
    entry = re.search(rb"\.entry\s+([\w$]+)", code)
    assert entry is not None, "PTX without a kernel"
    return Image(code.rstrip(b"\0") + b"\0", entry[1].decode(), lanes)


def _linked(kind: str, code: bytes, result: str, capability: tuple[int, int], *options: str) -> bytes:
    """Let nvJitLink make another kind of code.

    By its bindings: what cuda.core writes for an option, ``-fma=false``, the compiler inside does not take.
    """
    library = _binding("nvjitlink")
    options = f"-arch=sm_{capability[0]}{capability[1]}", *options
    handle = library.create(len(options), list(options))
    try:
        library.add_data(handle, getattr(library.InputType, kind), code, len(code), "mpicoll")
        library.complete(handle)
        made = bytearray(getattr(library, f"get_linked_{result}_size")(handle))
        getattr(library, f"get_linked_{result}")(handle, made)
    except library.nvJitLinkError as error:
        log = bytearray(library.get_error_log_size(handle))
        library.get_error_log(handle, log)
        raise DeviceError(f"nvJitLink: {error}: {log.decode(errors='replace').strip()}") from None
    finally:
        library.destroy(handle)
    return bytes(made)
