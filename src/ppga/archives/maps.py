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


WIDEST, TALLEST, FINEST = 60, 100, 1000
"""Characters and lines of a map in the terminal; rows and columns of one in a picture."""
MOST_LINES = 100
"""Lines between the cells of one measure that are drawn."""


def plane(
    shape: tuple[int, ...], cells: NumpyArray, values: NumpyArray, coarse: tuple[int, int] = (1, 1)
) -> NumpyArray:
    """Values of cells (n,) on a plane (rows, columns), NaN where empty; the second measure upwards, the first
    rightwards.

    Of more measures than two, the odd ones (1st, 3rd, ...) nest along the columns and the even ones along the
    rows, the first two coarsest. One measure, or a CVT, becomes a single row.

    Args:
        shape: cells along each measure.
        cells: which ones are filled.
        values: of these.
        coarse: rows and columns of cells that make a row and a column; of values that meet there, the last
            one counts.
    """
    at = np.unravel_index(cells, shape)
    (across, columns), (up, rows) = (_nested(shape, at, first) for first in (0, 1))
    drawn = np.full((-(-rows // coarse[0]), -(-columns // coarse[1])), np.nan)
    drawn[(rows - 1 - up) // coarse[0], across // coarse[1]] = values
    return drawn


def picture(shape: tuple[int, ...], cells: NumpyArray, values: NumpyArray) -> NumpyArray:
    """The `plane`, with no more rows and columns than a picture can show."""
    rows, columns = math.prod(shape[1::2]), math.prod(shape[0::2])
    return plane(shape, cells, values, (-(-rows // FINEST), -(-columns // FINEST)))


def _nested(shape: tuple[int, ...], at: Sequence[Any], first: int) -> tuple[Any, int]:
    """Where cells are along the columns (first 0) or rows (1) of the plane, by their places along each
    measure; and how many columns or rows there are.
    """
    along, size = 0, 1
    for axis in range(first, len(shape), 2):  # nested: the first coarsest
        along, size = along * shape[axis] + at[axis], size * shape[axis]
    return along, size


def text(shape: tuple[int, ...], cells: NumpyArray, objective: NumpyArray, width: int = WIDEST) -> Text:
    """The plane in coloured blocks for a terminal; a larger plane is thinned, each block the best of its
    cells.
    """
    across = -(-2 * math.prod(shape[0::2]) // width)
    up = max(across, -(-math.prod(shape[1::2]) // TALLEST))
    order = np.argsort(objective)
    values = plane(shape, cells[order], objective[order], (up, across))
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
        drawn: Any = axes.scatter(points[:, 0], up, c=objective, norm=scale, s=25)
    else:
        order = np.argsort(objective)  # of cells that share a place, the best is seen
        values = picture(archive.shape, archive.elites["index"][order], objective[order])
        (left, right), (low, high) = (*archive.ranges, (0.0, 1.0))[:2]
        drawn = axes.imshow(
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
        figure.colorbar(drawn, ax=axes, label="reward")
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
        along, size = _nested(archive.shape, at, first)
        found.append(low + (along + 0.5) / size * (high - low))
    return found[0], found[1]


def _mark_blocks(axes: Axes, archive: Archive) -> None:
    """Lines between the cells of the first two measures."""
    for number, (low, high) in enumerate(archive.ranges[:2]):
        if archive.shape[number] > MOST_LINES:
            continue
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
