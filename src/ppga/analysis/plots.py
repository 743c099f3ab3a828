"""Pictures of runs and archives. Every function draws on given axes, or on a new figure, and returns the
axes.

Colours: viridis for objectives, which reads the same to all eyes; empty cells are hatched grey, so that they
cannot be taken for bad ones; lines by the Okabe-Ito palette.
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
from ppga.archives import Archive, maps
from ppga.archives.maps import heatmap, literal, new_axes, place, shared_scale
from ppga.errors import InputError, choose
from ppga.storage import NumpyArray, replacing

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
CROWD = 5
"""More lines than this have their names beside the picture."""
NAMES = {
    "qd_score": "QD-score",
    "coverage": "coverage",
    "best": "best reward",
    "mean": "mean reward of the elites",
    "evaluations": "policies judged",
    "env_steps": "control steps",
    "wall_time": "minutes",
}


def save(axes: Axes, path: Path | io.BytesIO, form: str | None = None, dpi: int = 130) -> None:
    """Write the figure that axes are on; PNG, SVG or PDF, by the name's ending unless told."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.savefig(path, format=form, dpi=dpi)


# Archives.


def parallel_axes(archive: Archive, axes: Axes | None = None, most: int = 2000) -> Axes:
    """Each elite as a line across its measures, coloured by objective, the best on top; for any number of
    measures.
    """
    axes = axes or new_axes(8.0)
    objective = np.asarray(archive.elites["objective"])
    order = np.argsort(objective)[-most:]
    scale = shared_scale([archive])
    import matplotlib

    colours = matplotlib.colormaps["viridis"](scale(objective[order]))
    low, high = np.array(archive.ranges).T
    lines = (np.asarray(archive.elites["measures"])[order] - low) / (high - low)
    for values, colour in zip(lines, colours, strict=True):
        axes.plot(values, color=colour, linewidth=0.7, alpha=0.6)
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
    """Second minus first, cell by cell, where both are filled; marks where only one is."""
    axes = axes or new_axes()
    both, values, only_first, only_second = compare_cells(first, second)
    reach = float(np.abs(values).max()) if len(values) else 1.0
    colours: dict[str, Any] = {"cmap": "RdBu", "vmin": -reach, "vmax": reach}
    if first.centroids is not None:
        picture: Any = axes.scatter(*_places(first, both), c=values, s=25, **colours)
    else:
        (left, right), (low, high) = (*first.ranges, (0.0, 1.0))[:2]
        order = np.argsort(np.abs(values))  # of cells that share a place, the largest difference is seen
        seen = maps.picture(first.shape, both[order], values[order])
        picture = axes.imshow(
            np.ma.masked_invalid(seen), aspect="auto", interpolation="none",
            extent=(left, right, low, high), **colours,
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
        figure.colorbar(picture, ax=axes, label="reward, second minus first")
    return axes


def compare_cells(first: Archive, second: Archive) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray]:
    """Cells filled in both, second minus first there, cells filled in the first and in the second only."""
    a, b = np.asarray(first.elites["index"]), np.asarray(second.elites["index"])
    both, at_a, at_b = np.intersect1d(a, b, return_indices=True)
    values = np.asarray(second.elites["objective"])[at_b] - np.asarray(first.elites["objective"])[at_a]
    return both, values, np.setdiff1d(a, b), np.setdiff1d(b, a)


def _places(archive: Archive, cells: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
    """Where cells (n,) are drawn: rightwards (n,), and upwards."""
    x, y = np.array([place(archive, int(cell)) for cell in cells]).reshape(-1, 2).T
    return x, y


def ccdf(groups: Mapping[str, Sequence[Archive]], axes: Axes | None = None) -> Axes:
    """Share of all cells that reach a reward, mean over the archives of each group, with the 95% interval."""
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
    groups: Mapping[str, Sequence[Run]], what: str, over: str = "env_steps", axes: Axes | None = None
) -> Axes:
    """A figure of the archive over the course of runs: mean of each group, with the 95% interval over seeds.

    Args:
        groups: name -> runs that differ in their seed only.
        what: qd_score, coverage, best or mean.
        over: evaluations, env_steps or wall_time.
        axes: to draw on.
    """
    choose("figure", what, ("qd_score", "coverage", "best", "mean"))
    choose("axis", over, ("evaluations", "env_steps", "wall_time"))
    axes = axes or new_axes()
    unit = 60.0 if over == "wall_time" else 1.0
    for (name, runs), style in zip(groups.items(), _styles(), strict=False):
        courses = [_course(run, what, over) for run in runs]
        # where all runs have something to say
        start, end = max(x[0] for x, _ in courses), min(x[-1] for x, _ in courses)
        places = np.linspace(start, max(end, start), 200)
        values = np.array([_step_values(x, y, places) for x, y in courses])
        _band(axes, places / unit, values, style, name)
    axes.set_xlabel(NAMES[over])
    axes.set_ylabel(NAMES[what])
    if len(groups) > 1:
        _legend(axes, len(groups))
    return axes


def _course(run: Run, what: str, over: str) -> tuple[NumpyArray, NumpyArray]:
    known = [line for line in run.metrics if line.get(what) is not None]
    return np.array([line[over] for line in known], float), np.array([line[what] for line in known], float)


def _step_values(x: NumpyArray, y: NumpyArray, places: NumpyArray) -> NumpyArray:
    """What was known at each place: the last value before it."""
    return np.asarray(y[np.clip(np.searchsorted(x, places, side="right") - 1, 0, len(y) - 1)])


