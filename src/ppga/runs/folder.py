"""A run's folder: settings, metrics, checkpoints and the archive.

- config.json: task, settings, budget, versions, machine, commit
- metrics.jsonl: one line for each iteration
- cells.jsonl: objectives of all occupied cells, every few iterations
- checkpoints/: the last three states
- archive/: archive.safetensors, the elites so far
- heatmap.png: an image of the archive
- tensorboard/: event files
"""

import json
import os
import reprlib
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ppga import machine
from ppga.algorithms.base import AlgorithmConfig
from ppga.algorithms.registry import config_from_json, config_to_json
from ppga.archives.files import ARCHIVE_FILE
from ppga.config import Budget, from_json, to_json
from ppga.errors import InputError
from ppga.storage import (
    is_number,
    lock,
    make_folder,
    parse_json,
    read_json,
    remove_parts,
    replacing,
    sync,
    warn_once,
    write_json,
)

FORMAT, FORMAT_VERSION = "ppga run", 2
COUNTERS = ("evaluations", "env_steps", "wall_time", "qd_offset", "elites")
"""Entries of every line of metrics that are numbers."""
ARCHIVE_METRICS = ("qd_score", "coverage", "best", "mean")
"""Entries of every line of metrics that are numbers or null."""
EXACT = ("cpu", "cores", "usable_cores", "devices", "commit")
"""Besides the versions, what must be the same for a resumed run to be bit-exact: the order of XLA's sums
depends on the cores, and the number of threads that share episodes on the usable cores.
"""


