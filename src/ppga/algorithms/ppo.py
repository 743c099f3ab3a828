"""Plain PPO on the reward: the best policy of a single learner, for comparison."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms.base import Algorithm, AlgorithmConfig
from ppga.algorithms.ppga_config import (
    HUMANOID,
    LAPTOP_PPO,
    PAPER_EVALUATION,
    PAPER_NETWORK,
    PAPER_PPO,
    SMOKE_PPO,
)  # fmt: skip
from ppga.algorithms.presets import ITERATIONS, Preset, smoke
from ppga.config import check_whole, common
from ppga.learners.ppo import PPOConfig
from ppga.problems import Cost, GradientProblem, NetworkConfig, PPOProblem
from ppga.rollouts import Executor
from ppga.search import StochasticEvaluationConfig
from ppga.tasks import Environment


@dataclass(frozen=True)
class PPOAlgorithmConfig(AlgorithmConfig):
    """Settings of plain PPO.

    Attributes:
        evaluation: evaluation of the policy.
        walk_updates: PPO updates in each iteration; the policy is evaluated after them.
        ppo: the learner.
    """

    algorithm: ClassVar[str] = "ppo"

    evaluation: StochasticEvaluationConfig = field(default_factory=StochasticEvaluationConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    walk_updates: int = common(20)
    ppo: PPOConfig = field(default_factory=lambda: LAPTOP_PPO)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_whole("walk_updates", self.walk_updates)


class PPO(Algorithm):
    """Walk on the reward, and evaluate the policy after every walk."""

    summary = "plain PPO (Schulman et al., 2017), evaluated after every walk"
    supports_analytic_problems = True
    problem: GradientProblem
    config: PPOAlgorithmConfig

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> PPOProblem:
        """VPPO with one agent."""
        sample = config.evaluation.actions == "sample"
        return PPOProblem(task, config.ppo, config.network, sample, executor, progress, gradient_count=1)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        return self.problem.cost(1, self.config.walk_updates)

    def iterate(self) -> dict[str, Any]:
        """Some updates, then an evaluation."""
        weights = np.eye(1, 1 + len(self.problem.measure_names))[0]
        updates = self.config.walk_updates
        with self.timed("walk"):
            self.problem_state, walked = self.problem.walk(
                self.problem_state, weights, self.key("walk"), updates, scaled=False
            )
        self.count(walked)
        theta = self.problem.solution(self.problem_state)[None]
        scores = self.evaluate(theta)
        return {
            "new_elites": self.add_elites(theta, scores),
            "search_objective": float(scores.objective[0]),
            "search_measures": scores.measures[0].tolist(),
            **{f"walk_{name}": value for name, value in walked.metrics.items()},
        }


LAPTOP_BY_TASK: dict[str, dict[str, Any]] = {
    "halfcheetah": {"confirm.episodes": 4},
    "walker2d": {"confirm.episodes": 4},
    "ant": {"confirm.episodes": 4, "confirm.max_measure_std": 0.0, "ppo.environments": 200},
    "humanoid": {"ppo.learning_rate": HUMANOID["ppo.learning_rate"]},
    "humanoid-full": {"ppo.learning_rate": HUMANOID["ppo.learning_rate"]},
}
PAPER_BY_TASK: dict[str, dict[str, Any]] = {
    "halfcheetah": {"ppo.std": "reset"},
    "walker2d": {"ppo.std": "reset"},
    "hopper": {"ppo.std": "reset"},
    "humanoid": {"ppo.learning_rate": 3e-4},
    "humanoid-full": {"ppo.learning_rate": 3e-4},
}
LAPTOP = Preset(PPOAlgorithmConfig(), tasks=LAPTOP_BY_TASK)
PAPER = Preset(
    PPOAlgorithmConfig(
        evaluation=PAPER_EVALUATION,
        confirm=None,
        network=PAPER_NETWORK,
        walk_updates=10,
        ppo=replace(PAPER_PPO, reset_optimizer=False, reset_environments=False),  # it learns without a break
    ),
    ITERATIONS,
    tasks=PAPER_BY_TASK,
)
PRESETS = {"laptop": LAPTOP, "paper": PAPER, "smoke": smoke(LAPTOP, {"walk_updates": 1, **SMOKE_PPO})}
