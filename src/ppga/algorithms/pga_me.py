"""PGA-MAP-Elites (Nilsson & Cully, GECCO 2021): policy gradients make half of the new policies."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms.base import most_episodes
from ppga.algorithms.map_elites import MAPElites, MAPElitesConfig
from ppga.algorithms.presets import (
    EVALUATIONS,
    LAPTOP_CRITIC_STEPS,
    LAPTOP_CRITICS,
    LAPTOP_TD3,
    PAPER_CRITICS,
    SMOKE_TD3,
    Preset,
    smoke,
)  # fmt: skip
from ppga.config import check_range, check_whole, common
from ppga.learners.td3 import TD3Config
from ppga.problems import Cost, NetworkConfig, OffPolicyProblem
from ppga.rollouts import Executor
from ppga.storage import NumpyArray
from ppga.tasks import Environment

SMOKE = {"batch_size": 4, "critic_steps": 4, "policy_steps": 2, **SMOKE_TD3}


@dataclass(frozen=True)
class PGAMEConfig(MAPElitesConfig):
    """Settings of PGA-MAP-Elites.

    Attributes:
        gradient_share: fraction of the offspring made by policy gradients, at least the greedy actor;
            iso+line makes the rest.
        critic_steps: gradient steps of the critics and their greedy actors per iteration.
        policy_steps: gradient steps of each policy that policy gradients vary.
        td3: the learner of the critics.
    """

    algorithm: ClassVar[str] = "pga-me"

    network: NetworkConfig = field(default_factory=lambda: LAPTOP_CRITICS)
    batch_size: int = common(32)
    gradient_share: float = common(0.5)
    critic_steps: int = common(LAPTOP_CRITIC_STEPS)
    policy_steps: int = common(100)
    td3: TD3Config = field(default_factory=lambda: LAPTOP_TD3)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_range("gradient_share", self.gradient_share, 0.0, 1.0)
        self.td3.check_steps("critic_steps", self.critic_steps)
        check_whole("policy_steps", self.policy_steps)


class PGAME(MAPElites):
    """MAP-Elites where gradients of TD3 critics, trained on the transitions of all policies, vary elites."""

    summary = "Policy Gradient Assisted MAP-Elites, with TD3 (Nilsson & Cully, GECCO 2021)"
    supports_analytic_problems = False
    problem: OffPolicyProblem
    config: PGAMEConfig

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> OffPolicyProblem:
        """TD3 learns the reward."""
        weights = np.eye(1, 1 + len(task.measure_names))
        episodes = most_episodes(config, config.batch_size)
        return OffPolicyProblem(task, config.td3, config.network, episodes, weights, executor, progress)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        config = self.config
        varied = round(config.gradient_share * config.batch_size)
        learners = len(self.problem.weights)
        return self.problem.cost(
            config.batch_size, learners * config.critic_steps, varied * config.policy_steps
        )

    def offspring(self) -> NumpyArray:
        """Greedy actors, elites varied by policy gradients, and elites varied by iso+line: (n, d)."""
        n, key = self.config.batch_size, self.key("offspring")
        if self.elites.empty:
            return self.problem.random(key, n)
        if not len(self.problem.replay):  # the run started from elites of another run
            return self.iso_line(n)
        greedy = self.problem.greedy(self.problem_state)
        count = max(0, round(self.config.gradient_share * n) - len(greedy))
        critics = np.arange(count) % len(greedy)  # learners take turns
        parents = self.sample(count, "gradient parents")["solution"]
        varied = self.problem.policy_gradient_steps(
            self.problem_state, parents, critics, key, self.config.policy_steps
        )
        greedy = greedy[: n - count]
        return np.concatenate([greedy, varied, self.iso_line(n - len(greedy) - count)])

    def learn(self) -> dict[str, Any]:
        """Train critics and greedy actors on the replay buffer."""
        steps = self.config.critic_steps
        self.problem_state, report = self.problem.learn(self.problem_state, self.key("learn"), steps)
        self.count(report)
        return report.metrics


LAPTOP = Preset(PGAMEConfig())
PAPER = Preset(
    PGAMEConfig(
        confirm=None,
        network=PAPER_CRITICS,
        batch_size=100,
        critic_steps=300,
        td3=TD3Config(delayed_targets=False, own_actor_batch=True),
    ),
    EVALUATIONS,
)
PRESETS = {"laptop": LAPTOP, "paper": PAPER, "smoke": smoke(LAPTOP, SMOKE)}
