"""TD3GA, an ablation of Batra et al., ICLR 2024, appendix: PPGA with TD3 in place of PPO."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from ppga.algorithms import ppga_config
from ppga.algorithms.base import most_episodes
from ppga.algorithms.ppga import PPGA
from ppga.algorithms.ppga_config import ArborescenceConfig
from ppga.algorithms.presets import ITERATIONS, LAPTOP_CRITICS, LAPTOP_TD3, SMOKE_TD3, Preset, smoke
from ppga.config import common
from ppga.learners.td3 import TD3Config
from ppga.problems import Cost, NetworkConfig
from ppga.problems.td3_search import TD3SearchProblem
from ppga.rollouts import Executor
from ppga.search import EvaluationConfig, RewardPhaseConfig
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@dataclass(frozen=True)
class TD3GAConfig(ArborescenceConfig):
    """Settings of TD3GA; those of PPGA, with TD3 as the learner; see also `ArborescenceConfig`.

    Attributes:
        jacobian_updates: gradient steps of TD3 that estimate the gradients (N1).
        walk_updates: gradient steps of TD3 that move the search policy (N2).
        td3: the learner.
    """

    algorithm: ClassVar[str] = "td3ga"

    network: NetworkConfig = field(default_factory=lambda: LAPTOP_CRITICS)
    # steps on batches of 256 transitions, not of 48,000 as in the paper, and so more of them
    jacobian_updates: int = common(400)
    walk_updates: int = common(400)
    td3: TD3Config = field(default_factory=lambda: LAPTOP_TD3)
    # critics must learn before their gradients help
    phases: RewardPhaseConfig | None = field(
        default_factory=lambda: RewardPhaseConfig(first_iterations=8, updates=6000)
    )

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        self.td3.check_steps("jacobian_updates", self.jacobian_updates)
        self.td3.check_steps("walk_updates", self.walk_updates)
        if self.phases is not None:
            self.td3.check_steps("phases.updates", self.phases.updates)


class TD3GA(PPGA):
    """PPGA whose Jacobian and walks come from TD3, trained on the episodes of all evaluated policies."""

    summary = "ablation: PPGA with TD3 in place of PPO (Batra et al., ICLR 2024, appendix)"
    supports_analytic_problems = False
    problem: TD3SearchProblem
    config: Any

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> TD3SearchProblem:
        """TD3 learns every objective."""
        episodes = most_episodes(config, (1 + config.branches) * 2, batches=2)  # twice in the first iteration
        weights = np.eye(1 + len(task.measure_names))
        return TD3SearchProblem(task, config.td3, config.network, episodes, weights, executor, progress)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        config = self.config
        steps = len(self.problem.weights) * config.jacobian_updates + config.walk_updates
        return self.problem.cost(1 + config.branches, steps)

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Evaluate random policies first, so that there are transitions to learn from."""
        super().start(elites)
        policies = self.problem.random(self.key("first solutions"), self.config.branches)
        self.add_elites(policies, self.evaluate(policies))

    def adapt_exploration_noise(self, new_elites: int) -> None:
        """TD3's policies act without noise."""


def _by_task(task: str) -> dict[str, Any]:
    """PPGA's changes for a task that apply here."""
    left_out = ("ppo.", "walk_updates", "phases.first_iterations")
    changes = ppga_config.LAPTOP_BY_TASK[task]
    return {name: value for name, value in changes.items() if not name.startswith(left_out)}


LAPTOP = Preset(TD3GAConfig(), tasks={task: _by_task(task) for task in ppga_config.LAPTOP_BY_TASK})
PAPER = Preset(
    TD3GAConfig(
        evaluation=EvaluationConfig(episodes=10),
        td3=TD3Config(batch_size=48_000, buffer_size=5_000_000),
        **ppga_config.PAPER_ARBORESCENCE,
    ),
    ITERATIONS,
    tasks={
        task: {name: value for name, value in changes.items() if not name.startswith("ppo.")}
        for task, changes in ppga_config.PAPER_BY_TASK.items()
    },
)
UPDATES = {"jacobian_updates": 2, "walk_updates": 2, "phases.updates": 2, "phases.first_iterations": 1}
PRESETS = {"laptop": LAPTOP, "paper": PAPER, "smoke": smoke(LAPTOP, {"branches": 4, **UPDATES, **SMOKE_TD3})}