def _styles() -> Iterator[tuple[str, str]]:
    """Colours, and lines of another kind when they have all been used."""
    for line in itertools.cycle(("-", "--", ":")):
        for colour in COLOURS:
            yield colour, line


def _legend(axes: Axes, lines: int) -> None:
    """Who is who; beside the picture where many would hide it, in the order of their ends."""
    if lines <= CROWD:
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
    """A mean line; the interval around it where there are several runs."""
    colour, line = style
    count = f"{name} ({len(values)} seeds)" if len(values) > 1 else f"{name} (1 seed)"
    axes.plot(x, values.mean(axis=0), line, color=colour, label=literal(count))
    if len(values) > 1:
        low, high = metrics.bootstrap(values, draws=2000)
        axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)


def search_path(run: Run, axes: Axes | None = None) -> Axes:
    """Where the search policies went, over the archive; restarts as crosses. Needs two measures."""
    assert run.archive is not None
    axes = heatmap(run.archive, axes)
    emitters = len(run.metrics[0]["search_measures"])
    restarted = np.flatnonzero([bool(line.get("restarted")) for line in run.metrics])
    for emitter in range(emitters):
        path = np.array([line["search_measures"][emitter] for line in run.metrics], float)
        for leg in np.split(path, restarted + 1):  # no line where it did not walk
            axes.plot(leg[:, 0], leg[:, 1], color="white", linewidth=2.0)
            axes.plot(leg[:, 0], leg[:, 1], color="black", linewidth=0.9, marker=".", markersize=4)
        axes.plot(*path[0, :2], marker="o", color="white", markeredgecolor="black")
        axes.plot(*path[-1, :2], marker="*", color="white", markeredgecolor="black", markersize=12)
    again = [line["search_measures"][0] for line in run.metrics if line.get("restarted")]
    if again:
        axes.plot(*np.array(again, float)[:, :2].T, "x", color="red")
    axes.set_title(
        "way of the search policy: from circle to star" + (", a cross ends a leg" if again else ""),
        fontsize="medium",
    )
    return axes


def growth(run: Run, path: str | Path, most: int = 60, milliseconds: int = 120) -> Path:
    """How the archive filled, as an animated GIF; the last picture stays for two seconds.

    Args:
        run: with snapshots of its cells.
        path: file to write.
        most: pictures; of a longer run, evenly chosen snapshots.
        milliseconds: each picture is shown.
    """
    from PIL import Image

    archive = run.archive
    count = sum(1 for _ in run.snapshots())
    if archive is None or not count:
        raise InputError(f"{run.name} has no snapshots of its cells yet.")
    chosen = {*np.linspace(0, count - 1, min(most, count)).round().astype(int).tolist()}
    scale = shared_scale([archive])
    minutes = {line["iteration"]: line["wall_time"] / 60 for line in run.metrics}
    pictures = []
    for number, snapshot in enumerate(run.snapshots()):
        if number not in chosen:
            continue
        cells = np.array(snapshot["cells"], np.int32)
        objective = np.array(snapshot["objectives"], np.float32)
        then = Archive(archive.description, {"index": cells, "objective": objective}, archive.centroids)
        axes = heatmap(then, scale=scale)
        when = minutes.get(snapshot["iteration"])
        axes.set_title(
            f"iteration {snapshot['iteration']}" + (f", {when:.1f} minutes" if when is not None else "")
        )
        picture = io.BytesIO()
        save(axes, picture, "png", dpi=90)
        pictures.append(Image.open(picture).convert("P", palette=Image.Palette.ADAPTIVE))
    durations = [milliseconds] * (len(pictures) - 1) + [2000]
    path = Path(path)
    with replacing(path) as aside:
        pictures[0].save(
            aside, format="GIF", save_all=True, append_images=pictures[1:], duration=durations, loop=0
        )
    return path


def xnes(run: Run, axes: Axes | None = None) -> Axes:
    """XNES' mean coefficients, and its step size, over the iterations of the first search policy."""
    axes = axes or new_axes()
    lines = [line for line in run.metrics if "xnes_mean" in line]
    iterations = [line["iteration"] for line in lines]
    means = np.array([line["xnes_mean"][0] for line in lines], float)
    names = ("reward", *(run.archive.measure_names if run.archive else ()))
    for number, colour in zip(range(means.shape[1]), itertools.cycle(COLOURS), strict=False):
        label = names[number] if number < len(names) else str(number)
        axes.plot(iterations, means[:, number], color=colour, label=literal(f"coefficient of {label}"))
    axes.plot(iterations, [line["xnes_scale"][0] for line in lines], "k--", label="step size")
    axes.set_xlabel("iteration")
    axes.legend(frameon=False, fontsize="small")
    return axes


def times(run: Run, axes: Axes | None = None) -> Axes:
    """Where the time went: seconds of each phase over all iterations."""
    axes = axes or new_axes()
    total: dict[str, float] = {}
    for line in run.metrics:
        for phase, seconds in line["times"].items():
            total[phase] = total.get(phase, 0.0) + seconds
    whole = total.pop("total", sum(total.values()))
    total["other"] = max(0.0, whole - sum(total.values()))
    names = sorted(total, key=lambda phase: total[phase])
    axes.barh(names, [total[name] for name in names], color=COLOURS[0])
    for row, name in enumerate(names):
        axes.text(total[name], row, f" {total[name] / max(whole, 1e-9):.0%}", va="center")
    axes.set_xlim(0, 1.15 * max(total.values()))
    axes.set_xlabel("seconds")
    return axes
