"""Algorithms: one file each, with its settings and presets, in the order of its paper's pseudocode.

The settings and presets of PPGA are in `ppga_config.py`, so that `ppga.py` is Algorithm 1 alone.
"""

from ppga.algorithms.base import Algorithm, AlgorithmConfig
from ppga.algorithms.ppga import PPGA
from ppga.algorithms.ppga_config import PPGAConfig
from ppga.algorithms.registry import (
    ALGORITHMS,
    config_from_json,
    config_to_json,
    find_algorithm,
    find_preset,
    preset,
)

__all__ = [
    "ALGORITHMS",
    "PPGA",
    "Algorithm",
    "AlgorithmConfig",
    "PPGAConfig",
    "config_from_json",
    "config_to_json",
    "find_algorithm",
    "find_preset",
    "preset",
]
