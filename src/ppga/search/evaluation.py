"""Evaluation of candidates: a first evaluation, and confirmation of those that would become elites.

Scores vary between episodes, so an archive that keeps the best of many first evaluations fills with luck.
With confirmation, a candidate that would become an elite is evaluated again, and the archive keeps the new
scores only. A few elites are re-evaluated with each batch of candidates, and move to the cells of their mean
measures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import jax
import numpy as np

from ppga.archives import EliteArchive
from ppga.archives.format import LEARNER_FIELDS
from ppga.config import check_range, check_whole, common
from ppga.limits import MOST_POLICIES
from ppga.problems import Evaluation, Problem
from ppga.storage import NumpyArray

EPISODES_AT_ONCE = 128
"""A batch of at least this many episodes keeps the machine busy."""


@dataclass(frozen=True)
class EvaluationConfig:
    """The first evaluation of candidates.

    Attributes:
        episodes: episodes of each candidate's first evaluation.
        min_survival: admit only elites whose episodes do not end early, by a fall for example, in this share
            of all; 0 admits all.
    """

    episodes: int = common(1)
    min_survival: float = 0.0

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_whole("evaluation.episodes", self.episodes)
        check_range("evaluation.min_survival", self.min_survival, 0.0, 1.0)


@dataclass(frozen=True)
class StochasticEvaluationConfig(EvaluationConfig):
    """Evaluation of candidates whose policies are distributions of actions.

    Attributes:
        actions: mean (the policy's mean action) or sample (with exploration noise).
    """

    actions: Literal["mean", "sample"] = "mean"


@dataclass(frozen=True)
class ConfirmationConfig:
    """A second evaluation of candidates that would become elites.

    Attributes:
        episodes: episodes of a candidate's second evaluation, whose scores are kept.
        max_measure_std: reject candidates whose measures vary more than this: standard deviation between
            episodes, in units of the measures' ranges; 0 accepts any.
        recheck: elites re-evaluated with each batch of candidates, those with the fewest episodes first. Each
            moves to the cell of its mean measures; 0 for none.
    """

    episodes: int = common(8)
    max_measure_std: float = 0.07
    recheck: int = 4

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_whole("confirm.episodes", self.episodes)
        check_range("confirm.max_measure_std", self.max_measure_std)
        check_whole("confirm.recheck", self.recheck, least=0, most=MOST_POLICIES)


class Confirmation:
    """Evaluates candidates again before they enter the archive, and a few elites with them.

    Args:
        config: settings.
        first_episodes: episodes of a first evaluation.
        problem: evaluates.
        elites: the archive.
        count: called with every evaluation, for the run's counters.

    Attributes:
        moved: number of re-evaluated elites that left their cell.
    """

    def __init__(
        self,
        config: ConfirmationConfig,
        first_episodes: int,
        problem: Problem,
        elites: EliteArchive,
        count: Callable[[Evaluation], None],
    ) -> None:
        self.config, self.first_episodes = config, first_episodes
        self.problem, self.elites, self.count = problem, elites, count
        self.moved = 0

    def confirm(
        self, candidates: Mapping[str, NumpyArray], first: Evaluation, key: jax.Array
    ) -> dict[str, NumpyArray]:
        """Evaluate candidates again that would enter the archive by their first evaluation.

        The elites with the fewest episodes are evaluated with them, and move to the cells of their mean
        measures.

        Args:
            candidates: solution (n, d) and all fields (n, ...) that the archive stores with it.
            first: their first evaluation.
            key: random key.

        Returns:
            Scores (n, ...) of the second evaluation, see `Evaluation.arrays`. They are NaN for candidates
            that were not evaluated again, and so is the objective of those whose measures vary too much.
        """
        scores = {name: np.full(values.shape, np.nan, np.float32) for name, values in first.arrays().items()}
        rows = np.flatnonzero(self.elites.would_enter(first.objective, first.measures, first.survival))
        cells = self.elites.least_evaluated(self.config.recheck)
        if not len(rows) + len(cells):
            return scores
        elites = self.elites.elites(cells)
        batch = {
            name: np.concatenate([values[rows], elites[name]])
            for name, values in candidates.items()
            if name not in LEARNER_FIELDS
        }
        again = self._evaluate(batch, self._batch_size(len(first.objective)), key)
        if len(cells):
            new = {name: values[len(rows) :] for name, values in again.items()}
            self.moved += int(self.elites.merge(cells, self.config.episodes, **new).sum())
        for name, values in again.items():
            scores[name][rows] = values[: len(rows)]
        scores["objective"][~self._steady(scores["measures_std"])] = np.nan
        return scores

    def _batch_size(self, candidates: int) -> int:
        """One size, so one program: as many episodes as a first evaluation, or enough to be efficient."""
        together = max(candidates * self.first_episodes, EPISODES_AT_ONCE)
        return min(candidates + self.config.recheck, max(1, together // self.config.episodes))

    def _evaluate(self, batch: Mapping[str, NumpyArray], size: int, key: jax.Array) -> dict[str, NumpyArray]:
        """Scores (n, ...) of policies, all their fields (n, ...), evaluated `size` at a time."""
        n = len(batch["solution"])
        parts = []
        for number, start in enumerate(range(0, n, size)):
            places = np.arange(start, start + size)
            active = places < n  # the surplus is not evaluated
            policies = {name: values[np.minimum(places, n - 1)] for name, values in batch.items()}
            evaluation = self.problem.evaluate_elites(
                policies, jax.random.fold_in(key, number), self.config.episodes, active
            )
            self.count(evaluation)
            parts.append({name: values[active] for name, values in evaluation.arrays().items()})
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _steady(self, measures_std: NumpyArray) -> NumpyArray:
        """Which (n,) candidates' measures vary little enough, by their standard deviations (n, k)."""
        low, high = np.array(self.problem.measure_ranges).T
        share = np.max(measures_std / (high - low), axis=1, initial=0.0)
        return np.asarray((share <= self.config.max_measure_std) | (self.config.max_measure_std == 0))
