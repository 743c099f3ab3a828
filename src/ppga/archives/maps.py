"""Archives as maps: in the terminal, on axes, in a file.

Colours: viridis for objectives, which reads the same to all eyes; empty cells are grey, hatched where there
is room, so that they cannot be taken for bad ones.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure  # without pyplot: no window system, nothing global
from rich.text import Text

from ppga.archives.files import Archive
from ppga.storage import NumpyArray, replacing

RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Five stops of the viridis colour map, dark to bright."""


def plane(shape: tuple[int, ...], cells: NumpyArray, objective: NumpyArray) -> NumpyArray:
    """Objectives on a plane (rows, columns), NaN where empty; the second measure upwards, the first
    rightwards.

    Of more measures than two, the odd ones (1st, 3rd, ...) nest along the columns and the even ones along the
    rows, the first two coarsest. One measure, or a CVT, becomes a single row.
    """
    grid = np.full(math.prod(shape), np.nan)
    grid[cells] = objective
    grid = grid.reshape(shape)
    k = len(shape)
    across, up = list(range(0, k, 2)), list(range(1, k, 2))
    columns = math.prod(shape[axis] for axis in across)
    return grid.transpose(up + across).reshape(-1, columns)[::-1]


def text(shape: tuple[int, ...], cells: NumpyArray, objective: NumpyArray, width: int = 60) -> Text:
    """The plane in coloured blocks for a terminal; a wider plane is thinned, each block the best of its
    cells.
    """
    values = plane(shape, cells, objective)
    columns = values.shape[1]
    coarse = max(1, math.ceil(2 * columns / width))
    values = _thinned(values, coarse)
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    drawn = Text()
    for row in values:
        for value in row:
            if np.isnan(value):
                drawn.append("· ", style="dim")
            else:
                red, green, blue = colour((value - low) / max(high - low, 1e-9))
                drawn.append("██", style=f"rgb({red},{green},{blue})")
        drawn.append("\n")
    return drawn


def colour(share: float) -> tuple[int, int, int]:
    """Red, green, blue at a place in [0, 1] along the colour map."""
    place = min(max(share, 0.0), 1.0) * (len(RAMP) - 1)
    low = min(int(place), len(RAMP) - 2)
    return tuple(round(a + (b - a) * (place - low)) for a, b in zip(RAMP[low], RAMP[low + 1], strict=True))  # type: ignore[return-value]


def _thinned(values: NumpyArray, coarse: int) -> NumpyArray:
    rows, columns = (-(-size // coarse) for size in values.shape)
    padded = np.full((rows * coarse, columns * coarse), np.nan)
    padded[: values.shape[0], : values.shape[1]] = values
    blocks = padded.reshape(rows, coarse, columns, coarse)
    best = np.where(np.isnan(blocks), -np.inf, blocks).max(axis=(1, 3))
    return np.where(np.isinf(best), np.nan, best)


def literal(text: str) -> str:
    """A text for a figure in which dollar signs are dollar signs: matplotlib reads formulas between two."""
    return text.replace("$", r"\$")


def new_axes(width: float = 5.0, height: float = 4.0) -> Axes:
    """Axes on a figure of their own."""
    axes: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
    return axes


def shared_scale(archives: Sequence[Archive]) -> Normalize:
    """One colour scale for archives that are compared."""
    values = [np.asarray(archive.elites["objective"]) for archive in archives if len(archive)]
    everything = np.concatenate(values) if values else np.zeros(1)
    return Normalize(float(everything.min()), float(everything.max()))


def heatmap(archive: Archive, axes: Axes | None = None, scale: Normalize | None = None) -> Axes:
    """The archive as a map: objective by colour, the first measure rightwards, the second upwards.

    Of more measures, the third and fourth nest inside the cells of the first two, and so on.
    """
    names = archive.measure_names
    axes = axes or (new_axes() if len(names) <= 2 else new_axes(7.0, 6.0))
    objective = np.asarray(archive.elites["objective"])
    scale = scale or shared_scale([archive])
    axes.set_facecolor("#dddddd")
    if len(names) <= 2:  # nested cells are too small for it
        axes.patch.set(hatch="xxx", edgecolor="white", linewidth=0.0)
    if archive.centroids is not None:
        points = archive.centroids[archive.elites["index"]]
        up = points[:, 1] if points.shape[1] > 1 else np.zeros(len(points))
        picture: Any = axes.scatter(points[:, 0], up, c=objective, norm=scale, s=25)
    else:
        values = plane(archive.shape, archive.elites["index"], objective)
        (left, right), (low, high) = (*archive.ranges, (0.0, 1.0))[:2]
        picture = axes.imshow(
            np.ma.masked_invalid(values), norm=scale, extent=(left, right, low, high), aspect="auto",
            interpolation="none",
        )  # fmt: skip
        if len(archive.shape) > 2:
            _mark_blocks(axes, archive)
    axes.set_xlabel(literal(", within it ".join(names[0::2])))
    axes.set_ylabel(literal(", within it ".join(names[1::2])))
    if len(names) == 1:
        axes.set_yticks([])
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(picture, ax=axes, label="reward")
    return axes


def place(archive: Archive, cell: int) -> tuple[float, float]:
    """Where a cell's middle lies on the `heatmap`."""
    if archive.centroids is not None:
        first, second = (*archive.centroids[cell], 0.0)[:2]
        return float(first), float(second)
    at = np.unravel_index(cell, archive.shape)
    found = []
    for first in (0, 1):
        low, high = (*archive.ranges, (0.0, 1.0))[first]
        along, size = 0, 1
        for axis in range(first, len(archive.shape), 2):  # nested: the first coarsest
            along, size = along * archive.shape[axis] + int(at[axis]), size * archive.shape[axis]
        found.append(low + (along + 0.5) / size * (high - low))
    return found[0], found[1]


def _mark_blocks(axes: Axes, archive: Archive) -> None:
    """Lines between the cells of the first two measures."""
    for number, (low, high) in enumerate(archive.ranges[:2]):
        draw = axes.axvline if number == 0 else axes.axhline
        for place in np.linspace(low, high, archive.shape[number] + 1)[1:-1]:
            draw(place, color="white", linewidth=0.6)


def png(archive: Archive, path: Path) -> None:
    """Draw the archive into a file."""
    axes = heatmap(archive)
    best = archive.elites["objective"].max() if len(archive) else float("nan")
    name = literal(archive.description["task"]["name"])
    axes.set_title(f"{name}: {len(archive)} of {archive.cells} cells, best {best:,.0f}")
    figure = axes.get_figure(root=True)
    assert figure is not None
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
