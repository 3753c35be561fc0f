"""Quantities as people read them, and the same as expressions of Vega's for axes and tooltips."""

from ..bench.words import format_size

__all__ = ["format_bandwidth", "format_size", "format_time", "size_expression"]

_SIZE = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))
_TIME = (("s", 1.0), ("ms", 1e-3), ("\u00b5s", 1e-6), ("ns", 1e-9))
_BANDWIDTH = (("TB/s", 1e12), ("GB/s", 1e9), ("MB/s", 1e6), ("kB/s", 1e3), ("B/s", 1.0))
_NEARLY = 0.9995  # of a unit, which is 1 of it when rounded
Units = tuple[tuple[str, float], ...]


def format_time(seconds: float) -> str:
    """Write a time: ``12 ns``, ``3.41 us``, ``1.5 s``."""
    return _format(seconds, _TIME)


def format_bandwidth(bandwidth: float) -> str:
    """Write B/s: ``400 GB/s``."""
    return _format(bandwidth, _BANDWIDTH)


def size_expression(value: str) -> str:
    """Give the expression of Vega's that writes bytes."""
    return _expression(value, _SIZE, ".4~g")


def time_expression(value: str) -> str:
    """Give the expression of Vega's that writes seconds."""
    return _expression(value, _TIME)


def bandwidth_expression(value: str) -> str:
    """Give the expression of Vega's that writes B/s."""
    return _expression(value, _BANDWIDTH)


def _format(value: float, units: Units) -> str:
    unit, scale = next(((u, s) for u, s in units if value >= s * _NEARLY), units[-1])
    return f"{float(f'{value / scale:.3g}'):g} {unit}"


def _expression(value: str, units: Units, form: str = ".3~g") -> str:
    *larger, (unit, scale) = units
    text = f"format({value} / {scale!r}, '{form}') + ' {unit}'"
    for name, factor in reversed(larger):
        text = (
            f"{value} >= {factor * _NEARLY!r} ? format({value} / {factor!r}, '{form}') + ' {name}' : {text}"
        )
    return f"({text})"
