"""Strides frame by frame: images of elites, beside their cells in the archive."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppga.analysis.corrected import task_of
from ppga.analysis.gaits import SETTLING_STEPS, record_elites
from ppga.archives import Archive, heatmaps
from ppga.rendering import Renderer
from ppga.storage import NumpyArray
from ppga.tasks import Environment


def render_frames(
    task: Environment,
    archive: Archive,
    cells: list[int],
    count: int = 7,
    seconds: float = 0.7,
    size: tuple[int, int] = (240, 200),
    seed: int = 0,
) -> NumpyArray:
    """Images (cells, count, height, width, 3) of elites at equal intervals during their stride.

    An elite that falls early is shown in its last steps.

    Args:
        task: the task.
        archive: an archive of policies.
        cells: cells of the elites.
        count: images of each elite.
        seconds: simulated time from the first image to the last.
        size: width and height of an image in pixels.
        seed: of the episodes' starts.
    """
    every = max(1, round(seconds / max(1, count - 1) / task.control_dt))
    steps = SETTLING_STEPS + every * count
    recording = record_elites(task, archive, cells, steps, seed)
    qpos, length = np.asarray(recording.qpos), np.asarray(recording.active).sum(axis=1)
    frames = np.empty((len(cells), count, size[1], size[0], 3), np.uint8)
    with Renderer(task.drawable(), *size) as renderer:
        for row in range(len(cells)):
            start = max(0, min(SETTLING_STEPS, int(length[row]) - every * count))
            for number in range(count):
                step = min(start + every * number, max(0, int(length[row]) - 1))
                frames[row, number] = renderer.draw(qpos[row, step])
    return frames


def strips(archive: Archive, cells: dict[str, int], count: int = 7, seconds: float = 0.7) -> Axes:
    """Draw a row of images for each elite, and the archive's heatmap with their cells marked.

    Args:
        archive: an archive of policies.
        cells: title -> cell of each elite.
        count: images of each elite.
        seconds: simulated time from the first image to the last.

    Returns:
        Axes of the heatmap; with one measure there is no heatmap, and they are those of the first row.

    Raises:
        InputError: this machine cannot render images.
    """
    task = task_of(archive)
    titles: dict[int, str] = {}
    for title, cell in cells.items():
        titles.setdefault(cell, title)
    cells = {title: cell for cell, title in titles.items()}
    frames = render_frames(task, archive, list(cells.values()), count, seconds)
    with_map = len(archive.measure_names) >= 2
    figure = Figure(figsize=(4.6 * with_map + 1.2 * count, max(3.6, 1.25 * len(cells))), layout="constrained")
    parts = figure.subfigures(
        1, 1 + with_map, width_ratios=(4.6, 1.2 * count)[-1 - with_map :], squeeze=False
    )
    rows = parts[0, -1].subplots(len(cells), 1, squeeze=False)[:, 0]
    for number, (axes, title, images) in enumerate(zip(rows, cells, frames, strict=True), start=1):
        axes.imshow(_side_by_side(images))
        axes.set_axis_off()
        elite = archive.elite(cells[title])
        form = ".0%" if task.has_feet else ".2f"
        measures = ", ".join(f"{value:{form}}" for value in elite["measures"])
        axes.set_title(
            heatmaps.literal(f"{number}  {title}: reward {elite['objective']:,.0f}, measures {measures}"),
            fontsize="small",
            loc="left",
        )
    if not with_map:
        return rows[0]  # type: ignore[no-any-return]
    map_axes: Axes = parts[0, 0].subplots()
    heatmaps.heatmap(archive, map_axes)
    for number, cell in enumerate(cells.values(), start=1):
        x, y = heatmaps.place(archive, cell)
        map_axes.annotate(
            str(number), (x, y), ha="center", va="center", fontsize="small", color="black",
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "black"},
        )  # fmt: skip
    return map_axes


def _side_by_side(images: NumpyArray, gap: int = 4) -> NumpyArray:
    """Images (count, height, width, 3) in a row, with white gaps of that many pixels."""
    padded = np.pad(images, ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=255)
    return np.concatenate(padded, axis=1)[:, :-gap]
