"""Figures of runs and archives.

Every function draws on given axes, or on those of a new figure, and returns the axes.

Colors: viridis for objectives, which is readable with any color vision; empty cells are hatched gray, so that
they are not mistaken for bad ones; lines in the Okabe-Ito palette.
"""

import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable

from ppga.analysis import metrics
from ppga.analysis.runs import Run
from ppga.archives import Archive, heatmaps
from ppga.archives.heatmaps import heatmap, literal, new_axes, place, shared_scale
from ppga.errors import InputError, check_choice
from ppga.storage import NumpyArray, replacing

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
MAX_INSIDE = 5
"""With more lines than this, the legend is outside of the axes."""
NAMES = {  # of metrics, as they appear in figures and tables
    "qd_score": "QD-score",
    "coverage": "coverage",
    "survivor_coverage": "coverage of survivors",
    "best": "best reward",
    "mean": "mean reward of the elites",
    "iteration": "iterations",
    "evaluations": "evaluated policies",
    "env_steps": "control steps",
    "wall_time": "minutes",
}


def save(axes: Axes, path: Path | io.BytesIO, form: str | None = None, dpi: int = 130) -> None:
    """Write the figure of the axes.

    Args:
        axes: any axes of the figure.
        path: file to write.
        form: png, svg or pdf; by the ending of the file's name by default.
        dpi: dots per inch.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, format=form, dpi=dpi)


# Archives.


def parallel_axes(archive: Archive, axes: Axes | None = None, most: int = 2000) -> Axes:
    """Draw each elite as a line across its measures, colored by objective; for any number of measures.

    Args:
        archive: the archive.
        axes: axes to draw on; new ones by default.
        most: number of lines; the elites with the highest objectives are drawn, the best on top.
    """
    axes = axes or new_axes(8.0)
    objective = np.asarray(archive.elites["objective"])
    order = np.argsort(objective)[-most:]
    scale = shared_scale([archive])
    import matplotlib

    colors = matplotlib.colormaps["viridis"](scale(objective[order]))
    low, high = np.array(archive.ranges).T
    lines = (np.asarray(archive.elites["measures"])[order] - low) / (high - low)
    for values, color in zip(lines, colors, strict=True):
        axes.plot(values, color=color, linewidth=0.7, alpha=0.6)
    for number in range(len(archive.measure_names)):
        axes.axvline(number, color="black", linewidth=0.8)
    axes.set_xticks(range(len(archive.measure_names)), [literal(name) for name in archive.measure_names])
    axes.set_ylabel("share of the measure's range")
    axes.set_ylim(0, 1)
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(ScalarMappable(scale, "viridis"), ax=axes, label="reward")
    return axes


def difference(first: Archive, second: Archive, axes: Axes | None = None) -> Axes:
    """Draw second minus first for cells occupied in both archives; mark cells occupied in only one."""
    axes = axes or new_axes()
    both, values, only_first, only_second = compare_cells(first, second)
    bound = float(np.abs(values).max()) if len(values) else 1.0
    colors: dict[str, Any] = {"cmap": "RdBu", "vmin": -bound, "vmax": bound}
    if first.centroids is not None:
        image: Any = axes.scatter(*_places(first, both), c=values, s=25, **colors)
    else:
        (left, right), (low, high) = (*first.ranges, (0.0, 1.0))[:2]
        order = np.argsort(np.abs(values))  # of cells that share a place, the largest difference is visible
        differences = heatmaps.picture(first.shape, both[order], values[order])
        image = axes.imshow(
            np.ma.masked_invalid(differences), aspect="auto", interpolation="none",
            extent=(left, right, low, high), **colors,
        )  # fmt: skip
    axes.set_facecolor("#dddddd")
    for cells, marker, label in (
        (only_first, "_", "only in the first"),
        (only_second, "+", "only in the second"),
    ):
        axes.scatter(*_places(first, cells), marker=marker, color="black", s=25, label=label)
    axes.set_xlabel(literal(" > ".join(first.measure_names[0::2])))
    axes.set_ylabel(literal(" > ".join(first.measure_names[1::2])))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False)
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=axes, label="reward, second minus first")
    return axes


def compare_cells(first: Archive, second: Archive) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray]:
    """Compare two archives with the same cells.

    Returns:
        Cells (b,) occupied in both; objective (b,) of the second minus that of the first in these cells;
        cells occupied only in the first; cells occupied only in the second.
    """
    a, b = np.asarray(first.elites["index"]), np.asarray(second.elites["index"])
    both, at_a, at_b = np.intersect1d(a, b, return_indices=True)
    values = np.asarray(second.elites["objective"])[at_b] - np.asarray(first.elites["objective"])[at_a]
    return both, values, np.setdiff1d(a, b), np.setdiff1d(b, a)


def _places(archive: Archive, cells: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Coordinates (n,) and (n,) of cells (n,) on the `heatmap`."""
    x, y = np.array([place(archive, int(cell)) for cell in cells]).reshape(-1, 2).T
    return x, y


