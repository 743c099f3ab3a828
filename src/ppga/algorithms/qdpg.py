"""QD-PG (Pierrot et al., GECCO 2022): policy gradients for quality, and others for diversity.

The second critic learns how far what a step shows (its measure proxies) is from what is usual: the mean
distance to a sample of all that is remembered. The distance to the nearest few, as published, says nothing
where proxies are flags: with every combination seen, all of them are equally near.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ppga.algorithms.off_policy import OffPolicy
from ppga.algorithms.pga_me import PGAME
from ppga.algorithms.problem import Problem
from ppga.storage import NumpyArray
from ppga.tasks import Environment

OTHERS = 256
"""Remembered steps that a step is compared with."""


class Novelty(OffPolicy):
    """Steps give one thing more: how unusual what they show is."""

    def with_more(self, rows: NumpyArray, draws: np.random.Generator) -> NumpyArray:
        """Rows with their novelty."""
        k = len(self.measure_names)
        others, times = np.unique(self.replay.sample(draws, (OTHERS,))[:, -k:], axis=0, return_counts=True)
        novelty = np.zeros((*rows.shape[:-1], 1), rows.dtype)
        for other, count in zip(others, times, strict=True):  # of flags, a few
            novelty += count / OTHERS * np.linalg.norm(rows[..., -k:] - other, axis=-1, keepdims=True)
        return np.concatenate([rows, novelty], axis=-1)


class QDPG(PGAME):
    """As PGA-MAP-Elites, but a third of the policies climb a critic of diversity."""

    name = "qdpg"
    summary = "Quality and Diversity Policy Gradients, with TD3 (Pierrot et al., GECCO 2022)"

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """One learner raises the reward, another the novelty of what is seen."""
        weights = np.eye(2 + len(task.measure_names))[[0, -1]]
        return Novelty(
            task, config.search, config.td3, config.network, config.search.branches, weights, progress
        )
