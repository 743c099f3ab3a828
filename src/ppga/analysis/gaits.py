"""Gait diagrams: which foot touches the floor at which time."""

from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes

from ppga.analysis.corrected import task_of
from ppga.analysis.plots import COLORS
from ppga.archives import Archive, heatmaps
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts import Recording, record
from ppga.storage import NumpyArray
from ppga.tasks import Environment

SETTLING_STEPS = 100
"""Control steps before a diagram begins, in which the robot reaches a steady stride."""


def record_elites(
    task: Environment, archive: Archive, cells: list[int], steps: int, seed: int = 0
) -> Recording:
    """Record the first steps of one episode of each elite.

    Args:
        task: the task.
        archive: an archive of policies.
        cells: cells of the elites.
        steps: number of control steps.
        seed: of the episodes' starts.
    """
    network = Network.of(archive.description["network"])
    elites = [archive.elite(cell) for cell in cells]
    stacked = {name: np.stack([elite[name] for elite in elites]) for name in elites[0]}
    policies = jax.vmap(Policy.of_elite)(stacked)

    def act(observation: jax.Array, key: jax.Array, steps: jax.Array) -> jax.Array:  # noqa: ARG001
        mean_action: Any = jax.vmap(lambda policy, each: policy.mean_action(network, each[None])[0])
        return jax.numpy.asarray(mean_action(policies, observation))

    play: Any = jax.jit(lambda key: record(task, act, key, len(cells), steps))
    recording: Recording = play(jax.random.key(seed))
    return recording


def contacts(
    task: Environment, archive: Archive, cells: list[int], steps: int = 60, seed: int = 0
) -> NumpyArray:
    """Measure proxies (cells, steps, k) of elites after SETTLING_STEPS; NaN after the end of an episode."""
    recording = record_elites(task, archive, cells, SETTLING_STEPS + steps, seed)
    proxies = np.where(np.asarray(recording.active)[..., None], np.asarray(recording.proxies), np.nan)
    return proxies[:, SETTLING_STEPS:]


def corners(archive: Archive) -> dict[str, int]:
    """Cells of elites that differ: the best, and for each measure one where it is low and all others are not.

    Returns:
        Title -> cell.
    """
    low, high = np.array(archive.ranges).T
    cells = {"best": archive.best()}
    for number, name in enumerate(archive.measure_names):
        place = low + 0.6 * (high - low)
        place[number] = low[number] + 0.1 * (high - low)[number]
        cells[f"low {name}"] = archive.nearest(place)
    return cells


def text(task: Environment, archive: Archive, cells: dict[str, int], steps: int = 60) -> str:
    """Gait diagrams as text: one line for each foot, with a block where it touches the floor.

    Args:
        task: the task.
        archive: an archive of policies.
        cells: title -> cell of each elite.
        steps: control steps of a diagram.
    """
    touching = contacts(task, archive, list(cells.values()), steps)
    lines = []
    for (title, cell), proxies in zip(cells.items(), touching, strict=True):
        elite = archive.elite(cell)
        measures = ", ".join(f"{value:.0%}" for value in elite["measures"])
        lines.append(f"  {title}: reward {elite['objective']:,.0f}, measures {measures}")
        for number, foot in enumerate(task.measure_names):
            marks = "".join(
                " " if np.isnan(value) else "█" if value > 0.5 else "·" for value in proxies[:, number]
            )
            lines.append(f"  {foot:>14}  {marks}")
        lines.append("")
    return "\n".join(lines)


def diagram(archive: Archive, cells: dict[str, int], axes: Axes | None = None, steps: int = 60) -> Axes:
    """Draw gait diagrams of elites, one below another.

    Args:
        archive: an archive of policies.
        cells: title -> cell of each elite.
        axes: axes to draw on; new ones by default.
        steps: control steps of a diagram.
    """
    axes = axes or heatmaps.new_axes(7.0, 1.0 + 0.5 * len(cells) * len(archive.measure_names))
    task = task_of(archive)
    touching = contacts(task, archive, list(cells.values()), steps)
    row, ticks, labels = 0, [], []
    for (title, cell), proxies in zip(cells.items(), touching, strict=True):
        reward = archive.elite(cell)["objective"]
        label = heatmaps.literal(f"{title}: reward {reward:,.0f}")
        axes.text(0, row - 0.55, label, fontsize="small", va="bottom")
        for number, foot in enumerate(task.measure_names):
            down = np.flatnonzero(proxies[:, number] > 0.5)
            axes.broken_barh(
                [(step * task.control_dt, task.control_dt) for step in down], (row - 0.4, 0.8),
                color=COLORS[number % len(COLORS)],
            )  # fmt: skip
            ticks.append(row)
            labels.append(heatmaps.literal(foot))
            row += 1
        row += 1
    axes.set_yticks(ticks, labels)
    axes.set_ylim(row - 0.5, -1.3)
    axes.set_xlim(0, steps * task.control_dt)
    axes.set_xlabel("seconds; a bar where the foot touches the floor")
    return axes
