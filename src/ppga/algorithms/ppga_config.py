"""Settings and presets of PPGA.

The defaults of the classes here are the preset `laptop`, and comments give the paper's values. `PPOConfig`
has the paper's values as defaults, except for those that `PAPER_PPO` sets. `docs/fidelity.md` compares the
presets `paper` and `paper-scripts`.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from ppga.algorithms.base import AlgorithmConfig, check_policies
from ppga.algorithms.presets import HALFCHEETAH_THRESHOLD, ITERATIONS, Preset, smoke
from ppga.archives import SoftArchiveConfig
from ppga.config import check_whole, common
from ppga.errors import InputError
from ppga.learners.ppo import PPOConfig
from ppga.problems import NetworkConfig
from ppga.search import (
    LegConfig,
    NoiseConfig,
    ObjectiveConfig,
    RewardPhaseConfig,
    StochasticEvaluationConfig,
)  # fmt: skip
from ppga.strategies import StrategyConfig

LAPTOP_PPO = PPOConfig(
    environments=192,  # paper: 3,000
    rollout_length=32,  # paper: 128; with few environments, short rollouts give more updates
    minibatches=16,  # paper: 8
    target_kl=0.03,  # paper: 0.008, with a constant learning rate
    initial_std=0.4,  # paper: 1; with that, every fifth halfcheetah learns to slide on its back
)
PAPER_PPO = PPOConfig(
    environments=3000,
    clip_values=True,
    value_coefficient=4.0,  # 2 in the scripts, where the squared error is not halved
    adaptive_learning_rate=False,
    reset_optimizer=True,
    update="joint",
    normalize="returns",
    normalizers="fresh",
    bootstrap_truncated=False,
    reset_environments=True,
)
"""PPO as in the code of PPGA's authors; the text says little about it."""
PAPER_EVALUATION = StochasticEvaluationConfig(episodes=10, actions="sample")
PAPER_NETWORK = NetworkConfig(critic=(256, 256))


@dataclass(frozen=True)
class ArborescenceConfig(AlgorithmConfig):
    """Settings that PPGA and TD3GA share.

    Attributes:
        archive: cells of the archive, and thresholds of the soft archive.
        branches: policies branched off the search policy in each iteration (lambda).
        jacobian_updates: PPO updates that estimate the gradients (N1).
        walk_updates: PPO updates that move the search policy (N2).
        step: walk (N2 updates), or recombination (mean of the best branches, as in CMA-MAEGA).
        strategy: search distribution of the gradient coefficients.
        objective: changes to the objective of a walk; not in the paper.
        phases: iterations that follow the reward alone; not in the paper.
        legs: restarts of a search policy that still improves the archive; not in the paper.
    """

    archive: SoftArchiveConfig = field(default_factory=SoftArchiveConfig)  # paper: alpha 0.1 to 1, by task
    network: NetworkConfig = field(default_factory=NetworkConfig)
    branches: int = common(64)  # paper: 300; an evaluation should take no longer than a walk
    jacobian_updates: int = common(5)  # paper: 10; the paper reports (5, 10) on par with (10, 10)
    walk_updates: int = common(5)  # paper: 10; long walks often end with a policy that stands still
    step: Literal["walk", "recombination"] = "walk"
    strategy: StrategyConfig = field(default_factory=StrategyConfig)
    # paper: None; without a share of the reward, the search policy ends where thresholds are low
    objective: ObjectiveConfig | None = field(default_factory=lambda: ObjectiveConfig(min_reward_share=1.0))
    # where falling ends an episode, staying upright must be learned first; later legs improve the best policy
    phases: RewardPhaseConfig | None = field(default_factory=RewardPhaseConfig)
    # with thresholds of a short run, the search policy hardly ever gets stuck, but its progress slows down
    legs: LegConfig | None = field(default_factory=LegConfig)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_policies("branches", self.branches, least=2)
        if self.archive.restart_from == "entries" and (self.legs is not None or self.phases is not None):
            raise InputError(
                "--archive.restart-from entries cannot choose promising or best policies: it also needs "
                "--legs none and --phases none."
            )
        if self.phases is not None and self.phases.every and self.legs is None:
            raise InputError(
                "--legs none also needs --phases.every 0: there are no legs to follow the reward."
            )


@dataclass(frozen=True)
class PPGAConfig(ArborescenceConfig):
    """Settings of PPGA; see also `ArborescenceConfig`.

    Attributes:
        evaluation: first evaluation of candidates.
        ppo: the learner.
        noise: exploration noise that the archive controls; not in the paper.
    """

    algorithm: ClassVar[str] = "ppga"

    evaluation: StochasticEvaluationConfig = field(
        default_factory=StochasticEvaluationConfig
    )  # paper: 10 episodes
    ppo: PPOConfig = field(default_factory=lambda: LAPTOP_PPO)
    noise: NoiseConfig | None = None

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        super().check(measures)
        check_whole("jacobian_updates", self.jacobian_updates)
        check_whole("walk_updates", self.walk_updates)
        if self.ppo.normalize == "returns" and self.objective and self.objective.scaling == "scaled":
            raise InputError(
                "--objective.scaling scaled divides objectives by statistics that --ppo.normalize returns "
                "does not keep: choose --objective.scaling raw, or --ppo.normalize rewards."
            )
        if self.noise is not None and self.ppo.std != "fixed":
            raise InputError(f"the section noise needs --ppo.std fixed, got {self.ppo.std}.")


