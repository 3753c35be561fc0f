"""Compile a function to native code, once for all processes of a node and for all runs to come.

When the ranks of a job start on an empty cache, one of them compiles and the others wait for it and load the
result. Once the result is on disk nobody waits, and where no folder can be written nobody waits either: each
process then compiles for itself.

The cache lives where Numba's own does (``NUMBA_CACHE_DIR``, ``__pycache__``, or the user's cache folder), but
has one file for each function, signature and processor, replaced atomically. Numba's has an index beside
several data files and writes it first: a process may find there what another has yet to write, and two
processes that compile different things may choose the same data file.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import pickle
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
from numba.core import sigutils, typing
from numba.core.caching import FunctionCache
from numba.core.ccallback import CFunc
from numba.core.serialize import dumps

__all__ = ["compiled", "entry"]

_alive: list[Any] = []  # LLVM frees the code that nobody holds


def compiled(function: Callable, signature, uses: Iterable[ModuleType] = ()) -> int:
    """Compile a Python function with Numba, or load it from the cache, and return its C address.

    Parameters
    ----------
    function : callable
        A module-level function, or one that closes over strings and numbers. It may not close over compiled
        functions, which differ from process to process, so that the cache would never be hit. It should not
        raise: C callers cannot catch that, it is only printed.
    signature : str or Numba signature
        The C signature, such as ``"int64(int64, int64)"``.
    uses : iterable of modules
        Where else the code comes from. A cached result is stale when a source file in the folder of the
        function, or of one of these modules, has changed.

    Returns
    -------
    int
        The address, valid until the process ends. Code called through it does not need the GIL.
    """
    callback: Any = CFunc(function, sigutils.normalize_signature(signature), {}, {})
    context = callback._targetdescr.target_context
    with importable(), _cache(callback, "address", callback._sig, context, function, uses):
        callback.compile()
    _alive.append(callback)
    return callback.address


def entry(function: Callable, signature: str, uses: Iterable[ModuleType] = ()) -> Callable:
    """Compile a Python function like :func:`compiled`, to be called from Python.

    Parameters
    ----------
    function, signature, uses
        As for :func:`compiled`.

    Returns
    -------
    callable
        Calls the one compiled version: unlike Numba's dispatcher it does not look at the types of its
        arguments. It releases the GIL.
    """
    dispatcher: Any = numba.njit(nogil=True)(function)
    arguments, result = sigutils.normalize_signature(signature)
    full = typing.signature(result, *arguments)
    with importable(), _cache(dispatcher, "entry", full, dispatcher.targetctx, function, uses):
        dispatcher.compile(full)
    _alive.append(dispatcher)
    return dispatcher.overloads[arguments].entry_point


@contextlib.contextmanager
def importable() -> Iterator[None]:
    """Let Numba be imported, as its compiler does late, in a program that hides it (mpi4py's tests do)."""
    modules: dict[str, Any] = sys.modules
    found = modules.get("numba")
    modules["numba"] = numba
    try:
        yield
    finally:
        modules["numba"] = found


@contextlib.contextmanager
def _cache(
    thing: Any, kind: str, signature: Any, context: Any, function: Callable, uses: Iterable[ModuleType]
) -> Iterator[None]:
    """Give a CFunc or a dispatcher a cache, and a turn to compile if there is nothing in it."""
    files = [function.__code__.co_filename, *(str(module.__file__) for module in uses)]
    try:
        cache = _Cache(kind, signature, context, function, {Path(file).parent for file in files})
    except RuntimeError:  # Numba found no folder that can be written
        yield
        return
    thing._cache = cache
    # the compilation looks into the cache once more: somebody's turn may have filled it
    with contextlib.nullcontext() if cache.payload() else turn():
        yield


class _Cache:
    """What Numba asks of a cache, with a file that holds what the code depends on and the pickled code."""

    def __init__(self, kind: str, signature: Any, context: Any, function: Callable, folders: Iterable[Path]):
        numbas = FunctionCache(function)
        self._impl = numbas._impl  # knows how to pickle compiled code
        key = numbas._index_key(signature, context.codegen())
        name = f"{self._impl.filename_base}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.{kind}"
        self._path = Path(numbas.cache_path, name)
        self._stamp = numba.__version__, *(sources(folder) for folder in sorted(folders))

    def payload(self) -> bytes | None:
        try:
            stamp, payload = pickle.loads(self._path.read_bytes())
        except Exception:  # there is none, or it is damaged, which pickle reports in many ways
            return None
        return payload if stamp == self._stamp else None

    def load_overload(self, signature, context):
        payload = self.payload()
        if payload is None:
            return None
        context.refresh()
        return self._impl.rebuild(context, pickle.loads(payload))

    def save_overload(self, signature, result):
        content = pickle.dumps((self._stamp, dumps(self._impl.reduce(result))))
        unfinished = self._path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            unfinished.write_bytes(content)
            unfinished.replace(self._path)
        except OSError:  # a full disk costs the others time, no more
            unfinished.unlink(missing_ok=True)


@functools.cache
def sources(folder: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Wait until no other process of this user on this node is compiling."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            # not beside the cache: network file systems are slow with locks, or have none
            path = Path(tempfile.gettempdir(), f"mpicoll-{os.getuid()}.lock")
            fcntl.flock(stack.enter_context(path.open("a")), fcntl.LOCK_EX)
        yield
