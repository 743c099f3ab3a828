"""Adaptation: a robot that is broken finds, in a handful of trials, an elite that still works.

Map-based Bayesian optimisation (Cully, Clune, Tarapore, Mouret: Robots that can adapt like animals, Nature
2015): the archive is the prior of a Gaussian process over the measures, so a trial of one elite tells about
those that behave alike; the next trial is the one that promises most.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ppga.analysis.corrected import play_all
from ppga.archives import Archive, maps
from ppga.errors import InputError, at_least_one
from ppga.storage import NumpyArray
from ppga.tasks import Task

# found with ten damages of a walker2d and a halfcheetah, see docs/using-an-archive.md
LENGTH = 0.1
"""How far a trial tells, in units of the measures' ranges."""
NOISE = 0.3
"""What a trial may be off by luck, in units of the spread of the archive's objectives."""
CURIOSITY = 0.5
"""How many standard deviations above its expectation an elite is rated when the next trial is chosen."""
ENOUGH = 1.2
"""Stop when one that was tried is expected to give so many times what any other is expected to."""
WHOLE = 0.95
"""Stop when a trial has given this share of the most that any elite gave the whole robot."""
ORDERS = 200
"""Random orders that the comparison with random trials is averaged over."""


@dataclass(frozen=True)
class Adaptation:
    """How it went.

    Attributes:
        cells: (t,) elites that were tried, in turn.
        seen: (t,) what each gave.
        chosen: (t,) after each trial, the cell of the tried elite that is expected to give most.
        expected: (n,) what every elite is expected to give in the end, in the archive's order.
        enough: it stopped because no other elite promised more.
    """

    cells: NumpyArray
    seen: NumpyArray
    chosen: NumpyArray
    expected: NumpyArray
    enough: bool

    @property
    def best(self) -> int:
        """Cell of the elite to use."""
        return int(self.chosen[-1])


def adapt(
    archive: Archive,
    trial: Callable[[int], float],
    trials: int = 15,
    *,
    length: float = LENGTH,
    noise: float = NOISE,
    curiosity: float = CURIOSITY,
    enough: float = ENOUGH,
    whole: float = WHOLE,
) -> Adaptation:
    """Find an elite that works on a robot that is not what it was.

    Args:
        archive: of elites of the whole robot.
        trial: what the elite of a cell gives now; on a simulated robot or on a real one.
        trials: at most.
        length: how far a trial tells, in units of the measures' ranges.
        noise: what a trial may be off by luck, in units of the spread of the archive's objectives.
        curiosity: how many standard deviations above its expectation an elite is rated.
        enough: stop when one that was tried is expected to give so many times what any other is.
        whole: stop when a trial has given this share of the best that the archive has.
    """
    at_least_one("trials", trials)
    _check_choice(archive)
    index = np.asarray(archive.elites["index"])
    prior = np.asarray(archive.elites["objective"], float)
    floor, spread = archive.qd_offset, max(float(prior.std()), 1e-9)
    low, high = np.array(archive.ranges).T
    place = (np.asarray(archive.elites["measures"], float) - low) / (high - low)
    rows: list[int] = []
    chosen: list[int] = []
    seen: list[float] = []
    stopped = False
    expected, doubt = prior.copy(), np.full(len(prior), spread)
    for _ in range(min(trials, len(prior))):
        rated = expected + curiosity * doubt
        rated[rows] = -np.inf  # an elite is tried once
        rows.append(int(np.argmax(rated)))
        result = float(trial(int(index[rows[-1]])))
        seen.append(result if math.isfinite(result) else floor)
        near = spread**2 * matern(place[rows], place[rows], length)
        far = spread**2 * matern(place, place[rows], length)
        weights = np.linalg.solve(near + (noise * spread) ** 2 * np.eye(len(rows)), far.T)  # (t, n)
        expected = prior + (np.array(seen) - prior[rows]) @ weights
        doubt = np.sqrt(np.maximum(spread**2 - (far * weights.T).sum(axis=1), 0.0))
        chosen.append(rows[int(np.argmax(expected[rows]))])
        left = np.delete(expected, rows)
        done = seen[-1] - floor >= whole * (prior.max() - floor)
        if done or not len(left) or expected[chosen[-1]] - floor >= enough * (left.max() - floor):
            stopped = True
            break
    return Adaptation(index[rows], np.array(seen), index[chosen], expected, stopped)