# Task -> changes, by dotted names.
HUMANOID = {"phases.first_iterations": 8, "ppo.learning_rate": 3e-4}
LAPTOP_BY_TASK: dict[str, dict[str, Any]] = {
    "halfcheetah": {
        "confirm.episodes": 4,  # as good as 8
        "phases.first_iterations": 0,  # its episodes do not end when it falls
        **HALFCHEETAH_THRESHOLD,
    },
    "walker2d": {"confirm.episodes": 4},
    "humanoid": HUMANOID,
    "humanoid-full": HUMANOID,
    "ant": {  # four measures, 10,000 cells
        "confirm.episodes": 4,  # nearly every branch is an elite
        "confirm.max_measure_std": 0.0,  # hardly any policy repeats all four measures
        "strategy.sigma0": 1.0,  # four directions at once are far enough
        "walk_updates": 20,  # there is more to learn
        "objective.min_reward_share": 3.0,  # with 1 it ends on three feet
        "legs.iterations": 0,  # around every elite nearly all cells are empty
        "legs.first_iterations": 0,
        "phases.every": 0,
        "phases.first_iterations": 0,  # the reward has a large share anyway
        "ppo.environments": 200,  # five agents
    },
}
PAPER_WALKER: dict[str, Any] = {"archive.alpha": 0.15, "ppo.std": "reset"}
PAPER_HUMANOID: dict[str, Any] = {
    "strategy.sigma0": 0.5,
    "ppo.learning_rate": 3e-4,
    "simulation.clip": 10.0,
}
PAPER_ANT: dict[str, Any] = {
    "archive.threshold_min": -500.0,
    "strategy.sigma0": 3.0,
    "ppo.target_kl": 0.0,  # its script sets none
}
PAPER_BY_TASK: dict[str, dict[str, Any]] = {
    "halfcheetah": {"archive.alpha": 1.0, "ppo.std": "reset"},
    "walker2d": PAPER_WALKER,
    "hopper": PAPER_WALKER,  # the paper has no hopper
    "humanoid": PAPER_HUMANOID,
    "humanoid-full": PAPER_HUMANOID,
    "ant": PAPER_ANT,
}
SCRIPTS_WALKER: dict[str, Any] = {"archive.alpha": 0.5, "archive.shape": (50, 50), "ppo.std": "reset"}
SCRIPTS_HUMANOID: dict[str, Any] = {**PAPER_HUMANOID, "archive.shape": (50, 50), "ppo.std": "reset"}
SCRIPTS_BY_TASK: dict[str, dict[str, Any]] = {
    "halfcheetah": {"archive.alpha": 0.5, "archive.shape": (50, 50)},
    "walker2d": SCRIPTS_WALKER,
    "hopper": {**SCRIPTS_WALKER, "archive.shape": (50,)},  # there is no script for it
    "humanoid": SCRIPTS_HUMANOID,
    "humanoid-full": SCRIPTS_HUMANOID,
    "ant": PAPER_ANT,
}

LAPTOP = Preset(PPGAConfig(), tasks=LAPTOP_BY_TASK)
PAPER_ARBORESCENCE: dict[str, Any] = {
    "confirm": None,
    "archive": SoftArchiveConfig(alpha=0.1, threshold_min=200.0, restart_from="entries"),
    "network": PAPER_NETWORK,
    "branches": 300,
    "jacobian_updates": 10,
    "walk_updates": 10,
    "strategy": StrategyConfig(sigma0=1.0, mean="random"),
    "objective": None,
    "phases": None,
    "legs": None,
}
"""The paper's values of settings that PPGA and TD3GA share."""
PAPER = Preset(
    PPGAConfig(evaluation=PAPER_EVALUATION, ppo=PAPER_PPO, **PAPER_ARBORESCENCE),
    budget=ITERATIONS,
    tasks=PAPER_BY_TASK,
)
PAPER_SCRIPTS = replace(PAPER, tasks=SCRIPTS_BY_TASK)
SMOKE_PPO = {
    "ppo.environments": 30,
    "ppo.rollout_length": 8,
    "ppo.epochs": 1,
    "ppo.minibatches": 2,
}
SMOKE = {
    "branches": 4,
    "jacobian_updates": 1,
    "walk_updates": 1,
    "phases.first_iterations": 1,
    "phases.updates": 1,
}
PRESETS = {
    "laptop": LAPTOP,
    "paper": PAPER,
    "paper-scripts": PAPER_SCRIPTS,
    "smoke": smoke(LAPTOP, {**SMOKE, **SMOKE_PPO}),
}
