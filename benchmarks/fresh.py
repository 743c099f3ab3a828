"""Re-evaluation of archives in fresh episodes, and figures that no episode has both selected and scored.

Half of an elite's episodes decide its cell, and whether it is the best of that cell; the other half gives its
reward. Then the halves change roles, and the figures are means of both.
"""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from ppga.analysis import corrected, metrics
from ppga.archives import Archive
from ppga.archives.files import best_of_each
from ppga.storage import NumpyArray, read_tensors

EPISODES_FILE = "episodes.safetensors"
"""Every fresh episode of every elite: objective (n, e), measures (n, e, k), steps (n, e), survived (n, e)."""
FIRST_SEED = 1_000_000
"""Added to a loop's seed for the random keys of its fresh episodes."""


@dataclass(frozen=True)
class Scores:
    """Figures of an archive.

    Attributes:
        qd_score: QD-score.
        coverage: share of the cells that are occupied.
        best: reward of the best elite.
        mean: mean reward of the elites.
    """

    qd_score: float
    coverage: float
    best: float
    mean: float


def play(
    archive: Archive, episodes: int, seed: int, folder: Path, progress: Callable[[int, int], None]
) -> None:
    """Play fresh episodes with every elite, and write them to a folder; an interrupted call is resumed.

    Args:
        archive: the archive.
        episodes: episodes of each elite.
        seed: seed of the loop that has filled the archive.
        folder: folder of the file.
        progress: called with the number of evaluated elites and their total.
    """
    if len(archive):
        task, file = corrected.task_of(archive), folder / EPISODES_FILE
        corrected.play_all(archive, task, episodes, FIRST_SEED + seed, progress, partial=file)


def complete(archive: Archive, folder: Path) -> bool:
    """Whether all elites of an archive have played their fresh episodes."""
    return corrected.evaluated(folder / EPISODES_FILE) == len(archive)


def archived(archive: Archive) -> Scores:
    """Figures of an archive by the rewards that it holds."""
    return _scores(
        archive, np.asarray(archive.elites["objective"]), metrics.best(archive.elites["objective"])
    )


def reevaluated(archive: Archive, folder: Path) -> Scores:
    """Figures of an archive by the fresh episodes in a folder."""
    if not len(archive):
        return archived(archive)
    episodes, _ = read_tensors(folder / EPISODES_FILE)
    halves = slice(0, None, 2), slice(1, None, 2)
    both = [
        _half(archive, episodes["objective"], episodes["measures"], *order)
        for order in (halves, halves[::-1])
    ]
    return Scores(*np.mean([astuple(scores) for scores in both], axis=0).tolist())


def _half(
    archive: Archive, objective: NumpyArray, measures: NumpyArray, select: slice, report: slice
) -> Scores:
    """Figures by some episodes of the elites that others have selected.

    Args:
        archive: the archive of n elites.
        objective: (n, e) of each episode; NaN where the physics diverged.
        measures: (n, e, k) of each episode.
        select: episodes that decide cells and elites.
        report: episodes whose rewards are reported.
    """
    selecting, reported = objective[:, select].mean(axis=1), objective[:, report].mean(axis=1)
    places = measures[:, select].mean(axis=1)
    finite = np.isfinite(selecting) & np.isfinite(reported) & np.isfinite(places).all(axis=1)
    cells = np.full(len(objective), -1)
    cells[finite] = archive.cells_of(places[finite])
    rows = best_of_each(cells, selecting)
    best = reported[rows[np.argmax(selecting[rows])]] if len(rows) else np.nan
    return _scores(archive, reported[rows], float(best))


def _scores(archive: Archive, objective: NumpyArray, best: float) -> Scores:
    return Scores(
        metrics.qd_score(objective, archive.qd_offset),
        metrics.coverage(objective, archive.cells),
        best,
        metrics.mean(objective),
    )
