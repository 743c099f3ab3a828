"""Measure-conditioned PPO (MC-PPO): one policy, conditioned on target measures, provides all elites.

Not in the paper. PPGA follows one weighted sum of reward and measures at a time; here each target has weights
of its own, and one network learns the policies for all of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms.base import Algorithm, AlgorithmConfig, check_policies
from ppga.algorithms.ppga_config import HUMANOID, LAPTOP_PPO, SMOKE_PPO
from ppga.algorithms.presets import SHORT_CONFIRMATION, Preset, smoke
from ppga.config import check_whole, common
from ppga.errors import InputError
from ppga.learners.multipliers import MultiplierConfig
from ppga.learners.ppo_config import PPOConfig
from ppga.problems import ConditionedProblem, Cost, NetworkConfig
from ppga.rollouts import Executor
from ppga.search import (
    ConfirmationConfig,
    StochasticEvaluationConfig,
    TargetConfig,
    sample_targets,
    scaled_measures,
)
from ppga.tasks import Environment

OWN_PPO = {
    "update": "separate",
    "normalize": "rewards",
    "normalizers": "shared",
    "bootstrap_truncated": True,
    "reset_environments": False,
    "reset_optimizer": False,
}
"""Settings of PPO that the conditioned learner does not support otherwise."""


@dataclass(frozen=True)
class MCPPOConfig(AlgorithmConfig):
    """Settings of MC-PPO.

    Attributes:
        evaluation: first evaluation of candidates.
        updates: PPO updates in each iteration.
        candidates: targets in each iteration whose policies are evaluated.
        targets: which measures the policy is trained to reach.
        multipliers: weights of the measures.
        ppo: the learner.
    """

    algorithm: ClassVar[str] = "mcppo"

    evaluation: StochasticEvaluationConfig = field(default_factory=StochasticEvaluationConfig)
    confirm: ConfirmationConfig | None = field(default_factory=lambda: SHORT_CONFIRMATION)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    updates: int = common(32)
    candidates: int = common(64)
    targets: TargetConfig = field(default_factory=TargetConfig)
    multipliers: MultiplierConfig = field(default_factory=MultiplierConfig)
    # with more noise, the mean action's measures differ from those that the policy learns
    ppo: PPOConfig = field(default_factory=lambda: replace(LAPTOP_PPO, environments=256, min_std=0.1))

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_whole("updates", self.updates)
        check_policies("candidates", self.candidates)
        for name, value in OWN_PPO.items():
            if (given := getattr(self.ppo, name)) != value:
                raise InputError(f"mcppo does not support --ppo.{name.replace('_', '-')} {given}.")


class MCPPO(Algorithm):
    """Train a policy to reach all measures, and evaluate its policies for some of them."""

    summary = "measure-conditioned PPO: one policy for all cells, an alternative to PPGA"
    problem: ConditionedProblem
    config: MCPPOConfig

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> ConditionedProblem:
        """A conditioned policy, learned by VPPO."""
        sample = config.evaluation.actions == "sample"
        return ConditionedProblem(
            task, config.ppo, config.network, config.multipliers, config.targets.reward_share, sample,
            executor, progress,
        )  # fmt: skip

    def cost(self) -> Cost:
        """Cost of an iteration."""
        return self.problem.cost(self.config.candidates, self.config.updates)

    def iterate(self) -> dict[str, Any]:
        """Some updates, then an evaluation of policies for targets."""
        config, elites = self.config, self.elites
        environments, rng = config.ppo.environments, self.generator("targets")
        targets = sample_targets(config.targets, elites, rng, config.updates * environments)
        targets = targets.reshape(config.updates, environments, -1)
        if not elites.empty:  # the environments for the reward alone
            best = elites.best()["measures"]
            targets[:, : self.problem.reward_environments] = scaled_measures(best, elites.ranges)
        with self.timed("train"):
            self.problem_state, learned = self.problem.train(self.problem_state, targets, self.key("train"))
        self.count(learned)

        goals = sample_targets(config.targets, elites, self.generator("goals"), config.candidates)
        solutions = self.problem.fold(self.problem_state, goals)
        scores = self.evaluate(solutions)
        missed = np.abs(scaled_measures(scores.measures, elites.ranges) - goals).mean() / 2
        return {
            "new_elites": self.add_elites(solutions, scores),
            "candidate_error": float(missed),
            **{f"train_{name}": value for name, value in learned.metrics.items()},
        }


LAPTOP_BY_TASK: dict[str, dict[str, Any]] = {
    "humanoid": {"ppo.learning_rate": HUMANOID["ppo.learning_rate"]},
    "humanoid-full": {"ppo.learning_rate": HUMANOID["ppo.learning_rate"]},
}
LAPTOP = Preset(MCPPOConfig(), tasks=LAPTOP_BY_TASK)
PRESETS = {
    "laptop": LAPTOP,
    "smoke": smoke(LAPTOP, {**SMOKE_PPO, "updates": 1, "candidates": 4, "multipliers.points": 16}),
}
