"""Archives as pictures: in the terminal, and as a PNG."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from ppga.archives import Archive
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


def png(archive: Archive, path: Path) -> None:
    """Draw the archive into a file."""
    from matplotlib.figure import Figure  # without pyplot: no window system, nothing global

    figure = Figure(figsize=(6, 5), layout="constrained")
    axes: Any = figure.subplots()
    elites, names = archive.elites, archive.measure_names
    if archive.centroids is None:
        values = plane(archive.shape, elites["index"], elites["objective"])
        (x0, x1), (y0, y1) = (*archive.ranges, (0.0, 1.0))[:2]
        picture = axes.imshow(values, extent=(x0, x1, y0, y1), aspect="auto", interpolation="none")
    else:
        points = archive.centroids[elites["index"]]
        second = points[:, 1] if points.shape[1] > 1 else np.zeros(len(points))
        picture = axes.scatter(points[:, 0], second, c=elites["objective"], s=20)
    across, up = names[0::2], names[1::2]
    axes.set_xlabel(" > ".join(across))
    axes.set_ylabel(" > ".join(up))
    if not up:
        axes.set_yticks([])
    best = elites["objective"].max() if len(archive) else float("nan")
    axes.set_title(
        f"{archive.description['task']['name']}: {len(archive)} of {archive.cells} cells, best {best:,.0f}"
    )
    if len(archive):
        figure.colorbar(picture, label="objective")
    with replacing(path) as aside:
        figure.savefig(aside, format="png", dpi=120)
