"""Runs as data: the metrics and archives in their folders."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppga.algorithms.base import AlgorithmConfig
from ppga.algorithms.registry import config_to_json
from ppga.analysis import metrics
from ppga.analysis.corrected import read_evaluation
from ppga.archives import Archive, load_archive
from ppga.archives.files import ARCHIVE_FILE, CORRECTED_FILE, EVALUATION_FILE
from ppga.archives.included import find_included
from ppga.errors import InputError
from ppga.limits import MOST_CELLS
from ppga.runs.folder import RunFolder, read_lines, read_metrics
from ppga.storage import is_number

if TYPE_CHECKING:
    import pandas

PUBLISHED = {"strategy.kind": "xnes", "step": "walk"}
"""Settings of PPGA as published; other values of these are part of a run's name."""


@dataclass(frozen=True)
class Run:
    """The content of a run's folder, or of an archive's file.

    Attributes:
        path: the folder or file.
        task: name of the task.
        algorithm: label of the run; its algorithm, and how that was changed, by default.
        seed: random seed.
        metrics: one dict for each iteration.
        archive: the archive as trained; None if none was written yet.
        corrected: the corrected archive; None unless `ppga evaluate` has written one of the same iteration.
        evaluation: metrics of the corrected archive.
        settings: dotted name -> value of each setting that runs of one group share.
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
        """Name of the folder, or of the file without its ending."""
        return self.path.stem if self.archive_only else self.path.name

    @property
    def figure_name(self) -> str:
        """Beginning of the names of its figures' files; it includes the task, as in a study of several."""
        return self.name if self.name.startswith(self.task) else f"{self.task}-{self.name}"

    @property
    def archive_only(self) -> bool:
        """Whether it is an archive's file: its metrics are one line, those of the archive."""
        return self.path.is_file()

    @property
    def group(self) -> tuple[str, str]:
        """Task and algorithm; runs of one group should differ in their seed only."""
        return self.task, self.algorithm

    def snapshots(self) -> Iterator[dict[str, Any]]:
        """Snapshots of the occupied cells: iteration, cells and objectives of each.

        They are read one at a time, because the file of a long run may be larger than the memory.
        """
        file = RunFolder(self.path).cells
        for snapshot in read_lines(file) if file.is_file() else ():
            if not self._is_snapshot(snapshot):
                raise InputError(f"{file}: the line of iteration {snapshot['iteration']} is not a snapshot.")
            yield snapshot

    def _is_snapshot(self, snapshot: Mapping[str, Any]) -> bool:
        cells, objectives = snapshot.get("cells"), snapshot.get("objectives")
        most = MOST_CELLS if self.archive is None else self.archive.cells
        return (
            isinstance(cells, list)
            and isinstance(objectives, list)
            and len(cells) == len(objectives)
            and all(type(cell) is int and 0 <= cell < most for cell in cells)
            and all(map(is_number, objectives))
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """The metrics as a data frame with one row for each iteration; lists stay lists."""
        import pandas

        return pandas.DataFrame(list(self.metrics))


def read_run(path: str | Path) -> Run:
    """Read a run's folder or an archive's file; archives stay on disk until they are used.

    Args:
        path: a run's folder, an archive's file, or pretrained:NAME.
    """
    file = find_included(path) or Path(path)
    if file.is_file():
        return _read_archive(file)
    folder = RunFolder(Path(path))
    task, config, _ = folder.read()
    lines = list(read_metrics(folder.metrics)) if folder.metrics.is_file() else []
    parent = folder.archive.parent
    archives = {
        name: load_archive(parent / name, mapped=True) if (parent / name).is_file() else None
        for name in (ARCHIVE_FILE, CORRECTED_FILE)
    }
    file = parent / EVALUATION_FILE
    evaluation = read_evaluation(file) if file.is_file() else None
    archive, corrected = archives[ARCHIVE_FILE], archives[CORRECTED_FILE]
    iterations = {each.description.get("iteration") for each in (archive, corrected) if each}
    if len(iterations) > 1:  # the run has continued since the evaluation
        corrected = evaluation = None
    return Run(
        folder.path,
        task,
        _label(config),
        config.seed,
        lines,
        archive,
        corrected,
        evaluation,
        _settings(config),
    )


def _read_archive(file: Path) -> Run:
    """An archive's file as a run with one line of metrics."""
    archive = load_archive(file, mapped=True)
    description, objective = archive.description, archive.elites["objective"]
    line = {
        "iteration": description.get("iteration"),
        "qd_offset": archive.qd_offset,
        "qd_score": archive.qd_score,
        "coverage": archive.coverage,
        "survivor_coverage": archive.survivor_coverage,
        "best": metrics.best(objective),
        "mean": metrics.mean(objective),
    }
    corrected = "corrected" in description
    return Run(
        file,
        description["task"]["name"],
        f"{description.get('algorithm')} ({file.stem})",
        description.get("seed") or 0,
        [line],
        archive,
        archive if corrected else None,
        line if corrected else None,
        {},
    )


def _settings(config: AlgorithmConfig) -> dict[str, Any]:
    """Dotted name -> value of the settings that runs of one group share: not those of seed, label and log."""
    settings = config_to_json(config)
    for name in ("seed", "label", "log"):
        del settings[name]
    return dict(_flatten(settings))


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested settings."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _label(config: AlgorithmConfig) -> str:
    """The label of a run; by default its algorithm, and how that was changed."""
    if config.label:
        return config.label
    settings = _settings(config)
    changed = [settings[name] for name, value in PUBLISHED.items() if settings.get(name, value) != value]
    return "-".join([config.algorithm, *changed])


def read_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """Read runs.

    Returns:
        The runs that can be read and have finished an iteration, and a message for every other run.
    """
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
