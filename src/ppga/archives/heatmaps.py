"""Heatmaps of archives: in a terminal, on matplotlib axes, and in a file.

Colors: viridis for objectives, which is readable with any color vision; empty cells are gray, hatched where
there is room, so that they are not mistaken for bad ones.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure  # without pyplot: no window system, no global state
from rich.text import Text

from ppga.archives.archive import Archive
from ppga.storage import NumpyArray, replacing

VIRIDIS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""Five colors of the viridis color map, dark to bright."""
MAX_WIDTH, MAX_HEIGHT = 60, 100
"""Characters and lines of a heatmap in the terminal."""
MAX_IMAGE_SIZE = 1000
"""Rows and columns of a heatmap in an image."""
MAX_LINES = 100
"""Lines that are drawn between the cells of one measure."""


def plane(
    shape: tuple[int, ...], cells: NumpyArray, values: NumpyArray, block: tuple[int, int] = (1, 1)
) -> NumpyArray:
    """Values of cells on a plane (rows, columns), NaN for empty cells.

    The first measure increases along the columns, the second one from the last row to the first. With more
    measures, the odd ones (1st, 3rd, ...) nest along the columns and the even ones along the rows, the first
    two coarsest. One measure, or a CVT, becomes a single row.

    Args:
        shape: cells along each measure.
        cells: (n,) occupied cells.
        values: (n,) their values.
        block: rows and columns of cells that become one entry of the plane; the last of the values in a
            block is used.
    """
    place = np.unravel_index(cells, shape)
    (across, columns), (up, rows) = (_nested(shape, place, first) for first in (0, 1))
    image = np.full((-(-rows // block[0]), -(-columns // block[1])), np.nan)
    image[(rows - 1 - up) // block[0], across // block[1]] = values
    return image


def picture(shape: tuple[int, ...], cells: NumpyArray, values: NumpyArray) -> NumpyArray:
    """The `plane` with at most MAX_IMAGE_SIZE rows and columns."""
    rows, columns = math.prod(shape[1::2]), math.prod(shape[0::2])
    return plane(shape, cells, values, (-(-rows // MAX_IMAGE_SIZE), -(-columns // MAX_IMAGE_SIZE)))


def _nested(shape: tuple[int, ...], place: Sequence[Any], first: int) -> tuple[Any, int]:
    """Columns (first 0) or rows (first 1) of cells on the plane, and the number of columns or rows.

    Args:
        shape: cells along each measure.
        place: the cells' places along each measure.
        first: first measure along this direction.
    """
    along, size = 0, 1
    for axis in range(first, len(shape), 2):
        along, size = along * shape[axis] + place[axis], size * shape[axis]
    return along, size


def text(shape: tuple[int, ...], cells: NumpyArray, objective: NumpyArray, width: int = MAX_WIDTH) -> Text:
    """The plane as colored blocks for a terminal; in a large plane, a block shows the best of its cells.

    Args:
        shape: cells along each measure.
        cells: (n,) occupied cells.
        objective: (n,) their objectives.
        width: columns of the terminal.
    """
    across = -(-2 * math.prod(shape[0::2]) // width)
    up = max(across, -(-math.prod(shape[1::2]) // MAX_HEIGHT))
    order = np.argsort(objective)
    values = plane(shape, cells[order], objective[order], (up, across))
    finite = values[np.isfinite(values)]
    low, high = (finite.min(), finite.max()) if len(finite) else (0.0, 1.0)
    heatmap = Text()
    for row in values:
        for value in row:
            if np.isnan(value):
                heatmap.append("· ", style="dim")
            else:
                red, green, blue = color((value - low) / max(high - low, 1e-9))
                heatmap.append("██", style=f"rgb({red},{green},{blue})")
        heatmap.append("\n")
    return heatmap


def color(share: float) -> tuple[int, int, int]:
    """Red, green and blue of a place in [0, 1] on the color map."""
    place = min(max(share, 0.0), 1.0) * (len(VIRIDIS) - 1)
    low = min(int(place), len(VIRIDIS) - 2)
    pairs = zip(VIRIDIS[low], VIRIDIS[low + 1], strict=True)
    return tuple(round(a + (b - a) * (place - low)) for a, b in pairs)  # type: ignore[return-value]


def literal(text: str) -> str:
    """A text with escaped dollar signs, because matplotlib reads a formula between two of them."""
    return text.replace("$", r"\$")


def new_axes(width: float = 5.0, height: float = 4.0) -> Axes:
    """Axes on a new figure of that size in inches."""
    axes: Axes = Figure(figsize=(width, height), layout="constrained").subplots()
    return axes


def shared_scale(archives: Sequence[Archive]) -> Normalize:
    """One color scale for archives that are compared."""
    values = [np.asarray(archive.elites["objective"]) for archive in archives if len(archive)]
    objectives = np.concatenate(values) if values else np.zeros(1)
    return Normalize(float(objectives.min()), float(objectives.max()))


def heatmap(archive: Archive, axes: Axes | None = None, scale: Normalize | None = None) -> Axes:
    """Draw an archive: objectives as colors, the first measure to the right, the second one upwards.

    Of more than two measures, the third and fourth nest inside the cells of the first two, and so on.

    Args:
        archive: the archive.
        axes: axes to draw on; new ones by default.
        scale: color scale; from the least to the greatest objective by default.
    """
    names = archive.measure_names
    axes = axes or (new_axes() if len(names) <= 2 else new_axes(7.0, 6.0))
    objective = np.asarray(archive.elites["objective"])
    scale = scale or shared_scale([archive])
    axes.set_facecolor("#dddddd")
    if len(names) <= 2:  # nested cells are too small for hatching
        axes.patch.set(hatch="xxx", edgecolor="white", linewidth=0.0)
    if archive.centroids is not None:
        points = archive.centroids[archive.elites["index"]]
        up = points[:, 1] if points.shape[1] > 1 else np.zeros(len(points))
        image: Any = axes.scatter(points[:, 0], up, c=objective, norm=scale, s=25)
    else:
        order = np.argsort(objective)  # of cells that share a place, the best is visible
        values = picture(archive.shape, archive.elites["index"][order], objective[order])
        (left, right), (low, high) = (*archive.ranges, (0.0, 1.0))[:2]
        image = axes.imshow(
            np.ma.masked_invalid(values), norm=scale, extent=(left, right, low, high), aspect="auto",
            interpolation="none",
        )  # fmt: skip
        if len(archive.shape) > 2:
            _draw_lines(axes, archive)
    axes.set_xlabel(literal(" > ".join(names[0::2])))
    axes.set_ylabel(literal(" > ".join(names[1::2])))
    if len(names) == 1:
        axes.set_yticks([])
    figure = axes.get_figure()
    if figure is not None:
        figure.colorbar(image, ax=axes, label="reward")
    return axes


def place(archive: Archive, cell: int) -> tuple[float, float]:
    """Coordinates of a cell's center on the `heatmap`."""
    if archive.centroids is not None:
        first, second = (*archive.centroids[cell], 0.0)[:2]
        return float(first), float(second)
    at = np.unravel_index(cell, archive.shape)
    center = []
    for first in (0, 1):
        low, high = (*archive.ranges, (0.0, 1.0))[first]
        along, size = _nested(archive.shape, at, first)
        center.append(low + (along + 0.5) / size * (high - low))
    return center[0], center[1]


def _draw_lines(axes: Axes, archive: Archive) -> None:
    """Draw lines between the cells of the first two measures."""
    for number, (low, high) in enumerate(archive.ranges[:2]):
        if archive.shape[number] > MAX_LINES:
            continue
        draw = axes.axvline if number == 0 else axes.axhline
        for place in np.linspace(low, high, archive.shape[number] + 1)[1:-1]:
            draw(place, color="white", linewidth=0.6)


def png(archive: Archive, path: Path) -> None:
    """Write the heatmap of an archive to a PNG file."""
    axes = heatmap(archive)
    best = archive.elites["objective"].max() if len(archive) else float("nan")
    name = literal(archive.description["task"]["name"])
    axes.set_title(f"{name}: {len(archive)} of {archive.cells} cells, best {best:,.0f}")
    figure = axes.get_figure(root=True)
    assert figure is not None
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
