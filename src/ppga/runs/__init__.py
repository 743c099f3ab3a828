"""Runs: the loop around an algorithm."""

from ppga.runs.config import Budget, KeepingConfig, PPGAConfig, SimulationConfig
from ppga.runs.loop import Iteration, Outcome, resume, train
from ppga.runs.presets import PRESETS, preset

__all__ = [
    "PRESETS",
    "Budget",
    "Iteration",
    "KeepingConfig",
    "Outcome",
    "PPGAConfig",
    "SimulationConfig",
    "preset",
    "resume",
    "train",
]
