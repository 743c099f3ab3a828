"""Published results of PPGA: the paper's corrected archives, and learning curves of its authors' code.

They were measured in Brax, whose robots have other physics and rewards than those of Gymnasium.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from ppga.archives import Archive
from ppga.storage import NumpyArray

OFFSETS = {"ant": -3240.0, "halfcheetah": -9231.0, "hopper": -900.0, "humanoid": 0.0, "walker2d": -1413.0}
"""Task -> offset of the paper's QD-scores for an episode of 1,000 control steps; shorter ones have less."""
STEPS = 1000
BRANCHES = 300
"""Policies that the authors' code evaluates in an iteration."""
CURVES = "authors_curves.csv"
CURVE_CELLS = {"ant": 10_000, "hopper": 10}
"""Task -> cells of the archives behind the curves; 2,500 for the other tasks."""


@dataclass(frozen=True)
class Result:
    """Figures of a corrected archive in the paper, means of four seeds.

    Attributes:
        qd_score: with the paper's offset.
        coverage: share of the cells.
        best: highest objective.
    """

    qd_score: float
    coverage: float
    best: float

    def mean(self, task: str) -> float:
        """Mean objective of the elites if no episode ended early, and a lower bound otherwise."""
        return self.qd_score / (self.coverage * cells(task)) + OFFSETS[task]


PAPER = {
    "ppga": {
        "humanoid": Result(1.02e5, 0.52, 8324),
        "walker2d": Result(1.06e5, 0.39, 4702),
        "halfcheetah": Result(7.26e5, 0.58, 8919),
        "ant": Result(1.53e7, 0.34, 7328),
    },
    "pga-me": {
        "humanoid": Result(1.08e4, 0.39, 446),
        "walker2d": Result(6.53e4, 0.38, 1621),
        "halfcheetah": Result(3.31e5, 0.31, 4644),
        "ant": Result(1.79e7, 0.37, 4571),
    },
    "sep-cma-mae": {
        "humanoid": Result(1.27e4, 0.42, 498),
        "walker2d": Result(1.84e5, 0.64, 2326),
        "halfcheetah": Result(6.03e5, 0.61, 228),  # with that QD-score, the mean would exceed the best
        "ant": Result(1.16e7, 0.30, 1629),
    },
    "qdpg": {
        "humanoid": Result(6.53e3, 0.26, 412),
        "walker2d": Result(6.59e4, 0.35, 1490),
        "halfcheetah": Result(2.53e5, 0.28, 359),
        "ant": Result(3.03e6, 0.25, 78),
    },
    "cma-maega-td3-es": {
        "humanoid": Result(4.10e3, 0.21, 352),
        "walker2d": Result(3.48e4, 0.33, 1025),
        "halfcheetah": Result(5.70e5, 0.56, 2438),
        "ant": Result(3.08e6, 0.12, 1020),
    },
}
"""Algorithm -> task -> corrected results in Batra et al., ICLR 2024."""


def cells(task: str) -> int:
    """Number of cells of the paper's archives."""
    return 10_000 if task == "ant" else 100


def qd_score(archive: Archive, task: str) -> float | None:
    """QD-score of an archive with the paper's offset; None if the lengths of its episodes are not known."""
    length = archive.elites.get("length")
    if length is None or not np.asarray(length).all():
        return None
    total = np.asarray(archive.elites["objective"], np.float64).sum()
    return float(total - OFFSETS[task] / STEPS * np.asarray(length, np.float64).sum())


@cache
def curves() -> dict[str, dict[str, NumpyArray]]:
    """Task -> iteration, evaluations, coverage, best and mean (n,) of a run of the authors' code."""
    text = resources.files(__package__).joinpath(CURVES).read_text()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    tasks: dict[str, dict[str, NumpyArray]] = {}
    for task in dict.fromkeys(row["task"] for row in rows):
        own = [row for row in rows if row["task"] == task]
        values = {
            name: np.array([float(row[name]) for row in own])
            for name in ("iteration", "coverage", "best", "mean")
        }
        tasks[task] = {**values, "evaluations": BRANCHES * values["iteration"]}
    return tasks