def ccdf(groups: Mapping[str, Sequence[Archive]], axes: Axes | None = None) -> Axes:
    """Draw the share of all cells that reach a reward: mean of each group, with the 95% interval.

    Args:
        groups: name -> archives of runs that differ in their seed only.
        axes: axes to draw on; new ones by default.
    """
    axes = axes or new_axes()
    scale = shared_scale([archive for archives in groups.values() for archive in archives])
    thresholds = np.linspace(scale.vmin or 0.0, scale.vmax or 1.0, 200)
    for (name, archives), style in zip(groups.items(), _styles(), strict=False):
        if archives:
            curves = [
                metrics.ccdf(archive.elites["objective"], archive.cells, thresholds) for archive in archives
            ]
            _band(axes, thresholds, np.array(curves), style, name)
    axes.set_xlabel("reward")
    axes.set_ylabel("share of the cells that reach it")
    axes.set_ylim(0, None)
    _legend(axes, len(groups))
    return axes


# Runs.


def curve(
    groups: Mapping[str, Sequence[Run]],
    what: str,
    over: str = "env_steps",
    axes: Axes | None = None,
    reference: tuple[str, NumpyArray, NumpyArray] | None = None,
) -> Axes:
    """Draw a metric of the archive over the course of runs: mean of each group, with its 95% interval.

    Args:
        groups: name -> runs that differ in their seed only.
        what: qd_score, coverage, survivor_coverage, best or mean.
        over: iteration, evaluations, env_steps or wall_time.
        axes: axes to draw on; new ones by default.
        reference: name, x (n,) and y (n,) of another curve; the axis of x is then logarithmic.
    """
    check_choice("metric", what, ("qd_score", "coverage", "survivor_coverage", "best", "mean"))
    check_choice("axis", over, ("iteration", "evaluations", "env_steps", "wall_time"))
    axes = axes or new_axes()
    unit = 60.0 if over == "wall_time" else 1.0
    for (name, runs), style in zip(groups.items(), _styles(), strict=False):
        courses = [_course(run, what, over) for run in runs]
        # from the first to the last place that all runs have reached
        start, end = max(x[0] for x, _ in courses), min(x[-1] for x, _ in courses)
        space = np.linspace if reference is None else np.geomspace
        places = space(start, max(end, start), 200)
        values = np.array([_step_values(x, y, places) for x, y in courses])
        _band(axes, places / unit, values, style, name)
    axes.set_xlabel(NAMES[over])
    axes.set_ylabel(NAMES[what])
    if reference is not None:
        label, x, y = reference
        axes.plot(x, y, color="black", linestyle="--", label=label)
        axes.set_xscale("log")
    lines = len(groups) + (reference is not None)
    if lines > 1:
        _legend(axes, lines)
    return axes


def _course(run: Run, what: str, over: str) -> tuple[NumpyArray, NumpyArray]:
    """Values of `over` (n,) and of a metric (n,) in the iterations in which the metric is not null."""
    known = [line for line in run.metrics if line.get(what) is not None]
    return np.array([line[over] for line in known], float), np.array([line[what] for line in known], float)


def _step_values(x: NumpyArray, y: NumpyArray, places: NumpyArray) -> NumpyArray:
    """A step function through points (x, y), both (n,), at places (p,): the last value before each place."""
    return np.asarray(y[np.clip(np.searchsorted(x, places, side="right") - 1, 0, len(y) - 1)])


def _styles() -> Iterator[tuple[str, str]]:
    """Color and line style of each group; the style changes after all colors have been used."""
    for line in itertools.cycle(("-", "--", ":")):
        for color in COLORS:
            yield color, line


def _legend(axes: Axes, lines: int) -> None:
    """Add a legend; of many lines beside the axes, in the order of the lines' last values."""
    if lines <= MAX_INSIDE:
        axes.legend(frameon=False)
        return
    handles: Any
    handles, labels = axes.get_legend_handles_labels()
    ends = [float(np.asarray(handle.get_ydata())[-1]) for handle in handles]
    order = sorted(range(len(ends)), key=lambda number: -ends[number])
    axes.legend(
        [handles[number] for number in order], [labels[number] for number in order], frameon=False,
        loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small",
    )  # fmt: skip


def _band(axes: Axes, x: NumpyArray, values: NumpyArray, style: tuple[str, str], name: str) -> None:
    """Draw the mean of values (runs, n) over x (n,), and the 95% interval if there are several runs."""
    color, line = style
    count = f"{name} ({len(values)} seeds)" if len(values) > 1 else f"{name} (1 seed)"
    axes.plot(x, values.mean(axis=0), line, color=color, label=literal(count))
    if len(values) > 1:
        low, high = metrics.bootstrap(values, draws=2000)
        axes.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)


