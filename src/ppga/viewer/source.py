"""Sources of the viewer: a run, in training or finished, or the file of an archive."""

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppga.archives import Archive, load_archive
from ppga.archives.files import ARCHIVED, CORRECTED, CORRECTED_FILE, PLACES
from ppga.archives.included import find_included
from ppga.errors import error_text
from ppga.runs.folder import RunFolder, check_line, read_lines
from ppga.storage import NumpyArray


@dataclass(frozen=True)
class Snapshot:
    """The content of an archive's file at one time.

    Attributes:
        archive: the archive; None if it cannot be read.
        problem: why it cannot be read; None if it can.
        version: identifies the version of the file; empty if there is no file.
    """

    archive: Archive | None
    problem: str | None
    version: str


class Source:
    """Reads a run's archives, and reads them again when their files change.

    Args:
        path: a run's folder, an archive's folder, an archive's file, or pretrained:NAME.
    """

    def __init__(self, path: Path) -> None:
        self.path = find_included(path) or path
        self._lock = threading.Lock()
        self._read: dict[str, Snapshot] = {}

    @property
    def name(self) -> str:
        """Name of the folder or file."""
        return self.path.resolve().name

    @property
    def is_run(self) -> bool:
        """Whether it is a run's folder."""
        return RunFolder(self.path).config.is_file()

    def task(self) -> str | None:
        """Name of the task; None if it is not known yet."""
        archive = self.snapshot().archive
        if archive is not None:
            return str(archive.description["task"]["name"])
        return RunFolder(self.path).read()[0] if self.is_run else None

    def exists(self) -> bool:
        """Whether there is an archive, or a run that will write one."""
        return self.is_run or self.file(ARCHIVED) is not None

    def file(self, which: str) -> Path | None:
        """The file of an archive; None if it does not exist.

        Args:
            which: archived or corrected.
        """
        if self.path.is_file():
            return self.path if which == ARCHIVED else None
        for place in PLACES:
            file = self.path / place
            file = file if which == ARCHIVED else file.with_name(CORRECTED_FILE)
            if file.is_file():
                return file
        return None

    def snapshot(self, which: str = ARCHIVED) -> Snapshot:
        """The current content of an archive's file.

        Args:
            which: archived or corrected.
        """
        file = self.file(which)
        if file is None:
            missing = {
                ARCHIVED: "the run has not written an archive yet",
                CORRECTED: "there is no corrected archive yet; ppga evaluate writes it",
            }
            return Snapshot(None, missing[which], "")
        with self._lock:
            try:
                now = file.stat()
            except OSError as error:  # it was removed in the meantime
                return Snapshot(None, f"cannot read {file}: {error.strerror}.", "")
            version = f"{now.st_mtime_ns}-{now.st_ino}-{now.st_size}"
            known = self._read.get(which)
            if known is None or known.version != version:
                try:
                    known = Snapshot(load_archive(file, mapped=True), None, version)
                except Exception as error:  # the page shows every error
                    known = Snapshot(None, error_text(error), version)
                self._read[which] = known
            return known

    def trajectory(self) -> list[list[Any]]:
        """Measures (k,) of the search policy after each iteration, in legs between restarts."""
        metrics = RunFolder(self.path).metrics
        legs: list[list[Any]] = [[]]
        if metrics.is_file():
            for line in read_lines(metrics):
                check_line(metrics, line)
                if line.get("search_measures"):
                    legs[-1].append(line["search_measures"])
                if line.get("restarted"):
                    legs.append([])
        return [leg for leg in legs if leg]


def cells_of(archive: Archive) -> dict[str, Any]:
    """Cells and metrics of an archive for the page, as JSON values."""
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
