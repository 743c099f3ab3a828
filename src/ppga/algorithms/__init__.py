"""Algorithms: one file each, reading like its paper's pseudocode."""

from ppga.algorithms.base import Algorithm, SearchConfig
from ppga.algorithms.policy_search import NetworkConfig, PolicySearch
from ppga.algorithms.ppga import PPGA
from ppga.algorithms.ppo import PPO
from ppga.algorithms.problem import Effort, Judgement, Problem

ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in (PPGA, PPO)}

__all__ = [
    "ALGORITHMS",
    "PPGA",
    "PPO",
    "Algorithm",
    "Effort",
    "Judgement",
    "NetworkConfig",
    "PolicySearch",
    "Problem",
    "SearchConfig",
]
