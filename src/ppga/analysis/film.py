"""Film strips: an elite's stride frame by frame, beside its place in the archive."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppga.analysis.corrected import task_of
from ppga.analysis.gaits import SETTLED, watch
from ppga.archives import Archive, maps
from ppga.rendering import Renderer
from ppga.storage import NumpyArray
from ppga.tasks import Environment


def frames(
    task: Environment,
    archive: Archive,
    cells: list[int],
    count: int = 7,
    seconds: float = 0.7,
    size: tuple[int, int] = (240, 200),
    seed: int = 0,
) -> NumpyArray:
    """Pictures (cells, count, height, width, 3) of elites, evenly over some seconds of their stride.

    An elite that falls before it has found its stride is shown in its last moments.

    Args:
        task: what they do.
        archive: whose elites are policies.
        cells: where they are.
        count: pictures of each.
        seconds: from the first picture to the last.
        size: width and height of a picture.
        seed: of the episodes' starts.
    """
    every = max(1, round(seconds / max(1, count - 1) / task.control_dt))
    steps = SETTLED + every * count
    seen = watch(task, archive, cells, steps, seed)
    qpos, lived = np.asarray(seen.qpos), np.asarray(seen.alive).sum(axis=1)
    pictures = np.empty((len(cells), count, size[1], size[0], 3), np.uint8)
    with Renderer(task.drawable(), *size) as renderer:
        for row in range(len(cells)):
            start = max(0, min(SETTLED, int(lived[row]) - every * count))
            for number in range(count):
                step = min(start + every * number, max(0, int(lived[row]) - 1))
                pictures[row, number] = renderer.draw(qpos[row, step])
    return pictures


def strips(archive: Archive, cells: dict[str, int], count: int = 7, seconds: float = 0.7) -> Axes:
    """A film strip for each titled cell, and the archive with the cells marked; returns the archive's axes.

    Raises:
        InputError: this machine cannot draw robots.
    """
    task = task_of(archive)
    once: dict[int, str] = {}
    for title, cell in cells.items():
        once.setdefault(cell, title)
    cells = {title: cell for cell, title in once.items()}
    pictures = frames(task, archive, list(cells.values()), count, seconds)
    with_map = len(archive.measure_names) >= 2
    figure = Figure(figsize=(4.6 * with_map + 1.2 * count, max(3.6, 1.25 * len(cells))), layout="constrained")
    parts = figure.subfigures(
        1, 1 + with_map, width_ratios=(4.6, 1.2 * count)[-1 - with_map :], squeeze=False
    )
    films = parts[0, -1].subplots(len(cells), 1, squeeze=False)[:, 0]
    for number, (axes, title, film) in enumerate(zip(films, cells, pictures, strict=True), start=1):
        axes.imshow(_side_by_side(film))
        axes.set_axis_off()
        elite = archive.elite(cells[title])
        form = ".0%" if task.has_feet else ".2f"
        measures = ", ".join(f"{value:{form}}" for value in elite["measures"])
        axes.set_title(
            maps.literal(f"{number}  {title}: reward {elite['objective']:,.0f}, measures {measures}"),
            fontsize="small",
            loc="left",
        )
    if not with_map:
        return films[0]  # type: ignore[no-any-return]
    map_axes: Axes = parts[0, 0].subplots()
    maps.heatmap(archive, map_axes)
    for number, cell in enumerate(cells.values(), start=1):
        x, y = maps.place(archive, cell)
        map_axes.annotate(
            str(number), (x, y), ha="center", va="center", fontsize="small", color="black",
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": "black"},
        )  # fmt: skip
    return map_axes


def _side_by_side(film: NumpyArray, gap: int = 4) -> NumpyArray:
    """Pictures (count, height, width, 3) in a row, white between them."""
    framed = np.pad(film, ((0, 0), (0, 0), (0, gap), (0, 0)), constant_values=255)
    return np.concatenate(framed, axis=1)[:, :-gap]
