"""Adaptation: find an elite of an archive that still works on a damaged robot, within a few trials.

Map-based Bayesian optimization (Cully, Clune, Tarapore, Mouret: Robots that can adapt like animals, Nature
2015): the archive is the prior mean of a Gaussian process over the measures, so a trial of one elite changes
what is expected of elites with similar measures; an upper confidence bound chooses the next trial.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ppga.analysis.corrected import make_evaluator, play_all
from ppga.archives import Archive, heatmaps
from ppga.errors import InputError, check_count
from ppga.storage import NumpyArray
from ppga.tasks import Task

# tuned on ten damages of a walker2d and a halfcheetah, see docs/using-an-archive.md
LENGTH_SCALE = 0.1
"""Length scale of the Gaussian process, in units of the measures' ranges."""
TRIAL_NOISE = 0.3
"""Standard deviation of a trial's reward, in units of that of the archive's objectives."""
EXPLORATION = 0.5
"""Standard deviations that are added to the expected reward when the next trial is chosen."""
STOP_RATIO = 1.2
"""Stop when a tried elite's expected reward is this many times that of every untried elite."""
STOP_SHARE = 0.95
"""Stop when a trial has given this share of the archive's highest objective."""
RANDOM_ORDERS = 200
"""Random orders of trials that the comparison with random trials is averaged over."""


@dataclass(frozen=True)
class Adaptation:
    """The trials of an adaptation, t in all, and what followed from them.

    Attributes:
        cells: (t,) cells of the tried elites, in order.
        rewards: (t,) reward of each trial.
        best_cells: (t,) after each trial, the cell of the tried elite with the highest expected reward.
        expected_rewards: (n,) expected reward of every elite after the last trial, in the archive's order.
        stopped_early: whether it stopped because no other elite promised more.
    """

    cells: NumpyArray
    rewards: NumpyArray
    best_cells: NumpyArray
    expected_rewards: NumpyArray
    stopped_early: bool

    @property
    def best(self) -> int:
        """Cell of the elite to use."""
        return int(self.best_cells[-1])


def adapt(
    archive: Archive,
    trial: Callable[[int], float],
    trials: int = 15,
    *,
    length_scale: float = LENGTH_SCALE,
    noise: float = TRIAL_NOISE,
    exploration: float = EXPLORATION,
    stop_ratio: float = STOP_RATIO,
    stop_share: float = STOP_SHARE,
) -> Adaptation:
    """Find an elite that works on a robot that has changed since the archive was trained.

    Args:
        archive: archive of the intact robot.
        trial: cell -> reward of its elite on the changed robot, which may be simulated or real.
        trials: maximum number of trials.
        length_scale: length scale of the Gaussian process, in units of the measures' ranges.
        noise: standard deviation of a trial's reward, in units of that of the archive's objectives.
        exploration: standard deviations that are added to the expected reward when the next trial is chosen.
        stop_ratio: stop when a tried elite's expected reward is this many times that of every untried elite.
        stop_share: stop when a trial has given this share of the archive's highest objective.
    """
    check_count("trials", trials)
    _check_size(archive)
    index = np.asarray(archive.elites["index"])
    prior = np.asarray(archive.elites["objective"], float)
    floor, prior_std = archive.qd_offset, max(float(prior.std()), 1e-9)
    low, high = np.array(archive.ranges).T
    place = (np.asarray(archive.elites["measures"], float) - low) / (high - low)
    rows: list[int] = []
    best_rows: list[int] = []
    rewards: list[float] = []
    stopped = False
    expected, std = prior.copy(), np.full(len(prior), prior_std)
    for _ in range(min(trials, len(prior))):
        bound = expected + exploration * std
        bound[rows] = -np.inf  # an elite is tried once
        rows.append(int(np.argmax(bound)))
        reward = float(trial(int(index[rows[-1]])))
        rewards.append(reward if math.isfinite(reward) else floor)
        near = prior_std**2 * matern(place[rows], place[rows], length_scale)
        far = prior_std**2 * matern(place, place[rows], length_scale)
        weights = np.linalg.solve(near + (noise * prior_std) ** 2 * np.eye(len(rows)), far.T)  # (t, n)
        expected = prior + (np.array(rewards) - prior[rows]) @ weights
        std = np.sqrt(np.maximum(prior_std**2 - (far * weights.T).sum(axis=1), 0.0))
        best_rows.append(rows[int(np.argmax(expected[rows]))])
        untried = np.delete(expected, rows)
        done = rewards[-1] - floor >= stop_share * (prior.max() - floor)
        if (
            done
            or not len(untried)
            or expected[best_rows[-1]] - floor >= stop_ratio * (untried.max() - floor)
        ):
            stopped = True
            break
    return Adaptation(index[rows], np.array(rewards), index[best_rows], expected, stopped)


