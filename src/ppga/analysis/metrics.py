"""Metrics that archives are compared by, as plain functions of the elites' objectives (n,)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ppga.storage import NumpyArray


def qd_score(objective: ArrayLike, offset: float) -> float:
    """Sum over all elites of objective minus offset; empty cells add nothing.

    The offset is a constant of the task, to be reported with the score; it is subtracted, as in pyribs.
    """
    values = np.asarray(objective, np.float64)
    return float((values - offset).sum())


def normalized_qd_score(objective: ArrayLike, offset: float, cells: int) -> float:
    """QD-score divided by the number of cells: the mean over all cells, where an empty cell counts 0."""
    return qd_score(objective, offset) / cells


def coverage(objective: ArrayLike, cells: int) -> float:
    """Share of the cells that hold an elite."""
    return len(np.asarray(objective)) / cells


def best(objective: ArrayLike) -> float:
    """Highest objective; NaN if the archive is empty."""
    values = np.asarray(objective, np.float64)
    return float(values.max()) if len(values) else float("nan")


def mean(objective: ArrayLike) -> float:
    """Mean objective of the elites; NaN if the archive is empty."""
    values = np.asarray(objective, np.float64)
    return float(values.mean()) if len(values) else float("nan")


def ccdf(objective: ArrayLike, cells: int, thresholds: ArrayLike) -> NumpyArray:
    """Complementary cumulative distribution: share of all cells whose elite reaches each threshold (t,).

    At low thresholds it is the coverage; above the highest objective it is 0.
    """
    values = np.sort(np.asarray(objective, np.float64))
    below = np.searchsorted(values, np.asarray(thresholds, np.float64), side="left")
    return (len(values) - below) / cells


def bootstrap(
    samples: ArrayLike,
    statistic: Callable[[NumpyArray], NumpyArray] = lambda drawn: drawn.mean(axis=1),
    confidence: float = 0.95,
    draws: int = 10_000,
    seed: int = 0,
) -> tuple[NumpyArray, NumpyArray]:
    """Bootstrapped confidence interval of a statistic over runs with different seeds.

    Args:
        samples: (n, ...) one row for each run.
        statistic: from resampled rows (draws, n, ...) to (draws, ...); their mean by default.
        confidence: share of the resampled statistics inside the interval.
        draws: number of resamples.
        seed: of the resampling.

    Returns:
        Lower and upper end (...) of the interval; NaN for fewer than two runs.
    """
    rows = np.asarray(samples, np.float64)
    if len(rows) < 2:
        undefined = np.full(rows.shape[1:], np.nan)
        return undefined, undefined
    resampled = np.random.default_rng(seed).integers(len(rows), size=(draws, len(rows)))
    values = statistic(rows[resampled])
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail], axis=0)
    return low, high
