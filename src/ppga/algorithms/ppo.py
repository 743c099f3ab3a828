"""Plain PPO on the reward: what one search policy reaches when nothing branches off it."""

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms.base import Algorithm, Cost
from ppga.algorithms.policy_search import PolicySearch
from ppga.algorithms.problem import GradientProblem, Problem
from ppga.tasks import Environment


class PPO(Algorithm):
    """Walk on the reward alone; judge the policy now and then."""

    name = "ppo"
    summary = "plain PPO (Schulman et al., 2017), judged after every walk"
    sections: ClassVar[tuple[str, ...]] = ("ppo",)
    gradients = True
    problem: GradientProblem

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """VPPO learns, one agent."""
        return PolicySearch(task, config.search, config.ppo, config.network, progress)

    def cost(self) -> Cost:
        """What an iteration takes."""
        policies = self.config.emitters * self.judged()
        if isinstance(self.problem, PolicySearch):
            return self.problem.cost(policies, self.config.walk_updates)
        return Cost(policies)

    def judged(self) -> int:
        """Policies of each walk that are judged."""
        return 1

    def iterate(self) -> dict[str, Any]:
        """Some updates, then a judgement."""
        m, k = self.config.emitters, len(self.problem.measure_names)
        weights = np.zeros((m, 1 + k))
        weights[:, 0] = 1.0
        with self.phase("walk"):
            updates = self.config.first_updates or self.config.walk_updates
            self.search, walked = self.problem.walk(self.search, weights, self.key("walk"), updates)
        self.count(walked)
        theta = self.problem.solutions(self.search)[:, None]
        judged = self.judge(theta, self.key("evaluate"))
        with self.phase("archive"):
            guidance = self.guide(theta, judged, np.arange(m)[:, None])
        return {
            "new_elites": int(self.keep(theta, judged, self.key("confirm")).sum()),
            "soft_new": int(guidance.entered.sum()),
            "search_objective": judged.objective.tolist(),
            "search_measures": judged.measures.tolist(),
            **{f"walk_{name}": value for name, value in walked.metrics.items()},
        }
