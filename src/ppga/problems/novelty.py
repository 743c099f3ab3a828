"""An off-policy problem whose learners can also maximize the novelty of what a step does."""

import numpy as np

from ppga.problems.off_policy import OffPolicyProblem
from ppga.storage import NumpyArray

REFERENCES = 256
"""Recorded steps that a step is compared with."""


class NoveltyProblem(OffPolicyProblem):
    """Adds one number to every sampled transition: the mean distance of its measure proxies to other steps'.

    QD-PG measures the distance to the nearest few steps. Where proxies are flags, such as foot contact, all
    combinations occur, so these distances are all zero; the mean distance still tells rare from usual ones.
    """

    def with_extra_gains(self, rows: NumpyArray, rng: np.random.Generator) -> NumpyArray:
        """Transitions (..., width) with their novelty (..., width + 1)."""
        k = len(self.measure_names)
        references = self.replay.sample(rng, (REFERENCES,))[:, -k:]
        distinct, counts = np.unique(references, axis=0, return_counts=True)  # a few, where proxies are flags
        novelty = np.zeros((*rows.shape[:-1], 1), rows.dtype)
        for reference, count in zip(distinct, counts, strict=True):
            distance = np.linalg.norm(rows[..., -k:] - reference, axis=-1, keepdims=True)
            novelty += count / REFERENCES * distance
        return np.concatenate([rows, novelty], axis=-1)