def _check_size(archive: Archive) -> None:
    if len(archive) < 2:
        raise InputError(f"adaptation needs an archive of at least two elites; this one has {len(archive)}.")


def matern(a: NumpyArray, b: NumpyArray, length_scale: float) -> NumpyArray:
    """Matern's 5/2 kernel (n, m) between places (n, k) and (m, k)."""
    distance = np.sqrt(5.0) * np.linalg.norm(a[:, None] - b[None], axis=2) / length_scale
    return np.asarray((1 + distance + distance**2 / 3) * np.exp(-distance))


@dataclass(frozen=True)
class Recovery:
    """Adaptation to a simulated damage in s sets of trials, and alternatives to compare it with.

    Rewards are means over episodes other than the trial, if there are any.

    Attributes:
        intact: objective of the archive's best elite, the champion, on the intact robot.
        champion: (s,) reward of the champion on the damaged robot.
        adapted: (s, t) reward of the elite that is chosen after 1, 2, ... t trials; where a set took fewer
            trials, that of its last choice.
        random: (s, t) reward of the best of as many random trials.
        possible: (s,) highest reward of any elite.
        adaptations: the trials of each set.
        diverged: share of the episodes on the damaged robot in which the physics diverged.
    """

    intact: float
    champion: NumpyArray
    adapted: NumpyArray
    random: NumpyArray
    possible: NumpyArray
    adaptations: tuple[Adaptation, ...]
    diverged: float

    @property
    def trials(self) -> NumpyArray:
        """(s,) number of trials of each set."""
        return np.array([len(adaptation.cells) for adaptation in self.adaptations])

    @property
    def random_equal_trials(self) -> NumpyArray:
        """(s,) reward of the best of as many random trials as each set took."""
        return np.asarray(self.random[np.arange(len(self.random)), self.trials - 1])

    @property
    def trial_rewards(self) -> NumpyArray:
        """(t,) reward of each trial, the mean over the sets that took that many."""
        most = self.trials.max()
        rows = [[*each.rewards, *[np.nan] * (most - len(each.rewards))] for each in self.adaptations]
        return np.asarray(np.nanmean(rows, axis=0))

    def to_json(self) -> dict[str, Any]:
        """Means over the sets, and the trials of each set; without the expected rewards."""
        return {
            "intact": self.intact,
            "champion": float(self.champion.mean()),
            "adapted": self.adapted.mean(axis=0).tolist(),
            "random": self.random.mean(axis=0).tolist(),
            "possible": float(self.possible.mean()),
            "trials": float(self.trials.mean()),
            "random_equal_trials": float(self.random_equal_trials.mean()),
            "diverged": self.diverged,
            "sets": [
                {
                    "cells": adaptation.cells.tolist(),
                    "rewards": adaptation.rewards.tolist(),
                    "best_cells": adaptation.best_cells.tolist(),
                    "adapted": self.adapted[number, : len(adaptation.cells)].tolist(),
                    "stopped_early": adaptation.stopped_early,
                }
                for number, adaptation in enumerate(self.adaptations)
            ],
        }


