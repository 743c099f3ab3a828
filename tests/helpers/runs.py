"""Runs of the sphere, which take a moment, and the comparison of runs."""

import json
from pathlib import Path
from typing import Any

import numpy as np

import ppga
from ppga.runs.display import Silent
from ppga.runs.folder import read_lines
from ppga.strategies import StrategyConfig

SPHERE = ppga.PPGAConfig(
    branches=8,
    walk_updates=1,
    strategy=StrategyConfig(sigma0=5.0),
    confirm=None,
    objective=None,
    phases=None,
    legs=None,
    log=ppga.LoggingConfig(checkpoint_seconds=0.0, snapshot_iterations=1, tensorboard=False),
)
"""PPGA without its extensions, with a snapshot of the cells and a checkpoint after every iteration."""
SPHERE_WORDS = (
    "train", "sphere", "--branches", "8", "--walk-updates", "1", "--strategy.sigma0", "5",
    "--log.checkpoint-seconds", "0", "--log.no-tensorboard",
)  # fmt: skip
"""A command that trains PPGA with its extensions on the sphere, with a checkpoint after every iteration."""
TIMES = ("wall_time", "steps_per_second", "times")


class Messages(Silent):
    """A display that collects messages.

    Attributes:
        lines: the messages.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


def lines(run: Path) -> list[dict[str, Any]]:
    """The metrics without the times."""
    return [
        {name: value for name, value in line.items() if name not in TIMES}
        for line in read_lines(run / "metrics.jsonl")
    ]


def same_runs(a: Path, b: Path) -> None:
    """Same archive, bit by bit, and same metrics but for times."""
    for name, values in ppga.load_archive(a).elites.items():
        np.testing.assert_array_equal(ppga.load_archive(b).elites[name], values, err_msg=name)
    assert json.dumps(lines(a)) == json.dumps(lines(b))
    assert (a / "cells.jsonl").read_text() == (b / "cells.jsonl").read_text()