def _check_choice(archive: Archive) -> None:
    if len(archive) < 2:
        raise InputError("an archive of two elites at least is needed to choose from.")


def matern(a: NumpyArray, b: NumpyArray, length: float) -> NumpyArray:
    """Matern's 5/2 kernel between places (n, k) and (m, k)."""
    distance = np.sqrt(5.0) * np.linalg.norm(a[:, None] - b[None], axis=2) / length
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


@dataclass(frozen=True)
class Recovery:
    """Adapting to a simulated damage, beside what else one could do; all as means over many episodes.

    Attributes:
        whole: what the best elite gives the whole robot, as archived.
        champion: what the same elite gives the broken one.
        adapted: (t,) what the elite gives that is chosen after so many trials.
        random: (t,) what the best of as many random trials gives.
        possible: what the best of all elites gives.
        adaptation: the trials.
        fallen: share of the episodes on the broken robot in which physics diverged.
    """

    whole: float
    champion: float
    adapted: NumpyArray
    random: NumpyArray
    possible: float
    adaptation: Adaptation
    fallen: float

    def to_json(self) -> dict[str, Any]:
        """Everything but the expectations."""
        return {
            "whole": self.whole,
            "champion": self.champion,
            "adapted": self.adapted.tolist(),
            "random": self.random.tolist(),
            "possible": self.possible,
            "cells": self.adaptation.cells.tolist(),
            "seen": self.adaptation.seen.tolist(),
            "enough": self.adaptation.enough,
            "fallen": self.fallen,
        }


def recover(
    archive: Archive,
    broken: Task,
    trials: int = 15,
    episodes: int = 10,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Recovery:
    """Adapt to a simulated damage, and see how well that went by judging all elites on the broken robot.

    A trial is one episode; what it leads to is judged by the mean over all of that elite's.

    Args:
        archive: of elites of the whole robot.
        broken: the task with the broken one, see `ppga.tasks.damaged`.
        trials: at most.
        episodes: of each elite.
        seed: of the episodes' starts, and of the random trials.
        progress: called with how many elites are judged, of how many.
    """
    _check_choice(archive)
    played, _ = play_all(archive, broken, episodes, seed, progress)
    fallen = float((~np.isfinite(played)).mean())
    if fallen == 1:
        raise InputError("with this damage, physics diverges whatever the robot does.")
    played = np.where(np.isfinite(played), played, archive.qd_offset)
    row = {int(cell): number for number, cell in enumerate(archive.elites["index"])}
    found = adapt(archive, lambda cell: float(played[row[cell], 0]), trials)
    mean = played.mean(axis=1)
    draws = np.random.default_rng(seed)
    orders = [draws.permutation(len(mean))[: len(found.cells)] for _ in range(ORDERS)]
    return Recovery(
        whole=float(np.max(archive.elites["objective"])),
        champion=float(mean[row[archive.best()]]),
        adapted=mean[[row[int(cell)] for cell in found.chosen]],
        random=np.mean([_best_so_far(played[:, 0], mean, order) for order in orders], axis=0),
        possible=float(mean.max()),
        adaptation=found,
        fallen=fallen,
    )


def _best_so_far(trial: NumpyArray, mean: NumpyArray, order: NumpyArray) -> NumpyArray:
    """(t,) the mean of the elite whose trial was the best of the first 1, 2, ... t."""
    best = np.array([order[: count + 1][np.argmax(trial[order[: count + 1]])] for count in range(len(order))])
    return np.asarray(mean[best])


def draw(recovery: Recovery, title: str = "") -> Axes:
    """Recovered reward over trials, beside the champion, random trials, and what is possible."""
    axes = maps.new_axes(6.4, 4.2)
    count = np.arange(1, len(recovery.adapted) + 1)
    axes.plot(count, recovery.adapted, marker="o", color="#264683", label="adapting")
    axes.plot(count, recovery.random, marker=".", color="#c44e20", label=f"random elites ({ORDERS} orders)")
    for value, style, label in (
        (recovery.whole, "-", "the best elite, whole robot"),
        (recovery.possible, "--", "the best there is for the broken one"),
        (recovery.champion, ":", "the best elite, broken robot"),
    ):
        axes.axhline(value, color="0.4", linestyle=style, linewidth=1, label=label)
    axes.set_xlabel("trials, an episode each")
    axes.set_ylabel("reward")
    axes.set_title(title, fontsize="medium")
    axes.legend(fontsize="small")
    return axes
