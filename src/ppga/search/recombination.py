"""Ranking of branches, and recombination of the best of them, as in CMA-ES."""

import numpy as np

from ppga.storage import NumpyArray


def ranked(improvement: NumpyArray) -> NumpyArray:
    """Indices of branches by improvement (n,), best first; those that are not finite are left out."""
    order = np.argsort(-improvement, kind="stable")
    return np.asarray(order[np.isfinite(improvement[order])])


def recombined_mean(solutions: NumpyArray) -> NumpyArray:
    """Mean (d,) of the better half of solutions (n, d), best first, with CMA-ES's logarithmic weights."""
    parents = max(1, len(solutions) // 2)
    weights = np.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    return np.asarray((weights / weights.sum()).astype(solutions.dtype) @ solutions[:parents])
