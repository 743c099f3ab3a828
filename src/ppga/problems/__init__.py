"""Problems that algorithms search: tasks with different learners, and one with known gradients."""

from ppga.problems.base import (
    Cost,
    Evaluation,
    GradientProblem,
    LearningReport,
    Problem,
    critic_report,
    nonzero_weights,
    unit_rows,
)
from ppga.problems.conditioned import ConditionedProblem, ConditionedState
from ppga.problems.off_policy import OffPolicyProblem, OffPolicyState
from ppga.problems.policy import NetworkConfig, PolicyNetworkConfig, PolicyProblem, deterministic_actor
from ppga.problems.ppo import PPOProblem, PPOSearchState
from ppga.problems.sphere import Sphere

__all__ = [
    "ConditionedProblem",
    "ConditionedState",
    "Cost",
    "Evaluation",
    "GradientProblem",
    "LearningReport",
    "NetworkConfig",
    "OffPolicyProblem",
    "OffPolicyState",
    "PPOProblem",
    "PPOSearchState",
    "PolicyNetworkConfig",
    "PolicyProblem",
    "Problem",
    "Sphere",
    "critic_report",
    "deterministic_actor",
    "nonzero_weights",
    "unit_rows",
]
