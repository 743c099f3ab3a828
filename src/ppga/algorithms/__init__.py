"""Algorithms: one file each, reading like its paper's pseudocode."""

from ppga.algorithms.base import Algorithm, SearchConfig
from ppga.algorithms.cma_maega import CMAMAEGA
from ppga.algorithms.map_elites import MAPElites
from ppga.algorithms.pbt_me import PBTME
from ppga.algorithms.pga_me import PGAME
from ppga.algorithms.policy_problem import NetworkConfig, PolicyProblem
from ppga.algorithms.policy_search import PolicySearch
from ppga.algorithms.ppga import PPGA, NoMeasures
from ppga.algorithms.ppo import PPO
from ppga.algorithms.ppo_archive import PPOArchive
from ppga.algorithms.problem import Effort, GradientProblem, Judgement, Problem
from ppga.algorithms.qdpg import QDPG
from ppga.algorithms.sep_cma_mae import SepCMAMAE
from ppga.algorithms.td3ga import TD3GA

ALGORITHMS: dict[str, type[Algorithm]] = {
    algorithm.name: algorithm
    for algorithm in (
        PPGA, MAPElites, PGAME, QDPG, CMAMAEGA, SepCMAMAE, PBTME, TD3GA, NoMeasures, PPOArchive, PPO,
    )
}  # fmt: skip

__all__ = [
    "ALGORITHMS",
    "PPGA",
    "PPO",
    "Algorithm",
    "Effort",
    "GradientProblem",
    "Judgement",
    "NetworkConfig",
    "PolicyProblem",
    "PolicySearch",
    "Problem",
    "SearchConfig",
]
