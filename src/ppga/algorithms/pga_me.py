"""PGA-MAP-Elites (Nilsson & Cully, GECCO 2021): half of the new policies come of policy gradients."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import numpy as np

from ppga.algorithms.base import Cost
from ppga.algorithms.map_elites import MAPElites
from ppga.algorithms.off_policy import OffPolicy
from ppga.algorithms.problem import Problem
from ppga.storage import NumpyArray
from ppga.tasks import Environment


class PGAME(MAPElites):
    """MAP-Elites, with TD3 critics on everybody's experience to vary elites by."""

    name = "pga-me"
    summary = "Policy Gradient Assisted MAP-Elites, with TD3 (Nilsson & Cully, GECCO 2021)"
    sections: ClassVar[tuple[str, ...]] = ("td3",)
    anywhere = False
    problem: OffPolicy

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """TD3 learns the reward."""
        weights = np.eye(1, 1 + len(task.measure_names))
        return OffPolicy(
            task, config.search, config.td3, config.network, config.search.branches, weights, progress
        )

    def cost(self) -> Cost:
        """What an iteration takes."""
        n, td3 = self.config.branches, self.problem.td3.config
        learners = len(self.problem.weights)
        climbed = round(self.config.gradient_share * n)
        return self.problem.cost(n, learners * td3.critic_steps, climbed * td3.policy_steps)

    def offspring(self, key: jax.Array) -> NumpyArray:
        """Greedy actors, elites climbed by gradients, and elites varied by iso+line."""
        n = self.config.branches
        if self.archives.result.empty:
            return self.problem.random(key, n)
        if not len(self.problem.replay):  # it began with elites of another run
            return self.iso_line(n)
        greedy = self.problem.greedy(self.search)
        climbing = max(0, round(self.config.gradient_share * n) - len(greedy))
        which = np.arange(climbing) % len(greedy)  # learners take turns
        climbed = self.problem.climb(self.search, self.elites(climbing, "gradient parents"), which, key)
        greedy = greedy[: n - climbing]
        return np.concatenate([greedy, climbed, self.iso_line(n - len(greedy) - climbing)])

    def learn(self, key: jax.Array) -> dict[str, Any]:
        """Critics and greedy actors learn from all that was seen."""
        self.search, effort = self.problem.learn(self.search, key)
        self.count(effort)
        return effort.metrics