@dataclass(frozen=True)
class RunFolder:
    """Paths and small files of a run.

    Attributes:
        path: the folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """Settings of the run."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """Metrics, one line for each iteration."""
        return self.path / "metrics.jsonl"

    @property
    def cells(self) -> Path:
        """Snapshots of the occupied cells."""
        return self.path / "cells.jsonl"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def archive(self) -> Path:
        """File of the archive."""
        return self.path / "archive" / ARCHIVE_FILE

    @property
    def heatmap(self) -> Path:
        """Image of the archive."""
        return self.path / "heatmap.png"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard's event files."""
        return self.path / "tensorboard"

    def check_free(self) -> None:
        """Raise an InputError if the folder is not empty, or cannot be created."""
        if self.config.exists():
            raise InputError(
                f"{self.path} already holds a run. To continue it: ppga train --resume {self.path}. To start "
                "another, choose another --output."
            )
        # files that begin with a dot are left by a run that was killed at its start
        if self.path.is_dir() and any(not file.name.startswith(".") for file in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty; choose another --output.")
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; choose another --output.")
        parent = next(parent for parent in self.path.absolute().parents if parent.exists())
        if not parent.is_dir():
            raise InputError(f"cannot create {self.path}: {parent} is a file.")

    def create(self, task: str, config: AlgorithmConfig, budget: Budget, problem: dict[str, Any]) -> None:
        """Create the folder of a new run.

        Args:
            task: name of the task.
            config: settings.
            budget: budget of the run.
            problem: the problem's description of itself.
        """
        write_json(self.config, _content(task, config, budget, problem))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against other processes, and remove the remains of interrupted writes.

        The operating system releases the lock when this process ends. A warning tells of a file system
        without locks.
        """
        make_folder(self.path)
        sync(self.path.absolute().parent)  # a folder that the user created may not be on the disk yet
        with (self.path / ".lock").open("a") as file:
            try:
                if not lock(file):
                    raise InputError(f"{self.path} is being trained by another process.")
            except OSError as error:
                warn_once(
                    "lock",
                    f"files cannot be locked ({self.path}: {error.strerror}): nothing keeps a second process "
                    "from training in this folder, and *.part files of interrupted writes are not removed.",
                )
            else:
                for folder in (self.path, self.checkpoints, self.archive.parent):
                    remove_parts(folder)
            yield

    def content(self) -> dict[str, Any]:
        """Content of config.json, or an InputError; settings and budget are not checked."""
        if not self.config.is_file():
            raise InputError(f"{self.path} is not a run's folder: it has no config.json.")
        content = read_json(self.config)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{self.config} does not describe a run.")
        if content.get("version") == 1:
            raise InputError(f"{self.path} was written by an earlier version of ppga and cannot be read.")
        if content.get("version") != FORMAT_VERSION:
            raise InputError(
                f"{self.path} was written by another version of ppga (run format {content.get('version')!r}, "
                f"this one reads {FORMAT_VERSION})."
            )
        for name in ("task", "config", "budget"):
            if name not in content:
                raise InputError(f"{self.config} has no {name!r}.")
        recorded, problem = content.get("machine", {}), content.get("problem") or {}
        for name, valid in {
            "task": isinstance(content["task"], str),
            "machine": isinstance(recorded, dict) and isinstance(recorded.get("versions", {}), dict),
            "problem": isinstance(problem, dict)
            and all(isinstance(part, dict | None) for part in problem.values()),
            "commit": isinstance(content.get("commit"), str | None),
            "begun": isinstance(content.get("begun"), str | None),
        }.items():
            if not valid:
                raise InputError(f"{self.config}: {name} cannot be {reprlib.repr(content[name])}.")
        return content

    def read(self) -> tuple[str, AlgorithmConfig, Budget]:
        """Task, settings and budget of the run."""
        content = self.content()
        budget: Budget = from_json(Budget, content["budget"])
        budget.check()
        return content["task"], config_from_json(content["config"]), budget

    def change_budget(self, budget: Budget) -> None:
        """Write a new budget to config.json."""
        write_json(self.config, self.content() | {"budget": to_json(budget)})

    def begun(self) -> str:
        """Time at which the run was started."""
        return str(self.content().get("begun"))

    def check_problem(self, problem: dict[str, Any]) -> None:
        """Raise an InputError if a problem's description differs from that of the run's problem.

        Args:
            problem: the problem's description of itself.
        """
        then, now = self.content().get("problem") or {}, json.loads(json.dumps(problem))
        empty: dict[str, Any] = {}
        changed = [
            f"{part}.{name} (was {value!r}, now {(now.get(part) or empty).get(name)!r})"
            for part in then
            for name, value in (then[part] or empty).items()
            if (now.get(part) or empty).get(name) != value
        ]
        if changed or {part: bool(then[part]) for part in then} != {part: bool(now[part]) for part in now}:
            raise InputError(
                f"{self.path} was started with another task: {', '.join(changed) or then}. Name a task of "
                "your own again: ppga train FILE.py:NAME --resume RUN, or ppga.resume(run, task=...)."
            )

    def machine_differences(self) -> list[str]:
        """Differences from the machine that the run was started on that make a resumed run inexact."""
        content = self.content()
        then, now = content.get("machine", {}), machine.describe()
        older = {"usable_cores": then.get("cores")}  # recorded without a CPU quota
        then, now = older | then | {"commit": content.get("commit")}, now | {"commit": _commit()}
        changes = [
            f"{name}: {then.get(name)} then, {now[name]} now" for name in EXACT if then.get(name) != now[name]
        ]
        old, new = then.get("versions", {}), now["versions"]
        return changes + [
            f"{name}: {old.get(name)} then, {new[name]} now" for name in new if old.get(name) != new[name]
        ]

    def cut_after(self, iteration: int, report: Callable[[str], None]) -> None:
        """Delete the lines of metrics and cells after an iteration, and damaged lines.

        Args:
            iteration: iteration of the checkpoint that the run is resumed from.
            report: called with a message if earlier lines are damaged or missing.
        """
        _, config, _ = self.read()
        for file, every in ((self.metrics, 1), (self.cells, config.log.snapshot_iterations)):
            count, expected = _cut(file, iteration) if file.exists() else 0, iteration // every
            if count < expected:
                report(
                    f"{expected - count} of the {expected} lines of {file} until iteration {iteration} are "
                    "damaged or missing; the run continues without them."
                )


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Contents of a .jsonl file's lines, read one at a time; damaged lines are left out.

    After a power failure the file may end with a partial line, zeros, or any other bytes.
    """
    for _, _, content in _intact_lines(file):
        yield content


def _intact_lines(file: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Offset of the end, bytes, and content of each line of a .jsonl file that is not damaged."""
    end = 0
    with file.open("rb") as lines:
        for line in lines:
            end += len(line)
            try:
                content = parse_json(line)
            except ValueError:
                continue
            complete = line.endswith(b"\n") and isinstance(content, dict)
            if complete and type(content.get("iteration")) is int:
                yield end, line, content


def _cut(file: Path, iteration: int) -> int:
    """Delete a .jsonl file's lines after an iteration, and damaged lines; return the number of the rest."""
    count = size = cut = 0
    for end, line, content in _intact_lines(file):
        if content["iteration"] > iteration:
            break
        count, size, cut = count + 1, size + len(line), end
    if size < cut:  # damaged lines in between
        with replacing(file) as aside, aside.open("wb") as repaired:
            repaired.writelines(line for end, line, _ in _intact_lines(file) if end <= cut)
    elif cut < file.stat().st_size:
        os.truncate(file, cut)
        sync(file)
    return count


def read_metrics(file: Path) -> Iterator[dict[str, Any]]:
    """Intact lines of a run's metrics; an InputError at the first that a run cannot have written."""
    for line in read_lines(file):
        missing = [name for name in (*COUNTERS, *ARCHIVE_METRICS, "times") if name not in line]
        if missing:
            raise InputError(
                f"{file}: the line of iteration {line['iteration']} has no {', '.join(missing)}."
            )
        check_line(file, line)
        yield line


def check_line(file: Path, line: Mapping[str, Any]) -> None:
    """Raise an InputError for an entry of a line of metrics that a run cannot have written.

    Args:
        file: named in the message.
        line: content of the line.
    """
    checks: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(COUNTERS, is_number),
        **dict.fromkeys(
            (*ARCHIVE_METRICS, "survivor_coverage", "restarted", "strategy_scale"), _is_number_or_null
        ),
        **dict.fromkeys(("search_measures", "strategy_mean"), _is_row),
        "times": lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
    }
    for name, is_valid in checks.items():
        if name in line and not is_valid(line[name]):
            raise InputError(
                f"{file}: {name} of iteration {line['iteration']} cannot be {reprlib.repr(line[name])}."
            )


def _is_number_or_null(value: Any) -> bool:
    return value is None or is_number(value)


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_number_or_null, value))


def _content(task: str, config: AlgorithmConfig, budget: Budget, problem: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "task": task,
        "config": config_to_json(config),
        "budget": to_json(budget),
        "problem": problem,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Commit of the source that this package runs from; None if it is installed."""
    file = Path(__file__)
    # an installed package may lie inside of another repository
    for words in (
        ("ls-files", "--error-unmatch", file.name),
        ("describe", "--always", "--dirty", "--abbrev=12"),
    ):
        git = ["git", "-C", str(file.parent), *words]
        try:
            output = subprocess.run(git, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        if output.returncode:
            return None
    return output.stdout.strip() or None
