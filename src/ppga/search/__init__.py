"""Parts that algorithms are composed of, each with its own small config.

A part is absent if its config is None; without optional parts, `algorithms/ppga.py` is the published
algorithm.
"""

from ppga.search.evaluation import (
    Confirmation,
    ConfirmationConfig,
    EvaluationConfig,
    StochasticEvaluationConfig,
)
from ppga.search.health import search_warnings
from ppga.search.noise import NoiseConfig, noise_factor
from ppga.search.objective import ObjectiveConfig, walk_weights
from ppga.search.recombination import ranked, recombined_mean
from ppga.search.restarts import (
    LegConfig,
    LegSchedule,
    RestartRule,
    RewardPhaseConfig,
    make_restart_rule,
)
from ppga.search.targets import TargetConfig, sample_targets, scaled_measures

__all__ = [
    "Confirmation",
    "ConfirmationConfig",
    "EvaluationConfig",
    "LegConfig",
    "LegSchedule",
    "NoiseConfig",
    "ObjectiveConfig",
    "RestartRule",
    "RewardPhaseConfig",
    "StochasticEvaluationConfig",
    "TargetConfig",
    "make_restart_rule",
    "noise_factor",
    "ranked",
    "recombined_mean",
    "sample_targets",
    "scaled_measures",
    "search_warnings",
    "walk_weights",
]
