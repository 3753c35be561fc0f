"""Records: one flat dict for each row of a benchmark, with everything that its figures depend on."""

import json
import statistics
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from .forms import FORMS

if TYPE_CHECKING:
    from .measure import Timing

Record: TypeAlias = dict[str, Any]

NATIVE, NCCL = "native", "nccl"
THEIRS = (NATIVE, NCCL)  # what is compared with ours


def record(
    collective: str, algorithm: str, nbytes: int, timing: "Timing", base: float | None, **more: Any
) -> Record:
    """Describe one row.

    Parameters
    ----------
    collective, algorithm : str
        What was measured.
    nbytes : int
        Size of the vector; 0 if there is none.
    timing : Timing
        The measurement.
    base : float or None
        Median seconds of the baseline in the same run, mostly of the native collective; None if it has none.
    **more
        The other independent variables and the provenance; ``ranks`` must be among them.

    Returns
    -------
    dict
        ``ratio`` is the baseline's time over this time, so more is better; None where there is none.
    """
    p25, median, p75, p95 = (float(time) for time in np.percentile(timing.samples, [25, 50, 75, 95]))
    algbw = nbytes / median
    return {
        "collective": collective,
        "algorithm": algorithm,
        "size": nbytes,
        **more,
        "samples": len(timing.samples),
        "batch": timing.batch,
        "median_us": median * 1e6,
        "p25_us": p25 * 1e6,
        "p75_us": p75 * 1e6,
        "p95_us": p95 * 1e6,
        "min_us": float(timing.samples.min()) * 1e6,
        "algbw_GBps": algbw / 1e9,
        "busbw_GBps": algbw / 1e9 * FORMS[collective].busbw(more["ranks"]),
        "ratio": None if base is None else base / median,
        "wrong": timing.wrong,
    }


def append(records: Iterable[Record], path: str) -> None:
    """Add one line of JSON for each record to a file.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(item) + "\n" for item in records)


def read(path: str) -> list[Record]:
    """Read a file of records."""
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def best(records: Iterable[Record]) -> list[Record]:
    """Return the fastest record for each size, in the order of sizes; wrong ones and others' cannot be it."""
    fastest: dict[int, Record] = {}
    for item in records:
        rival = fastest.get(item["size"])
        if item["algorithm"] not in THEIRS and not item["wrong"]:
            fastest[item["size"]] = min(filter(None, (rival, item)), key=lambda r: r["median_us"])
    return [fastest[size] for size in sorted(fastest)]


def mean_ratio(records: Iterable[Record]) -> float | None:
    """Return the geometric mean of the ratios, None if there is none."""
    ratios = [item["ratio"] for item in records if item["ratio"] is not None]
    return statistics.geometric_mean(ratios) if ratios else None