def trajectory(run: Run, axes: Axes | None = None) -> Axes:
    """Draw the trajectory of the search policy over the archive; restarts are crosses. Needs two measures."""
    assert run.archive is not None
    axes = heatmap(run.archive, axes)
    restarted = np.flatnonzero([bool(line.get("restarted")) for line in run.metrics])
    path = np.array([line["search_measures"] for line in run.metrics], float)
    for leg in np.split(path, restarted + 1):  # a restart is not a walk
        axes.plot(leg[:, 0], leg[:, 1], color="white", linewidth=2.0)
        axes.plot(leg[:, 0], leg[:, 1], color="black", linewidth=0.9, marker=".", markersize=4)
    axes.plot(*path[0, :2], marker="o", color="white", markeredgecolor="black")
    axes.plot(*path[-1, :2], marker="*", color="white", markeredgecolor="black", markersize=12)
    crosses = path[restarted]
    if len(crosses):
        axes.plot(*crosses[:, :2].T, "x", color="red")
    note = ", a cross ends a leg" if len(crosses) else ""
    axes.set_title(f"trajectory of the search policy: from circle to star{note}", fontsize="medium")
    return axes


def growth(run: Run, path: str | Path, most: int = 60, milliseconds: int = 120) -> Path:
    """Write an animated GIF of the archive's growth; its last image lasts two seconds.

    Args:
        run: a run with snapshots of its cells; its archive is the last one.
        path: file to write.
        most: maximum number of images; of more snapshots, evenly spaced ones are drawn.
        milliseconds: duration of an image.
    """
    from PIL import Image

    archive = run.archive
    count = sum(1 for _ in _snapshots(run))
    if archive is None or not count:
        raise InputError(f"{run.name} has no snapshots of its cells yet.")
    chosen = {*np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()}
    scale = shared_scale([archive])
    minutes = {line["iteration"]: line["wall_time"] / 60 for line in run.metrics}
    images = []
    for number, snapshot in enumerate(_snapshots(run)):
        if number not in chosen:
            continue
        cells = np.array(snapshot["cells"], np.int32)
        objective = np.array(snapshot["objectives"], np.float32)
        elites = {"index": cells, "objective": objective}
        axes = heatmap(Archive(archive.description, elites, archive.centroids), scale=scale)
        when = minutes.get(snapshot["iteration"])
        axes.set_title(
            f"iteration {snapshot['iteration']}" + (f", {when:.1f} minutes" if when is not None else "")
        )
        content = io.BytesIO()
        save(axes, content, "png", dpi=90)
        images.append(Image.open(content).convert("P", palette=Image.Palette.ADAPTIVE))
    durations = [milliseconds] * (len(images) - 1) + [2000]
    path = Path(path)
    with replacing(path) as aside:
        images[0].save(
            aside, format="GIF", save_all=True, append_images=images[1:], duration=durations, loop=0
        )
    return path


def _snapshots(run: Run) -> Iterator[Mapping[str, Any]]:
    """Snapshots of a run's cells, if it has any, followed by its archive, if that is newer."""
    last = 0
    for snapshot in run.snapshots():
        last = snapshot["iteration"]
        yield snapshot
    if last and run.archive is not None and (run.archive.description.get("iteration") or 0) > last:
        iteration, elites = run.archive.description["iteration"], run.archive.elites
        yield {"iteration": iteration, "cells": elites["index"], "objectives": elites["objective"]}


def strategy(run: Run, axes: Axes | None = None) -> Axes:
    """Draw mean coefficients and step size of the evolution strategy over the iterations."""
    axes = axes or new_axes()
    lines = [line for line in run.metrics if "strategy_mean" in line]
    iterations = [line["iteration"] for line in lines]
    means = np.array([line["strategy_mean"] for line in lines], float)
    names = ("reward", *(run.archive.measure_names if run.archive else ()))
    for number, color in zip(range(means.shape[1]), itertools.cycle(COLORS), strict=False):
        label = names[number] if number < len(names) else str(number)
        axes.plot(iterations, means[:, number], color=color, label=literal(f"coefficient of {label}"))
    axes.plot(iterations, [line["strategy_scale"] for line in lines], "k--", label="step size")
    axes.set_xlabel("iteration")
    axes.legend(frameon=False, fontsize="small")
    return axes


def times(run: Run, axes: Axes | None = None) -> Axes:
    """Draw the seconds that each phase has taken over all iterations."""
    axes = axes or new_axes()
    seconds: dict[str, float] = {}
    for line in run.metrics:
        for phase, duration in line["times"].items():
            seconds[phase] = seconds.get(phase, 0.0) + duration
    total = seconds.pop("total", sum(seconds.values()))
    seconds["other"] = max(0.0, total - sum(seconds.values()))
    names = sorted(seconds, key=lambda phase: seconds[phase])
    axes.barh(names, [seconds[name] for name in names], color=COLORS[0])
    for row, name in enumerate(names):
        axes.text(seconds[name], row, f" {seconds[name] / max(total, 1e-9):.0%}", va="center")
    axes.set_xlim(0, 1.15 * max(seconds.values()))
    axes.set_xlabel("seconds")
    return axes
