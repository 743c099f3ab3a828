"""Runs: training with a budget, a folder, checkpoints and a display."""

from ppga.algorithms import preset
from ppga.config import Budget, LoggingConfig, SimulationConfig
from ppga.runs.trainer import Iteration, Outcome, resume, train

__all__ = [
    "Budget",
    "Iteration",
    "LoggingConfig",
    "Outcome",
    "SimulationConfig",
    "preset",
    "resume",
    "train",
]
