"""What people write on a command line: sizes, algorithms, dtypes, ops. No NumPy, no MPI."""

import re
from typing import Any

DTYPES = (
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
)
# Each op of MPI: NumPy's name for it, and the kinds of dtype it is defined for.
OPS = {
    "SUM": ("add", "integers, reals, complex numbers"),
    "PROD": ("multiply", "integers, reals, complex numbers"),
    "MIN": ("minimum", "integers, reals"),
    "MAX": ("maximum", "integers, reals"),
    "LAND": ("logical_and", "integers"),
    "LOR": ("logical_or", "integers"),
    "LXOR": ("logical_xor", "integers"),
    "BAND": ("bitwise_and", "integers"),
    "BOR": ("bitwise_or", "integers"),
    "BXOR": ("bitwise_xor", "integers"),
}

_UNITS = {"": 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
_MOST = 10_000  # more numbers than this are a mistake


def kind(dtype: str) -> str:
    """Return ``"integers"``, ``"reals"`` or ``"complex numbers"``."""
    for start, result in (("int", "integers"), ("uint", "integers"), ("complex", "complex numbers")):
        if dtype.startswith(start):
            return result
    return "reals"


def check_op(op: str, dtype: str) -> None:
    """Raise ValueError if MPI does not define an op for a dtype."""
    if kind(dtype) not in OPS[op][1]:
        raise ValueError(f"{op} is for {OPS[op][1]}, given {dtype}")


def parse_size(text: str) -> int:
    """Read one size.

    Examples
    --------
    >>> parse_size("4Ki")
    4096

    Raises
    ------
    ValueError
        If it is not a whole number with nothing, Ki, Mi or Gi (and perhaps B) after it.
    """
    match = re.fullmatch(r"([0-9]+) *(|Ki|Mi|Gi)B?", text.strip())
    if match is None:
        raise ValueError(f"{text.strip()!r} is not a size, expected one such as 8, 4Ki or 64Mi")
    return int(match[1]) * _UNITS[match[2]]


def parse_sizes(text: str) -> list[int]:
    """Read a list of sizes and ranges.

    A range has both its ends in it: ``a:b:xK`` multiplies by K, ``a:b:+K`` adds K, ``a:b`` adds 1, and
    b comes last even where the steps pass over it.

    Returns
    -------
    list of int
        Each size once, in the order given.

    Examples
    --------
    >>> parse_sizes("8:1Ki:x4,3")
    [8, 32, 128, 512, 1024, 3]

    Raises
    ------
    ValueError
        If something is not a size or a range, or if there are very many.
    """
    sizes: dict[int, None] = {}
    for item in text.split(","):
        sizes |= dict.fromkeys(_range(item) if ":" in item else [parse_size(item)])
    return list(sizes)


def _range(item: str) -> list[int]:
    match = re.fullmatch(r"([^:]*):([^:]*)(?::([x+])([^:]*))?", item.strip())
    if match is None:
        raise ValueError(f"{item.strip()!r} is not a range, expected one such as 8:64Mi:x4, 0:64:+8 or 1:33")
    size, last, by = parse_size(match[1]), parse_size(match[2]), parse_size(match[4] or "1")
    multiply = match[3] == "x"
    if by < 1 or (multiply and (by < 2 or size == 0)):
        raise ValueError(f"{item.strip()!r} does not get any further")
    if size > last:
        raise ValueError(f"{item.strip()!r} is empty, its first size is above its last")
    sizes = []
    while size < last:
        sizes.append(size)
        size = size * by if multiply else size + by
        if len(sizes) >= _MOST:
            raise ValueError(f"{item.strip()!r} gives more than {_MOST} sizes, add a step such as :x2")
    return [*sizes, last]


def parse_algorithm(text: str) -> tuple[str, dict[str, Any]]:
    """Read an algorithm and its parameters.

    Examples
    --------
    >>> parse_algorithm("chain:chunks=16")
    ('chain', {'chunks': 16})

    Raises
    ------
    ValueError
        If a parameter is not of the form ``name=value``, a number or a word.
    """
    name, *settings = text.strip().split(":")
    parameters: dict[str, Any] = {}
    for setting in settings:
        match = re.fullmatch(r"([a-z_]+)=(?:([0-9].*)|([a-z_]+))", setting)
        if match is None:
            raise ValueError(f"{setting!r} is not a parameter of {name}, expected one such as chunks=16")
        parameters[match[1]] = match[3] or parse_size(match[2])
    return name, parameters


def format_size(nbytes: float) -> str:
    """Write a number of bytes: ``8 B``, ``4 KiB``, ``1.5 MiB``."""
    for unit, scale in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.4g} {unit}"
    return f"{nbytes:.0f} B"
