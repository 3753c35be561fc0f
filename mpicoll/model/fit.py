"""From measured times of messages to a link: robust regression, with intervals of confidence.

A message of n bytes takes ``latency + max(n / peak, (n - burst) / bandwidth)``; without a burst, that is
``latency + n / bandwidth``. The logarithms of what is measured and what is modelled are compared, so that a
short message counts as much as a long one, and what lies far off counts less. A burst is looked for where the
fit is poor without.

The intervals hold 95 % of the fits to samples drawn anew from the measured ones, with replacement (the
bootstrap: B. Efron, "Bootstrap methods: another look at the jackknife", Ann. Statist. 7 (1979)).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .network import Link

Reals = npt.NDArray[np.float64]

FIGURES = ("latency", "bandwidth", "burst", "peak")  # the last two where there is a burst
LEAST = 1024  # bytes of a burst
DRAWS = 100
POOR = 0.15  # from which deviation of a size on a burst may be what explains it
FASTER = 1.5  # times the bandwidth must a peak be, or there is none
OUTLIER = 0.05  # from where on a deviation counts less: 5 %


@dataclass(frozen=True)
class Fitted:
    """A link, and how well it is known.

    Attributes
    ----------
    link : Link
    intervals : dict of str to (float, float)
        For each figure that was fitted, the 95 % interval of confidence.
    worst : float
        The largest deviation of a size's median from the model, relative.
    """

    link: Link
    intervals: dict[str, tuple[float, float]]
    worst: float


def fit(samples: Mapping[int, Reals], seed: int = 0, draws: int | None = None) -> Fitted:
    """Fit a link to measured times.

    Parameters
    ----------
    samples : mapping of int to ndarray
        For each size in bytes, seconds of a message one way.
    seed, draws : int, optional
        Of the intervals: how many samples are drawn, and with which seed.

    Raises
    ------
    ValueError
        If there are fewer than three sizes, or no time is above zero.
    """
    sizes = np.array(sorted(samples), np.float64)
    if len(sizes) < 3:
        raise ValueError(f"{len(sizes)} sizes measured, expected 3 or more")
    medians = _medians(samples)
    logs = _regress(sizes, medians)
    if _worst(logs, sizes, medians) > POOR and len(sizes) > 4:
        bursting = _regress(sizes, medians, bursts=True)
        _, bandwidth, burst, peak = np.exp(bursting)
        if peak > FASTER * bandwidth and burst > LEAST:
            logs = bursting
    rng = np.random.default_rng(seed)
    drawn = [
        np.exp(_regress(sizes, _medians({n: rng.choice(t, len(t)) for n, t in samples.items()}), start=logs))
        for _ in range(DRAWS if draws is None else draws)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0).tolist()
    intervals = dict(zip(FIGURES, zip(low, high, strict=True), strict=False))
    figures = dict(zip(FIGURES, np.exp(logs).tolist(), strict=False))
    return Fitted(Link(**figures), intervals, _worst(logs, sizes, medians))


def interval(values: Reals, seed: int = 0) -> tuple[float, float, float]:
    """Give the median of some values, and its 95 % interval of confidence."""
    rng = np.random.default_rng(seed)
    draws = np.median(rng.choice(values, (DRAWS, len(values))), axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(np.median(values)), float(low), float(high)


def _medians(samples: Mapping[int, Reals]) -> Reals:
    medians = np.array([np.median(samples[size]) for size in sorted(samples)])
    if not (medians > 0).any():
        raise ValueError("no time above zero measured")
    return np.maximum(medians, medians[medians > 0].min())


def _modelled(logs: Reals, sizes: Reals) -> Reals:
    """Give the times by the logarithms of latency, bandwidth and, where there is one, burst and peak."""
    latency, bandwidth, *more = np.exp(logs)
    burst, peak = more or (0.0, np.inf)
    return latency + np.maximum(sizes / peak, (sizes - burst) / bandwidth)


def _deviations(logs: Reals, sizes: Reals, seconds: Reals) -> Reals:
    return np.log(_modelled(logs, sizes) / seconds)


def _worst(logs: Reals, sizes: Reals, seconds: Reals) -> float:
    return float(np.abs(np.exp(_deviations(logs, sizes, seconds)) - 1).max())


def _regress(sizes: Reals, seconds: Reals, bursts: bool = False, start: Reals | None = None) -> Reals:
    """Give the logarithms of the figures."""
    from scipy.optimize import least_squares  # noqa: PLC0415 - takes long, and is an extra

    rate = sizes[-1] / seconds[-1]
    # latency, bandwidth, burst, peak; no message is so long that more could be told
    low = np.log([seconds.min() / 100, rate / 100, 1.0, rate])
    high = np.log([seconds.max() * 2, rate * 1e6, sizes[-2], rate * 1e6])
    if start is not None:
        starts = [start]
    elif bursts:  # where the curve bends is not found by going downhill from afar
        inner = sizes[(sizes >= LEAST) & (sizes < sizes[-2])]
        starts = [np.log([seconds[0], rate, burst, 20 * rate]) for burst in inner]
    else:
        starts = [np.log([seconds[0], rate])]
    count = len(starts[0])
    tries = [
        least_squares(
            _deviations,
            np.clip(guess, low[:count] + 1e-9, high[:count] - 1e-9),
            bounds=(low[:count], high[:count]),
            args=(sizes, seconds),
            loss="soft_l1",
            f_scale=OUTLIER,
            max_nfev=50,
        )
        for guess in starts
    ]
    return np.asarray(min(tries, key=lambda found: float(found.cost)).x)
