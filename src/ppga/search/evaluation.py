"""Evaluation of candidates: a first evaluation, and confirmation of those that would become elites.

Scores vary between episodes, so an archive that keeps the best of many first evaluations fills with luck.
With confirmation, a candidate that would become an elite is evaluated again, and the archive keeps the new
scores only; elites are re-evaluated from time to time and move to the cell of their mean measures.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np

from ppga.archives import EliteArchive
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
        min_survival: admit only elites that last until the time limit in this share of their episodes; 0
            admits all.
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
        recheck: elites re-evaluated in each iteration, those with the fewest episodes first. Each moves to
            the cell of its mean measures; 0 for none.
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
    """Evaluates candidates again before they enter the archive, and elites from time to time.

    Args:
        config: settings.
        first_episodes: episodes of a first evaluation.
        problem: evaluates.
        elites: the archive.
        count: called with every evaluation, for the run's counters.
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

    def confirm(
        self, state: Any, candidates: NumpyArray, first: Evaluation, key: jax.Array
    ) -> dict[str, NumpyArray]:
        """Evaluate candidates again that would enter the archive by their first evaluation.

        Args:
            state: the problem's state.
            candidates: (n, d).
            first: their first evaluation.
            key: random key.

        Returns:
            Scores (n, ...) of the second evaluation, see `Evaluation.scores`. They are NaN for candidates
            that were not evaluated again, and so is the objective of those whose measures vary too much.
        """
        n = len(candidates)
        scores = {name: np.full(values.shape, np.nan, np.float32) for name, values in first.scores().items()}
        enters = self.elites.would_enter(first.objective, first.measures, first.survival)
        # one batch size, so one program: as many episodes as a first evaluation, or enough to be efficient
        together = max(n * self.first_episodes, EPISODES_AT_ONCE)
        size = min(n, max(1, together // self.config.episodes))
        order = np.argsort(~enters, kind="stable")
        for number, start in enumerate(range(0, int(enters.sum()), size)):
            places = np.arange(start, start + size)
            rows = order[np.minimum(places, n - 1)]
            active = enters[rows] & (places < n)
            batch_key = jax.random.fold_in(key, number)
            again = self.problem.evaluate(state, candidates[rows], batch_key, self.config.episodes, active)
            self.count(again)
            for name, values in again.scores().items():
                scores[name][rows[active]] = values[active]
        scores["objective"][~self._steady(scores["measures_std"])] = np.nan
        return scores

    def recheck(self, key: jax.Array) -> int:
        """Re-evaluate the elites with the fewest episodes; return how many of them moved to another cell."""
        episodes = self.config.episodes
        cells = self.elites.least_evaluated(self.config.recheck)
        if not len(cells):
            return 0
        # the batch size of `confirm`, whose program is compiled already; the surplus is not evaluated
        size = max(self.config.recheck, EPISODES_AT_ONCE // episodes)
        rows = np.minimum(np.arange(size), len(cells) - 1)
        active = np.arange(size) < len(cells)
        evaluation = self.problem.evaluate_elites(self.elites.elites(cells[rows]), key, episodes, active)
        self.count(evaluation)
        n = len(cells)
        moved = self.elites.merge(cells, episodes, **evaluation.rows(slice(n)).scores())
        return int(moved.sum())

    def _steady(self, measures_std: NumpyArray) -> NumpyArray:
        """Which (n,) candidates' measures vary little enough, by their standard deviations (n, k)."""
        low, high = np.array(self.problem.measure_ranges).T
        share = np.max(measures_std / (high - low), axis=1, initial=0.0)
        return np.asarray((share <= self.config.max_measure_std) | (self.config.max_measure_std == 0))
