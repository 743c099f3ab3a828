"""A run's folder: what it was told, what it measured, where to go on from, and what it found.

- config.json: task, settings, budget, versions, machine, commit
- metrics.jsonl: a line an iteration
- cells.jsonl: objectives of all filled cells, every few iterations
- checkpoints/: the last three states
- archive/: archive.safetensors, the elites so far
- heatmap.png: a picture of them
- tensorboard/: for those who like it
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
from ppga.errors import InputError
from ppga.runs.config import Budget, PPGAConfig, from_json, to_json
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

FORMAT, FORMAT_VERSION = "ppga run", 1
COUNTED = ("evaluations", "env_steps", "wall_time", "qd_offset", "elites")
"""What every line of the metrics has, as a number."""
FIGURES = ("qd_score", "coverage", "best", "mean")
"""What every line has, as a number or null."""
EXACT = ("cpu", "cores", "usable_cores", "devices", "commit")
"""What must be the same for a resumed run to be bit-exact, besides the versions: XLA splits sums by the
cores, and episodes are shared among as many threads as there are usable cores.
"""


@dataclass(frozen=True)
class RunFolder:
    """Paths and small files of a run."""

    path: Path

    @property
    def config(self) -> Path:
        """What the run was told."""
        return self.path / "config.json"

    @property
    def metrics(self) -> Path:
        """A line an iteration."""
        return self.path / "metrics.jsonl"

    @property
    def cells(self) -> Path:
        """Snapshots of the cells."""
        return self.path / "cells.jsonl"

    @property
    def checkpoints(self) -> Path:
        """States to go on from."""
        return self.path / "checkpoints"

    @property
    def archive(self) -> Path:
        """The elites."""
        return self.path / "archive" / "archive.safetensors"

    @property
    def heatmap(self) -> Path:
        """A picture of them."""
        return self.path / "heatmap.png"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard's files."""
        return self.path / "tensorboard"

    def check_free(self) -> None:
        """Raise an InputError if something is there already, or nothing can be."""
        if self.config.exists():
            raise InputError(
                f"{self.path} already holds a run. To continue it: ppga train --resume {self.path}. To start "
                "another, choose another --output."
            )
        # what begins with a dot is ours, of a run that was killed before it had begun
        if self.path.is_dir() and any(not file.name.startswith(".") for file in self.path.iterdir()):
            raise InputError(f"{self.path} is not empty; choose another --output.")
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file; choose another --output.")
        parent = next(parent for parent in self.path.absolute().parents if parent.exists())
        if not parent.is_dir():
            raise InputError(f"cannot make {self.path}: {parent} is a file.")

    def create(self, task: str, config: PPGAConfig, budget: Budget, problem: dict[str, Any]) -> None:
        """Begin a run's folder; `problem` is what the task says of itself."""
        write_json(self.config, _content(task, config, budget, problem))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes out, and remove what interrupted writes have left.

        The system takes the lock away when this process dies. Where there are no locks, a warning says so.
        """
        make_folder(self.path)
        sync(self.path.absolute().parent)  # the entry of a folder made by hand may not be on the disk yet
        with (self.path / ".lock").open("a") as file:
            try:
                if not lock(file):
                    raise InputError(f"{self.path} is being trained by another process.")
            except OSError as error:
                warn_once(
                    "lock",
                    f"files cannot be locked ({self.path}: {error.strerror}): nothing keeps a second process "
                    "from training in this folder, and *.part files that interrupted writes leave are not "
                    "removed.",
                )
            else:
                for folder in (self.path, self.checkpoints, self.archive.parent):
                    remove_parts(folder)
            yield

    def content(self) -> dict[str, Any]:
        """What config.json says, or an InputError; settings and budget are not looked at yet."""
        if not self.config.is_file():
            raise InputError(f"{self.path} is not a run's folder: it has no config.json.")
        content = read_json(self.config)
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise InputError(f"{self.config} does not describe a run.")
        if content.get("version") != FORMAT_VERSION:
            raise InputError(
                f"{self.path} was written by another version of ppga (run format {content.get('version')!r}, "
                f"this one reads {FORMAT_VERSION})."
            )
        for name in ("task", "config", "budget"):
            if name not in content:
                raise InputError(f"{self.config} has no {name!r}.")
        then, problem = content.get("machine", {}), content.get("problem") or {}
        for name, right in {
            "task": isinstance(content["task"], str),
            "machine": isinstance(then, dict) and isinstance(then.get("versions", {}), dict),
            "problem": isinstance(problem, dict)
            and all(isinstance(part, dict | None) for part in problem.values()),
            "commit": isinstance(content.get("commit"), str | None),
            "begun": isinstance(content.get("begun"), str | None),
        }.items():
            if not right:
                raise InputError(f"{self.config}: {name} cannot be {reprlib.repr(content[name])}.")
        return content

    def read(self) -> tuple[str, PPGAConfig, Budget]:
        """Task, settings and budget the run was told."""
        content = self.content()
        budget: Budget = from_json(Budget, content["budget"])
        budget.check()
        return content["task"], from_json(PPGAConfig, content["config"]), budget

    def change_budget(self, budget: Budget) -> None:
        """Write down a new budget."""
        write_json(self.config, self.content() | {"budget": to_json(budget)})

    def begun(self) -> str:
        """When the run was begun."""
        return str(self.content().get("begun"))

    def check_problem(self, problem: dict[str, Any]) -> None:
        """Raise an InputError if the run was begun with a task that described itself otherwise."""
        then, now = self.content().get("problem") or {}, json.loads(json.dumps(problem))
        nothing: dict[str, Any] = {}
        changed = [
            f"{part}.{name} (was {value!r}, now {(now.get(part) or nothing).get(name)!r})"
            for part in then
            for name, value in (then[part] or nothing).items()  # older runs say less
            if (now.get(part) or nothing).get(name) != value
        ]
        if changed or {part: bool(then[part]) for part in then} != {part: bool(now[part]) for part in now}:
            raise InputError(
                f"{self.path} was begun with another task: {', '.join(changed) or then}. A task of your own "
                "is given again: ppga train FILE.py:NAME --resume RUN, or ppga.resume(run, task=...)."
            )

    def strange_to(self) -> list[str]:
        """How this machine differs from the one the run was begun on, where it matters for exactness."""
        content = self.content()
        then, now = content.get("machine", {}), machine.describe()
        older = {"usable_cores": then.get("cores")}  # versions that recorded only `cores` ignored CPU quotas
        then, now = older | then | {"commit": content.get("commit")}, now | {"commit": _commit()}
        changes = [
            f"{name}: {then.get(name)} then, {now[name]} now" for name in EXACT if then.get(name) != now[name]
        ]
        old, new = then.get("versions", {}), now["versions"]
        return changes + [
            f"{name}: {old.get(name)} then, {new[name]} now" for name in new if old.get(name) != new[name]
        ]

    def cut_after(self, iteration: int, report: Callable[[str], None]) -> None:
        """Drop the logs' lines after an iteration, and damaged ones.

        Args:
            iteration: of the checkpoint that the run is resumed from.
            report: called with a message if lines until then are damaged or missing.
        """
        _, config, _ = self.read()
        for file, every in ((self.metrics, 1), (self.cells, config.keeping.snapshot_iterations)):
            count, expected = _cut(file, iteration) if file.exists() else 0, iteration // every
            if count < expected:
                report(
                    f"{expected - count} of the {expected} lines of {file} until iteration {iteration} are "
                    "damaged or missing; the run continues without them."
                )


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """Contents of a .jsonl file's lines, read one at a time; damaged lines are left out.

    After a power failure there may be a line that was cut short, zeros, or anything else.
    """
    for _, _, content in _intact_lines(file):
        yield content


def _intact_lines(file: Path) -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Lines of a .jsonl file that are not damaged: offset of the end, bytes, and content of each."""
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
    """Drop a .jsonl file's lines after an iteration, and damaged ones; return how many are left."""
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
    """Whole lines of a run's metrics, or an InputError at the first that is not as a run writes it."""
    for line in read_lines(file):
        missing = [name for name in (*COUNTED, *FIGURES, "times") if name not in line]
        if missing:
            raise InputError(
                f"{file}: the line of iteration {line['iteration']} has no {', '.join(missing)}."
            )
        check_line(file, line)
        yield line


