"""Which operations exist on which element types, and what they do to two scalars.

The compiled loops, the plans, the error messages and the tests read this table.

The pairs are those of the MPI standard 4.1, sections 6.9.2 and 6.9.4: bitwise operations on integers,
logical ones on integers and bool, ``MIN`` and ``MAX`` on integers and floating point, ``SUM`` and ``PROD``
on complex too, ``MINLOC`` and ``MAXLOC`` on pairs. ``bool`` has the three logical operations only; MPICH,
Open MPI and Intel MPI refuse the others as well. ``float16`` and ``bfloat16`` have no MPI type; here they
are floating point like the rest. ``longdouble`` and ``LONG_DOUBLE_INT`` have no kernels: Numba has no such
type.

Semantics, the same in every lane of SIMD code and for every length of vector:

- integers wrap around; logical operations give 0 or 1 and read any nonzero value as true;
- float16 and bfloat16 are combined in float32 and rounded to nearest, ties to even;
- ``MIN`` and ``MAX`` of floating point are ``minimum`` and ``maximum`` of IEEE 754-2019: a NaN wins over a
  number, as in ``numpy.minimum``, and -0.0 is below +0.0. MPI leaves both open and the libraries differ: of
  a NaN and a number, MPICH returns the first, Open MPI the first or the second by the place in the vector,
  Intel MPI the number; of two zeros, each returns one by its place. The choice made here is commutative and
  associative, so that every rank and every algorithm has the same result;
- ``MINLOC`` and ``MAXLOC`` take the pair with the lower index when values are equal; -0.0 equals +0.0, and a
  NaN wins over a number, as in ``numpy.argmin``;
- which NaN it is, its sign and payload, is not defined.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["DTYPES", "OPS", "PAIRS", "name_of", "supported"]


def _pair(value: str) -> np.dtype:
    return np.dtype([("value", value), ("index", np.intc)], align=True)


#: MPI's pair types for MINLOC and MAXLOC, laid out as C structs.
PAIRS: dict[str, np.dtype] = {
    "FLOAT_INT": _pair("f"),
    "DOUBLE_INT": _pair("d"),
    "LONG_INT": _pair("l"),
    "2INT": _pair("i"),
    "SHORT_INT": _pair("h"),
}

#: The kind of each element type. Pairs have MPI's names, all others NumPy's.
DTYPES: dict[str, str] = {
    **{f"{sign}int{bits}": "integer" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "logical",
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), "floating"),
    **dict.fromkeys(("complex64", "complex128"), "complex"),
    **dict.fromkeys(PAIRS, "pair"),
}


def _on(kinds: str, function: Callable) -> dict[str, Callable]:
    return dict.fromkeys(kinds.split(), function)


def _minimum(a, b):
    # the three terms: an ordinary number, -0.0 before +0.0, a NaN before everything
    return a if (a < b) | ((a == b) & (math.copysign(1.0, a) < 0)) | (a != a) else b  # noqa: PLR0124


def _maximum(a, b):
    return a if (a > b) | ((a == b) & (math.copysign(1.0, a) > 0)) | (a != a) else b  # noqa: PLR0124


def _minloc(a, b):
    (u, i), (v, j) = a, b
    nan_u, nan_v = u != u, v != v  # noqa: PLR0124
    tie = (u == v) | (nan_u & nan_v)
    return a if (u < v) | (nan_u & (not nan_v)) | (tie & (i <= j)) else b


def _maxloc(a, b):
    (u, i), (v, j) = a, b
    nan_u, nan_v = u != u, v != v  # noqa: PLR0124
    tie = (u == v) | (nan_u & nan_v)
    return a if (u > v) | (nan_u & (not nan_v)) | (tie & (i <= j)) else b


#: For each operation, what it does to two scalars of each kind that has it. Numba compiles these functions.
#: Comparisons are joined by ``|`` and ``&``, not ``or`` and ``and``, to have no branch in the way of SIMD.
OPS: dict[str, dict[str, Callable]] = {
    "SUM": _on("integer floating complex", lambda a, b: a + b),
    "PROD": _on("integer floating complex", lambda a, b: a * b),
    "MIN": _on("integer", lambda a, b: a if a < b else b) | _on("floating", _minimum),
    "MAX": _on("integer", lambda a, b: a if a > b else b) | _on("floating", _maximum),
    "LAND": _on("integer logical", lambda a, b: (a != 0) & (b != 0)),
    "LOR": _on("integer logical", lambda a, b: (a != 0) | (b != 0)),
    "LXOR": _on("integer logical", lambda a, b: (a != 0) ^ (b != 0)),
    "BAND": _on("integer", lambda a, b: a & b),
    "BOR": _on("integer", lambda a, b: a | b),
    "BXOR": _on("integer", lambda a, b: a ^ b),
    "MINLOC": _on("pair", _minloc),
    "MAXLOC": _on("pair", _maxloc),
}


@functools.cache  # a dtype's name costs microseconds
def name_of(dtype: np.dtype) -> str | None:
    """Return the name under which `DTYPES` has this dtype, or None.

    A pair is known by its layout, not by the names of its fields.
    """
    if dtype.names:
        layout = _layout(dtype)
        return next((name for name, pair in PAIRS.items() if _layout(pair) == layout), None)
    return dtype.name if dtype.isnative and dtype.name in DTYPES else None


def _layout(dtype: Any) -> tuple:
    return dtype.itemsize, [dtype.fields[name][:2] for name in dtype.names]


def supported(op: str, dtype: np.dtype) -> bool:
    """Whether there is a kernel for the operation on the element type."""
    name = name_of(np.dtype(dtype))
    return name is not None and DTYPES[name] in OPS.get(op, {})
