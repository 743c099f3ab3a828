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
from matplotlib.ticker import MaxNLocator

from ppga.analysis.corrected import judge_of, play_all
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
    """Adapting to a simulated damage in s sets of trials, beside what else one could do.

    Rewards are means over episodes that were no trials, where there are such.

    Attributes:
        whole: what the best elite gives the whole robot, as archived.
        champion: (s,) what the same elite gives the broken one.
        adapted: (s, t) what the elite gives that is chosen after so many trials; where a set took fewer, that
            of its last.
        random: (s, t) what the best of as many random trials gives.
        possible: (s,) what the best of all elites gives.
        adaptations: the trials of each set.
        fallen: share of the episodes on the broken robot in which physics diverged.
    """

    whole: float
    champion: NumpyArray
    adapted: NumpyArray
    random: NumpyArray
    possible: NumpyArray
    adaptations: tuple[Adaptation, ...]
    fallen: float

    @property
    def trials(self) -> NumpyArray:
        """(s,) how many each set took."""
        return np.array([len(found.cells) for found in self.adaptations])

    @property
    def as_many(self) -> NumpyArray:
        """(s,) what the best of as many random trials gives as each set took."""
        return np.asarray(self.random[np.arange(len(self.random)), self.trials - 1])

    @property
    def gave(self) -> NumpyArray:
        """(t,) what each trial gave, the mean of the sets that got so far."""
        rows = [[*one.seen, *[np.nan] * (self.trials.max() - len(one.seen))] for one in self.adaptations]
        return np.asarray(np.nanmean(rows, axis=0))

    def to_json(self) -> dict[str, Any]:
        """Means over the sets, and the trials of each; everything but the expectations."""
        return {
            "whole": self.whole,
            "champion": float(self.champion.mean()),
            "adapted": self.adapted.mean(axis=0).tolist(),
            "random": self.random.mean(axis=0).tolist(),
            "possible": float(self.possible.mean()),
            "trials": float(self.trials.mean()),
            "as_many_at_random": float(self.as_many.mean()),
            "fallen": self.fallen,
            "sets": [
                {
                    "cells": found.cells.tolist(),
                    "seen": found.seen.tolist(),
                    "chosen": found.chosen.tolist(),
                    "adapted": self.adapted[number, : len(found.cells)].tolist(),
                    "enough": found.enough,
                }
                for number, found in enumerate(self.adaptations)
            ],
        }


def recover(
    archive: Archive,
    broken: Task,
    trials: int = 15,
    episodes: int = 10,
    seed: int = 0,
    sets: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Recovery:
    """Adapt to a simulated damage, and see how well that went by judging all elites on the broken robot.

    A trial is one episode. What it leads to is judged by the mean over that elite's other episodes: an elite
    that was chosen for its luck is not to be judged by it.

    Args:
        archive: of elites of the whole robot.
        broken: the task with the broken one, see `ppga.tasks.damaged`.
        trials: at most.
        episodes: of each elite, the trial among them; with a single one, it is judged by that.
        seed: of the episodes' starts and of the random trials, in the first set; the next has the next.
        sets: how often all of it is done, in other episodes.
        progress: called with how many elites are judged, of how many in all sets.
    """
    at_least_one("sets", sets)
    _check_choice(archive)
    n = len(archive)
    judge = judge_of(archive, broken, episodes)
    rewards = []
    for number in range(sets):

        def told(done: int, of: int, before: int = number * n) -> None:
            progress(before + done, of * sets)

        rewards.append(play_all(archive, broken, episodes, seed + number, told, judge)[0])
    played = np.stack(rewards)  # (s, n, episodes)
    finite = np.isfinite(played)
    if not finite.any():
        raise InputError("with this damage, physics diverges whatever the robot does.")
    played = np.where(finite, played, archive.qd_offset)
    tried = played[:, :, 0]
    mean = played[:, :, 1:].mean(axis=2) if episodes > 1 else tried
    row = {int(cell): number for number, cell in enumerate(archive.elites["index"])}

    def tries(gave: NumpyArray) -> Adaptation:
        return adapt(archive, lambda cell: float(gave[row[cell]]), trials)

    found = [tries(gave) for gave in tried]
    most = max(len(one.cells) for one in found)
    adapted, at_random = [], []
    for number, one in enumerate(found):
        chosen = [row[int(cell)] for cell in one.chosen]
        adapted.append(mean[number][chosen + chosen[-1:] * (most - len(chosen))])
        draws = np.random.default_rng(seed + number)
        orders = [draws.permutation(n)[:most] for _ in range(ORDERS)]
        best = [_best_so_far(tried[number], mean[number], order) for order in orders]
        at_random.append(np.mean(best, axis=0))
    return Recovery(
        whole=float(np.max(archive.elites["objective"])),
        champion=mean[:, row[archive.best()]],
        adapted=np.array(adapted),
        random=np.array(at_random),
        possible=mean.max(axis=1),
        adaptations=tuple(found),
        fallen=float(1 - finite.mean()),
    )


def _best_so_far(trial: NumpyArray, mean: NumpyArray, order: NumpyArray) -> NumpyArray:
    """(t,) the mean of the elite whose trial was the best of the first 1, 2, ... t."""
    best = np.array([order[: count + 1][np.argmax(trial[order[: count + 1]])] for count in range(len(order))])
    return np.asarray(mean[best])


def draw(recovery: Recovery, title: str = "") -> Axes:
    """Recovered reward over trials, beside the champion, random trials, and what is possible.

    Of several sets of trials, means, and a band of a standard deviation to each side.
    """
    axes = maps.new_axes(6.4, 4.2)
    count = np.arange(1, recovery.adapted.shape[1] + 1)
    for values, marker, colour, label in (
        (recovery.adapted, "o", "#264683", "adapting"),
        (recovery.random, ".", "#c44e20", f"random elites ({ORDERS} orders)"),
    ):
        middle, spread = values.mean(axis=0), values.std(axis=0)
        axes.plot(count, middle, marker=marker, color=colour, label=label)
        if len(values) > 1:
            axes.fill_between(count, middle - spread, middle + spread, color=colour, alpha=0.15, linewidth=0)
    for value, style, label in (
        (recovery.whole, "-", "the best elite, whole robot"),
        (float(recovery.possible.mean()), "--", "the best there is for the broken one"),
        (float(recovery.champion.mean()), ":", "the best elite, broken robot"),
    ):
        axes.axhline(value, color="0.4", linestyle=style, linewidth=1, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trials, an episode each")
    axes.set_ylabel(
        "reward" if len(recovery.adapted) == 1 else f"reward, {len(recovery.adapted)} sets of trials"
    )
    axes.set_title(maps.literal(title), fontsize="medium")
    axes.legend(fontsize="small")
    return axes
