"""Statistics of elites over the episodes that their scores are based on."""

from collections.abc import Mapping

import numpy as np

from ppga.storage import NumpyArray

MIN_SURVIVAL = 0.75
"""Elites whose survival is at least this count as survivors."""
STATISTICS = ("objective_std", "measures_std", "length", "survival")
"""Fields of an elite: standard deviations () and (k,) over its episodes, their mean number of control steps
(), and the share of them that did not end early, by the task's rule or by divergence (). Where they are not
known, all of them are 0; a length of 0 means that."""


def statistics_shapes(measures: int) -> dict[str, tuple[int, ...]]:
    """Name -> shape of each statistic of one elite, for k measures."""
    return {name: (measures,) if name == "measures_std" else () for name in STATISTICS}


def survives(survival: NumpyArray, least: float) -> NumpyArray:
    """Which (n,) elites survive at least that share of their episodes, whose means (n,) are rounded."""
    return np.asarray(survival >= least - 1e-5)


def combined(
    old: Mapping[str, NumpyArray], new: Mapping[str, NumpyArray], share: NumpyArray
) -> dict[str, NumpyArray]:
    """Scores of n elites over the episodes of two evaluations.

    Args:
        old: objective (n,), measures (n, k) and `STATISTICS` (n, ...) of the first evaluation. Statistics
            that are not known become those of the second one.
        new: those of the second evaluation.
        share: (n,) the second evaluation's share of all episodes.
    """
    scores = {}
    known = old["length"] > 0
    for name, std in (("objective", "objective_std"), ("measures", "measures_std")):
        part = share if new[name].ndim == 1 else share[:, None]
        step = new[name] - old[name]
        scores[name] = old[name] + part * step
        variance = (1 - part) * old[std] ** 2 + part * new[std] ** 2 + part * (1 - part) * step**2
        scores[std] = np.where(known if new[name].ndim == 1 else known[:, None], np.sqrt(variance), new[std])
    for name in ("length", "survival"):
        scores[name] = np.where(known, old[name] + share * (new[name] - old[name]), new[name])
    return scores
