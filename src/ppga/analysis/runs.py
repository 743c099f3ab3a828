"""Runs as data: what their folders say, as tables and archives."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppga.analysis import metrics
from ppga.analysis.corrected import read_figures
from ppga.archives import Archive, load_archive
from ppga.archives.shipped import shipped
from ppga.errors import InputError
from ppga.limits import MOST_CELLS
from ppga.runs.config import PPGAConfig
from ppga.runs.folder import RunFolder, read_lines, read_metrics
from ppga.storage import is_number

if TYPE_CHECKING:
    import pandas

ARCHIVED, CORRECTED = "archive.safetensors", "corrected.safetensors"


@dataclass(frozen=True)
class Run:
    """A run's folder, read.

    Attributes:
        path: the folder; or the file of an archive by itself.
        task: what was learnt.
        algorithm: how.
        seed: of its randomness.
        metrics: a dict an iteration.
        archive: the elites; None if none were written yet.
        corrected: the corrected archive; None if `ppga evaluate` has not made one.
        evaluation: its figures.
    """

    path: Path
    task: str
    algorithm: str
    seed: int
    metrics: Sequence[Mapping[str, Any]]
    archive: Archive | None
    corrected: Archive | None
    evaluation: Mapping[str, Any] | None
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The folder's, or the file's."""
        return self.path.stem if self.alone else self.path.name

    @property
    def file(self) -> str:
        """What files about it are called: runs of a study have the same name on every task."""
        return self.name if self.name.startswith(self.task) else f"{self.task}-{self.name}"

    @property
    def alone(self) -> bool:
        """Whether there is an archive and nothing else: its metrics are one line, of the archive as it is."""
        return self.path.is_file()

    @property
    def group(self) -> tuple[str, str]:
        """Runs that should differ in their seed only."""
        return self.task, self.algorithm

    def snapshots(self) -> Iterator[dict[str, Any]]:
        """Which cells were filled, and how well, every few iterations: iteration, cells, objectives.

        They are read one at a time: a file of a long run may be larger than the memory.
        """
        file = RunFolder(self.path).cells
        for shot in read_lines(file) if file.is_file() else ():
            if not self._is_snapshot(shot):
                raise InputError(f"{file}: the line of iteration {shot['iteration']} is not one of cells.")
            yield shot

    def _is_snapshot(self, shot: Mapping[str, Any]) -> bool:
        cells, objectives = shot.get("cells"), shot.get("objectives")
        most = MOST_CELLS if self.archive is None else self.archive.cells
        return (
            isinstance(cells, list)
            and isinstance(objectives, list)
            and len(cells) == len(objectives)
            and all(type(cell) is int and 0 <= cell < most for cell in cells)
            and all(map(is_number, objectives))
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """A row an iteration; lists stay lists."""
        import pandas

        return pandas.DataFrame(list(self.metrics))


def read_run(path: str | Path) -> Run:
    """Read a run's folder, or an archive's file by itself; archives stay on disk until used."""
    file = shipped(path) or Path(path)
    if file.is_file():
        return _read_archive(file)
    folder = RunFolder(Path(path))
    task, config, _ = folder.read()
    lines = list(read_metrics(folder.metrics)) if folder.metrics.is_file() else []
    place = folder.archive.parent
    archives = {
        name: load_archive(place / name, mapped=True) if (place / name).is_file() else None
        for name in (ARCHIVED, CORRECTED)
    }
    figures = place / "evaluation.json"
    evaluation = read_figures(figures) if figures.is_file() else None
    plain, corrected = archives[ARCHIVED], archives[CORRECTED]
    if corrected and plain and corrected.description.get("iteration") != plain.description.get("iteration"):
        corrected = evaluation = None  # the run has gone on since
    return Run(
        folder.path,
        task,
        _called(config),
        config.seed,
        lines,
        plain,
        corrected,
        evaluation,
        _settings(config),
    )


def _read_archive(file: Path) -> Run:
    """An archive by itself, as a run without a course."""
    archive = load_archive(file, mapped=True)
    told, objective = archive.description, archive.elites["objective"]
    line = {
        "iteration": told.get("iteration"),
        "qd_offset": archive.qd_offset,
        "qd_score": archive.qd_score,
        "coverage": archive.coverage,
        "best": metrics.best(objective),
        "mean": metrics.mean(objective),
    }
    judged = "corrected" in told
    return Run(
        file,
        told["task"]["name"],
        f"{told.get('algorithm')} ({file.stem})",
        told.get("seed") or 0,
        [line],
        archive,
        archive if judged else None,
        line if judged else None,
        {},
    )


def _settings(config: PPGAConfig) -> dict[str, Any]:
    """What makes a run what it is, besides its seed: by option."""
    told = dataclasses.asdict(config)
    for name in ("seed", "label", "keeping"):
        del told[name]
    parts = {name: part if isinstance(part, dict) else {"": part} for name, part in told.items()}
    return {
        ".".join(filter(None, (name, option))): value
        for name, part in parts.items()
        for option, value in part.items()
    }


def _called(config: PPGAConfig) -> str:
    """What a run was labelled; or the algorithm, and how it was changed."""
    if config.label:
        return config.label
    changed = [
        word
        for word, plain in ((config.search.strategy, "xnes"), (config.search.step, "walk"))
        if word != plain
    ]
    return "-".join([config.algorithm, *changed])


def read_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """Read what can be read; say what cannot."""
    runs, problems = [], []
    for path in paths:
        try:
            run = read_run(path)
        except InputError as error:
            problems.append(str(error))
            continue
        if run.metrics:
            runs.append(run)
        else:
            problems.append(f"{path} has no finished iteration yet.")
    return runs, problems
