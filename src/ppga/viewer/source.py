"""What is looked at: a run, growing or finished, or an archive by itself."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppga.archives import Archive, load_archive
from ppga.archives.files import ARCHIVED, CORRECTED, PLACES
from ppga.archives.shipped import shipped
from ppga.errors import told
from ppga.runs.folder import RunFolder, check_line, read_lines
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class Snapshot:
    """An archive as it was found.

    Attributes:
        archive: the elites; None while there are none to read.
        problem: what is wrong, if anything.
        version: changes when the file does.
    """

    archive: Archive | None
    problem: str | None
    version: str


class Source:
    """Reads a run's archives, again whenever their files change.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
    """

    def __init__(self, path: Path) -> None:
        self.path = shipped(path) or path
        self._lock = threading.Lock()
        self._read: dict[str, Snapshot] = {}

    @property
    def name(self) -> str:
        """What to call it."""
        return self.path.resolve().name

    @property
    def is_run(self) -> bool:
        """Whether there is more than an archive."""
        return RunFolder(self.path).config.is_file()

    def task(self) -> str | None:
        """Name of the task, if it can be read."""
        archive = self.snapshot().archive
        if archive is not None:
            return str(archive.description["task"]["name"])
        return RunFolder(self.path).read()[0] if self.is_run else None

    def exists(self) -> bool:
        """Whether there is anything to look at, or will be."""
        return self.is_run or self.file(ARCHIVED) is not None

    def file(self, which: str) -> Path | None:
        """The file of an archive, if it is there."""
        if self.path.is_file():
            return self.path if which == ARCHIVED else None
        for place in PLACES:
            file = self.path / place
            file = file if which == ARCHIVED else file.with_name("corrected.safetensors")
            if file.is_file():
                return file
        return None

    def snapshot(self, which: str = ARCHIVED) -> Snapshot:
        """The archive as it is now."""
        file = self.file(which)
        if file is None:
            missing = {
                ARCHIVED: "the run has not written an archive yet",
                CORRECTED: "ppga evaluate makes it",
            }
            return Snapshot(None, missing[which], "")
        with self._lock:
            try:
                now = file.stat()
            except OSError as error:  # gone in this moment
                return Snapshot(None, f"cannot read {file}: {error.strerror}.", "")
            version = f"{now.st_mtime_ns}-{now.st_ino}-{now.st_size}"
            known = self._read.get(which)
            if known is None or known.version != version:
                try:
                    known = Snapshot(load_archive(file, mapped=True), None, version)
                except Exception as error:  # whatever it is, the page can say it
                    known = Snapshot(None, told(error), version)
                self._read[which] = known
            return known

    def path_of_search(self) -> list[list[Any]]:
        """Measures of the first search policy, iteration by iteration, in legs: a restart begins another."""
        metrics = RunFolder(self.path).metrics
        legs: list[list[Any]] = [[]]
        if metrics.is_file():
            for line in read_lines(metrics):
                check_line(metrics, line)
                if line.get("search_measures"):
                    legs[-1].append(line["search_measures"][0])
                if line.get("restarted"):
                    legs.append([])
        return [leg for leg in legs if leg]


def cells_of(archive: Archive) -> dict[str, Any]:
    """What the page draws of an archive."""
    objective: NumpyArray = archive.elites["objective"]
    return {
        "kind": "grid" if archive.centroids is None else "cvt",
        "shape": list(archive.shape),
        "ranges": [list(bounds) for bounds in archive.ranges],
        "measures": list(archive.measure_names),
        "centroids": None if archive.centroids is None else archive.centroids.tolist(),
        "index": archive.elites["index"].tolist(),
        "objective": [round(float(value), 3) for value in objective],
        "coverage": archive.coverage,
        "qd_score": archive.qd_score,
        "qd_offset": archive.qd_offset,
        "best": float(objective.max()) if len(archive) else None,
        "mean": float(objective.mean()) if len(archive) else None,
    }