def check_line(file: Path, line: Mapping[str, Any]) -> None:
    """Raise an InputError for an entry of a line of metrics that is not of the kind that a run writes."""
    rows = ("search_measures", "xnes_mean")
    checks: dict[str, Callable[[Any], bool]] = {
        **dict.fromkeys(COUNTED, is_number),
        **dict.fromkeys((*FIGURES, "restarted"), _may_be_number),
        "times": lambda value: isinstance(value, dict) and all(map(is_number, value.values())),
        "xnes_scale": lambda value: isinstance(value, list) and all(map(_may_be_number, value)),
        **dict.fromkeys(rows, lambda value: isinstance(value, list) and all(map(_is_row, value))),
    }
    for name, right in checks.items():
        if name in line and not right(line[name]):
            raise InputError(
                f"{file}: {name} of iteration {line['iteration']} cannot be {reprlib.repr(line[name])}."
            )


def _may_be_number(value: Any) -> bool:
    return value is None or is_number(value)


def _is_row(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_may_be_number, value))


def _content(task: str, config: PPGAConfig, budget: Budget, problem: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "task": task,
        "config": to_json(config),
        "budget": to_json(budget),
        "problem": problem,
        "begun": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Commit of the source this package runs from; None for an installed one."""
    file = Path(__file__)
    # around an installed one there may be a repository of somebody's own
    for words in (
        ("ls-files", "--error-unmatch", file.name),
        ("describe", "--always", "--dirty", "--abbrev=12"),
    ):
        git = ["git", "-C", str(file.parent), *words]
        try:
            told = subprocess.run(git, capture_output=True, text=True, check=False, timeout=10)
        except (OSError, subprocess.SubprocessError):
            return None
        if told.returncode:
            return None
    return told.stdout.strip() or None
