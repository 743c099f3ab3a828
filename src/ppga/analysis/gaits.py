"""Gaits: which foot touches the floor when."""

from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from ppga.analysis.corrected import task_of
from ppga.analysis.plots import COLOURS
from ppga.archives import Archive, maps
from ppga.policies import Network, Policy
from ppga.rollouts import Recording, record
from ppga.storage import NumpyArray
from ppga.tasks import Environment

SETTLED = 100
"""Control steps before a diagram begins, in which the robot finds its stride."""


def watch(task: Environment, archive: Archive, cells: list[int], steps: int, seed: int = 0) -> Recording:
    """The first steps of an episode of each of some elites."""
    network = Network.of(archive.description["network"])
    elites = [archive.elite(cell) for cell in cells]
    stacked = {name: np.stack([elite[name] for elite in elites]) for name in elites[0]}
    policies = jax.vmap(Policy.of_elite)(stacked)

    def act(observation: jax.Array, key: jax.Array, steps: jax.Array) -> jax.Array:  # noqa: ARG001
        one: Any = jax.vmap(lambda policy, seen: policy.mean_action(network, seen[None])[0])
        return jax.numpy.asarray(one(policies, observation))

    seen: Recording = jax.jit(lambda key: record(task, act, key, len(cells), steps))(jax.random.key(seed))
    return seen


def contacts(
    task: Environment, archive: Archive, cells: list[int], steps: int = 60, seed: int = 0
) -> NumpyArray:
    """Measure proxies (cells, steps, k) of elites, once they have found their stride; NaN after a fall."""
    seen = watch(task, archive, cells, SETTLED + steps, seed)
    touched = np.where(np.asarray(seen.alive)[..., None], np.asarray(seen.proxies), np.nan)
    return touched[:, SETTLED:]


def corners(archive: Archive) -> dict[str, int]:
    """Cells worth a look: the best, and those nearest to where one measure is small and the others are
    not.
    """
    low, high = np.array(archive.ranges).T
    wanted = {"the best": archive.best()}
    for number, name in enumerate(archive.measure_names):
        place = low + 0.6 * (high - low)
        place[number] = low[number] + 0.1 * (high - low)[number]
        wanted[f"little {name}"] = archive.nearest(place)
    return wanted


def text(task: Environment, archive: Archive, cells: dict[str, int], steps: int = 60) -> str:
    """Gait diagrams in characters: a line a foot, a block where it touches."""
    touched = contacts(task, archive, list(cells.values()), steps)
    lines = []
    for (title, cell), seen in zip(cells.items(), touched, strict=True):
        elite = archive.elite(cell)
        measures = ", ".join(f"{value:.0%}" for value in elite["measures"])
        lines.append(f"  {title}: reward {elite['objective']:,.0f}, measures {measures}")
        for number, foot in enumerate(task.measure_names):
            marks = "".join(
                " " if np.isnan(touch) else "█" if touch > 0.5 else "·" for touch in seen[:, number]
            )
            lines.append(f"  {foot:>14}  {marks}")
        lines.append("")
    return "\n".join(lines)


def diagram(archive: Archive, cells: dict[str, int], axes: Axes | None = None, steps: int = 60) -> Axes:
    """Gait diagrams of elites, one below the other."""
    axes = axes or maps.new_axes(7.0, 1.0 + 0.5 * len(cells) * len(archive.measure_names))
    task = task_of(archive)
    touched = contacts(task, archive, list(cells.values()), steps)
    row, ticks, labels = 0, [], []
    for (title, cell), seen in zip(cells.items(), touched, strict=True):
        reward = archive.elite(cell)["objective"]
        label = maps.literal(f"{title}: reward {reward:,.0f}")
        axes.text(0, row - 0.55, label, fontsize="small", va="bottom")
        for number, foot in enumerate(task.measure_names):
            down = np.flatnonzero(seen[:, number] > 0.5)
            axes.broken_barh(
                [(step * task.control_dt, task.control_dt) for step in down], (row - 0.4, 0.8),
                color=COLOURS[number % len(COLOURS)],
            )  # fmt: skip
            ticks.append(row)
            labels.append(maps.literal(foot))
            row += 1
        row += 1
    axes.set_yticks(ticks, labels)
    axes.set_ylim(row - 0.5, -1.3)
    axes.set_xlim(0, steps * task.control_dt)
    axes.set_xlabel("seconds; a bar where the foot touches the floor")
    return axes