def recover(
    archive: Archive,
    task: Task,
    trials: int = 15,
    episodes: int = 10,
    seed: int = 0,
    sets: int = 1,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Recovery:
    """Adapt to a simulated damage, and measure the result by evaluating all elites on the damaged robot.

    A trial is one episode. The chosen elite is scored by the mean over its other episodes, because its trial
    may have been lucky.

    Args:
        archive: archive of the intact robot.
        task: the task with the damaged robot, see `ppga.tasks.damaged`.
        trials: maximum number of trials.
        episodes: episodes of each elite, including the trial; with 1, the trial is the score.
        seed: of the first set's episodes and random trials; each further set uses the next seed.
        sets: number of repetitions, in different episodes.
        progress: called with the number of evaluated elites and their total over all sets.
    """
    check_count("sets", sets)
    _check_size(archive)
    n = len(archive)
    evaluator = make_evaluator(archive, task, episodes)
    results = []
    for number in range(sets):

        def report(done: int, of: int, before: int = number * n) -> None:
            progress(before + done, of * sets)

        results.append(play_all(archive, task, episodes, seed + number, report, evaluator)["objective"])
    rewards = np.stack(results)  # (s, n, episodes)
    finite = np.isfinite(rewards)
    if not finite.any():
        raise InputError("with this damage, the physics diverges in every episode.")
    rewards = np.where(finite, rewards, archive.qd_offset)
    trial_rewards = rewards[:, :, 0]
    mean = rewards[:, :, 1:].mean(axis=2) if episodes > 1 else trial_rewards
    row = {int(cell): number for number, cell in enumerate(archive.elites["index"])}

    def adapt_to(first: NumpyArray) -> Adaptation:
        return adapt(archive, lambda cell: float(first[row[cell]]), trials)

    adaptations = [adapt_to(first) for first in trial_rewards]
    most = max(len(adaptation.cells) for adaptation in adaptations)
    adapted, at_random = [], []
    for number, adaptation in enumerate(adaptations):
        best_rows = [row[int(cell)] for cell in adaptation.best_cells]
        adapted.append(mean[number][best_rows + best_rows[-1:] * (most - len(best_rows))])
        rng = np.random.default_rng(seed + number)
        orders = [rng.permutation(n)[:most] for _ in range(RANDOM_ORDERS)]
        best = [_best_so_far(trial_rewards[number], mean[number], order) for order in orders]
        at_random.append(np.mean(best, axis=0))
    return Recovery(
        intact=float(np.max(archive.elites["objective"])),
        champion=mean[:, row[archive.best()]],
        adapted=np.array(adapted),
        random=np.array(at_random),
        possible=mean.max(axis=1),
        adaptations=tuple(adaptations),
        diverged=float(1 - finite.mean()),
    )


def _best_so_far(trial: NumpyArray, mean: NumpyArray, order: NumpyArray) -> NumpyArray:
    """Mean reward (t,) of the elite with the best trial among the first 1, 2, ... t.

    Args:
        trial: (n,) reward of each elite's trial.
        mean: (n,) mean reward of each elite.
        order: (t,) elites in the order of their trials.
    """
    best = np.array([order[: count + 1][np.argmax(trial[order[: count + 1]])] for count in range(len(order))])
    return np.asarray(mean[best])


def draw(recovery: Recovery, title: str = "") -> Axes:
    """Draw reward over trials, with the champion, random trials and the best elite for comparison.

    Several sets of trials are drawn as their mean, in a band of one standard deviation.
    """
    axes = heatmaps.new_axes(6.4, 4.2)
    count = np.arange(1, recovery.adapted.shape[1] + 1)
    for values, marker, color, label in (
        (recovery.adapted, "o", "#264683", "adaptation"),
        (recovery.random, ".", "#c44e20", f"random elites ({RANDOM_ORDERS} orders)"),
    ):
        mean, std = values.mean(axis=0), values.std(axis=0)
        axes.plot(count, mean, marker=marker, color=color, label=label)
        if len(values) > 1:
            axes.fill_between(count, mean - std, mean + std, color=color, alpha=0.15, linewidth=0)
    for value, style, label in (
        (recovery.intact, "-", "the champion, intact robot"),
        (float(recovery.possible.mean()), "--", "best possible, damaged robot"),
        (float(recovery.champion.mean()), ":", "the champion, damaged robot"),
    ):
        axes.axhline(value, color="0.4", linestyle=style, linewidth=1, label=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("trials, one episode each")
    axes.set_ylabel(
        "reward" if len(recovery.adapted) == 1 else f"reward, {len(recovery.adapted)} sets of trials"
    )
    axes.set_title(heatmaps.literal(title), fontsize="medium")
    axes.legend(fontsize="small")
    return axes
