"""Presets: settings and budget by name, with changes for single tasks; and settings that algorithms share.

The presets of an algorithm are PRESETS in its own file, of PPGA in `ppga_config.py`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ppga.algorithms.base import AlgorithmConfig
from ppga.archives import SoftArchiveConfig
from ppga.config import Budget, LoggingConfig, SimulationConfig, replace_nested
from ppga.learners.td3 import TD3Config
from ppga.problems import NetworkConfig
from ppga.search import ConfirmationConfig
from ppga.tasks import SPHERE, Environment, is_registered, sample

DESCRIPTIONS = {
    "laptop": "a few CPU cores: an archive in minutes",
    "paper": "the numbers of the paper's text: days on a few cores",
    "paper-scripts": "the numbers of the scripts of PPGA's authors, with 50x50 cells: days on a few cores",
    "smoke": "seconds: shows that everything runs, not that it learns",
}
TUNED = ("halfcheetah", "walker2d", "hopper", "ant", "humanoid", "humanoid-full", SPHERE)
"""Tasks that the presets were chosen on."""
MINUTES = Budget(minutes=30.0)
ITERATIONS = Budget(iterations=2000)
"""Budget of the authors' scripts."""
PAPER_EVALUATIONS = 600_000
"""Evaluated policies of most runs in the paper."""
EVALUATIONS = Budget(evaluations=PAPER_EVALUATIONS)
"""Budget in the paper of algorithms whose iterations differ from PPGA's."""

# Settings of several algorithms.
# With a limit on how far measures vary, algorithms that vary elites hardly start; without confirmation, they
# follow lucky elites. Hence a short confirmation without a limit.
SHORT_CONFIRMATION = ConfirmationConfig(episodes=4, max_measure_std=0.0)
# Where simulation is slow, more gradient steps on the same transitions pay: ten times PGA-ME's, with the
# learning rates of TD3's authors.
LAPTOP_CRITIC_STEPS = 3000
# With the paper's critics, a critic step takes 2.4 times as long on a CPU, and a policy-gradient step twice.
LAPTOP_CRITICS = NetworkConfig(critic=(128, 128))
PAPER_CRITICS = NetworkConfig(critic=(256, 256))
LAPTOP_TD3 = TD3Config(fit_buffer=True, critic_learning_rate=1e-3, actor_learning_rate=1e-3)
SMOKE_TD3 = {"td3.batch_size": 8, "td3.buffer_size": 400, "td3.fit_buffer": False}
HALFCHEETAH_THRESHOLD = {"archive.threshold_min": -600.0}
"""A halfcheetah's lowest returns; the default threshold would keep out policies that do not walk yet."""
CMA_MAE_THRESHOLDS = {
    "halfcheetah": {"archive.threshold_min": -2797.5195251991777},
    "walker2d": {"archive.threshold_min": -67.16652198025106},
    "hopper": {"archive.threshold_min": -362.0897231940748},
    "ant": {"archive.threshold_min": -374.702526595403},
}
"""Changes for single tasks in the preset `paper` of CMA-MAE and CMA-MAEGA: the settings of sep-CMA-MAE's
authors. They have no humanoid, whose returns are positive."""


@dataclass(frozen=True)
class Preset:
    """Settings and budget of an algorithm.

    Attributes:
        config: the settings.
        budget: the default budget.
        tasks: task -> changes of the settings, by dotted names.
        changes: further changes for all tasks, made last.
    """

    config: AlgorithmConfig
    budget: Budget = MINUTES
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    changes: Mapping[str, Any] = field(default_factory=dict)

    def resolve(self, task: str | Environment) -> AlgorithmConfig:
        """Settings for a task, given by its name or itself."""
        name = task if isinstance(task, str) else task.name
        config = replace_nested(self.config, {**self.tasks.get(name, {}), **self.changes})
        if name in TUNED or (isinstance(task, str) and not is_registered(task)):
            return config
        return fitted(config, sample(task) if isinstance(task, str) else task)


def smoke(laptop: Preset, changes: Mapping[str, Any]) -> Preset:
    """The preset `laptop` of an algorithm, made so small that a run takes seconds."""
    small = {
        "confirm.episodes": 2,
        "confirm.recheck": 0,
        **{f"network.{name}": (8,) for name in vars(laptop.config.network)},
        "simulation": SimulationConfig(episode_length=20),
        "log": LoggingConfig(snapshot_iterations=1),
    }
    return replace(laptop, budget=Budget(iterations=2), changes={**small, **changes})


def fitted(config: AlgorithmConfig, task: Environment) -> AlgorithmConfig:
    """Settings that fit the measures and the rewards of a task that the presets were not chosen on."""
    changes: dict[str, Any] = {}
    agents = 1 + len(task.measure_names)
    ppo = getattr(config, "ppo", None)
    if ppo is not None:
        changes["ppo.environments"] = math.ceil(ppo.environments / agents) * agents
    if config.confirm is not None and agents > 3:  # hardly any policy repeats that many measures
        changes["confirm.max_measure_std"] = 0.0
    archive = config.archive
    if isinstance(archive, SoftArchiveConfig) and archive.threshold_min is not None:
        changes["archive.threshold_min"] = min(archive.threshold_min, task.qd_offset)
    return replace_nested(config, changes)
