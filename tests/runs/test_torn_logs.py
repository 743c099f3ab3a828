"""Logs of a run that a power failure has damaged, and logs that are larger than memory."""

import json
import os
import shutil
import threading
import tracemalloc
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ppga
from ppga.analysis import plots
from ppga.analysis.runs import read_run
from ppga.archives import load_archive
from ppga.runs.folder import RunFolder, read_lines
from ppga.studies.progress import seconds_used
from ppga.viewer.server import PageServer

from helpers.commands import command
from helpers.runs import SPHERE, same_runs

CHECKPOINT, LAST, END = 4, 6, 8
"""Iterations: of the newest checkpoint, of the last lines of the logs, and of the end of the resumed run."""
LOGS = ("metrics.jsonl", "cells.jsonl")
TAILS: dict[str, Callable[[list[bytes]], bytes]] = {
    "zeros": lambda _: bytes(5000),
    "zeros before an intact line": lambda lines: bytes(5000) + b"\n" + lines[-1],
    "zeros in a line": lambda lines: lines[-2][:40] + bytes(60) + lines[-2][100:] + lines[-1],
    "not UTF-8": lambda lines: b"\xff\xfe\xfd\n" + lines[-1],
    "not UTF-8 in a name": lambda lines: b'{"iteration": 5, "\xff": 1}\n' + lines[-1],
    "half a line": lambda lines: lines[-2] + lines[-1][:30],
    "half a line before an intact one": lambda lines: lines[-2][:30] + lines[-1] + lines[-1],
    "no JSON": lambda lines: b"{'iteration': 5}\n" + lines[-1],
    "JSON of something else": lambda _: b'[5]\n{"a": 1}\n{"iteration": "5"}\nnull\n',
    "deeply nested JSON": lambda lines: b"[" * 100_000 + b"\n" + lines[-1],
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    ppga.train("sphere", SPHERE, budget=ppga.Budget(iterations=END), output=run)
    return run


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that ended two iterations after its newest checkpoint."""
    run = tmp_path_factory.mktemp("interrupted") / "run"
    ppga.train("sphere", SPHERE, budget=ppga.Budget(iterations=LAST), output=run)
    for file in (run / "checkpoints").iterdir():
        if int(file.stem) > CHECKPOINT:
            file.unlink()
    return run


@pytest.fixture
def run(interrupted: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def tear(run: Path, tail: str, names: tuple[str, ...] = LOGS) -> None:
    """Damage the lines after a run's newest checkpoint."""
    for name in names:
        lines = (run / name).read_bytes().splitlines(keepends=True)
        assert len(lines) == LAST
        (run / name).write_bytes(b"".join(lines[:CHECKPOINT]) + TAILS[tail](lines))


# Resuming.


@pytest.mark.parametrize("tail", TAILS)
def test_torn_lines_after_the_checkpoint_are_dropped(undisturbed: Path, run: Path, tail: str) -> None:
    tear(run, tail)
    done = command("train", "--resume", str(run), "--iterations", str(END), "--quiet")
    assert done.returncode == 0, done.stderr
    assert "damaged" not in done.stdout + done.stderr, "nothing is lost"
    same_runs(undisturbed, run)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("number", [1, CHECKPOINT])
def test_damage_before_the_checkpoint_is_reported_and_costs_that_line_only(
    undisturbed: Path, run: Path, name: str, number: int
) -> None:
    lines = (run / name).read_bytes().splitlines(keepends=True)
    lines[number - 1] = bytes(len(lines[number - 1]))
    (run / name).write_bytes(b"".join(lines))
    done = command("train", "--resume", str(run), "--iterations", str(END), "--quiet")
    assert done.returncode == 0, done.stderr
    # zeros without an end join the line after them, which is beyond the checkpoint or lost with them
    lost = 2 if number < CHECKPOINT else 1
    warning = f"warning: {lost} of the {CHECKPOINT} lines of {run / name} until iteration {CHECKPOINT} are"
    assert warning in done.stdout
    kept = [json.loads(line) for line in (run / name).read_text().splitlines()]
    expected = [iteration for iteration in range(1, END + 1) if not number <= iteration < number + lost]
    assert [line["iteration"] for line in kept] == expected
    for field, values in load_archive(undisturbed).elites.items():
        np.testing.assert_array_equal(load_archive(run).elites[field], values)


def test_a_lost_log_is_reported(run: Path) -> None:
    (run / "cells.jsonl").unlink()
    done = command("train", "--resume", str(run), "--iterations", str(END), "--quiet")
    assert done.returncode == 0, done.stderr
    assert f"warning: 4 of the 4 lines of {run / 'cells.jsonl'}" in done.stdout
    assert [snapshot["iteration"] for snapshot in read_run(run).snapshots()] == [5, 6, 7, 8]


# Reading a run that was not resumed.


@pytest.mark.parametrize("tail", TAILS)
def test_intact_lines_of_a_torn_log_are_read(run: Path, tail: str) -> None:
    tear(run, tail)
    iterations = [line["iteration"] for line in read_lines(run / "metrics.jsonl")]
    assert iterations[:CHECKPOINT] == [1, 2, 3, 4]
    assert set(iterations[CHECKPOINT:]) <= {5, 6}
    assert [snapshot["iteration"] for snapshot in read_run(run).snapshots()] == iterations


def test_every_command_reads_a_torn_run(run: Path, tmp_path: Path) -> None:
    for name in LOGS:
        lines = (run / name).read_bytes().splitlines(keepends=True)
        lines[1] = b"\0\n"
        (run / name).write_bytes(b"".join(lines + [TAILS[tail]([b"{}\n"] * LAST) for tail in TAILS]))
    for words in (
        ("report", str(run), "--output", str(tmp_path / "report")),
        ("compare", str(run), str(run), "--output", str(tmp_path / "difference.png")),
        ("export", str(run), "--format", "archive", "--output", str(tmp_path / "one.safetensors")),
    ):
        done = command(*words)
        assert done.returncode == 0, (words, done.stderr)
    assert (tmp_path / "report" / "figures" / "sphere-run-growth.gif").exists()
    note = "run: 1 of the 6 lines of metrics.jsonl are damaged or missing"
    assert note in (tmp_path / "report" / "report.html").read_text()
    metrics = list(read_lines(run / "metrics.jsonl"))
    assert seconds_used(run) == metrics[-1]["wall_time"]
    server = PageServer(run, "127.0.0.1", 8990)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with urllib.request.urlopen(f"{server.address.rstrip('/')}/api/trajectory", timeout=60) as answer:
            assert sum(map(len, json.loads(answer.read()))) == len(metrics)
    finally:
        server.close()


# Long logs.


def test_a_long_log_is_read_line_by_line(run: Path, tmp_path: Path) -> None:
    """By a resume and by the animation of a report: logs of long runs may be larger than memory."""
    (line,) = (json.loads(line) for line in (run / "cells.jsonl").read_text().splitlines()[-1:])
    cells = {"cells": line["cells"] * 20, "objectives": line["objectives"] * 20}

    def write(lines: int) -> os.stat_result:
        with (run / "cells.jsonl").open("w") as file:
            for iteration in range(1, lines + 1):
                file.write(json.dumps({"iteration": iteration, **cells}) + "\n")
        return (run / "cells.jsonl").stat()

    def memory(work: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            work()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    def animate() -> None:
        plots.growth(read_run(run), tmp_path / "growth.gif", most=1)

    write(2)
    animate()
    short = memory(animate)
    before = write(250)
    assert before.st_size > 2e6
    assert memory(animate) - short < before.st_size / 10
    messages: list[str] = []
    assert memory(lambda: RunFolder(run).cut_after(LAST, messages.append)) < before.st_size / 10
    assert not messages
    after = (run / "cells.jsonl").stat()
    assert after.st_ino == before.st_ino, "truncated, not written again"
    assert after.st_size < before.st_size
    assert [snapshot["iteration"] for snapshot in read_run(run).snapshots()] == [1, 2, 3, 4, 5, 6]
