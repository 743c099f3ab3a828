"""Rollouts: episodes that evaluate policies or record them, and the executors that run them."""

from ppga.rollouts.episodes import (
    Recording,
    Scores,
    Transitions,
    episode_keys,
    evaluate,
    explore,
    play,
    record,
)
from ppga.rollouts.evaluator import Evaluator, EvaluatorSettings
from ppga.rollouts.executor import Evaluate, Executor, LearnerFunctions, LocalExecutor, Work

__all__ = [
    "Evaluate",
    "Evaluator",
    "EvaluatorSettings",
    "Executor",
    "LearnerFunctions",
    "LocalExecutor",
    "Recording",
    "Scores",
    "Transitions",
    "Work",
    "episode_keys",
    "evaluate",
    "explore",
    "play",
    "record",
]
