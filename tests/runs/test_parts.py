"""Temporary files of interrupted writes (*.part): they are removed, and no other files."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import ppga
from ppga.runs.folder import RunFolder
from ppga.storage import replacing

from helpers.commands import Done, command
from helpers.runs import SPHERE

WRITING = """
import os, signal, sys
from pathlib import Path
from ppga.storage import replacing
with replacing(Path(sys.argv[1])) as aside:
    aside.write_bytes(b"half")
    print(aside.name, flush=True)
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def writer(path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that is writing a file, and kills itself when it gets a line; and the file's part."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITING, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, path.with_name(process.stdout.readline().strip())


def leave_part(path: Path) -> Path:
    """Kill a process that is writing a file; the part that it leaves."""
    with writer(path) as (process, part):
        process.communicate("die\n", timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert part.read_bytes() == b"half"
    return part


def resume(run: Path, iterations: int) -> Done:
    return command("train", "--resume", str(run), "--iterations", str(iterations), "--quiet")


def test_parts_are_removed_when_a_run_is_resumed(tmp_path: Path) -> None:
    """Not while another process has the run's lock, not while they are written, and no other files."""
    run = tmp_path / "run"
    ppga.train("sphere", SPHERE, budget=ppga.Budget(iterations=2), output=run)
    (run / "own").mkdir()
    others = [run / ".bashrc.part", run / "notes.part", run / "checkpoints/notes.txt"]
    others.append(run / "own/.config.json.0123abcd.part")
    for other in others:
        other.write_text("mine")
    names = ("config.json", "replay.bin", "checkpoints/000009.json", "archive/corrected.safetensors")
    with RunFolder(run).locked():
        parts = [leave_part(run / name) for name in names]
        parts.append(run / "checkpoints/.000005.safetensors.x_0ab1z9.part")  # as earlier versions named them
        parts[-1].touch()
        assert "being trained by another process" in resume(run, 3).stderr
        assert all(part.exists() for part in parts)
    with writer(run / "archive/evaluation.csv") as (process, written):
        done = resume(run, 3)
        assert done.returncode == 0, done.stderr
        assert not [part for part in parts if part.exists()]
        assert written.exists(), "another process is still writing it"
        process.communicate("die\n", timeout=60)
    assert "nothing to do" in resume(run, 3).stdout
    assert not written.exists(), "its writer is dead"
    assert all(other.read_text() == "mine" for other in others)


def test_parts_are_removed_when_a_run_starts(tmp_path: Path) -> None:
    part = leave_part(tmp_path / "run" / "config.json")
    ppga.train("sphere", SPHERE, budget=ppga.Budget(iterations=1), output=tmp_path / "run")
    assert not part.exists()


def test_outside_of_runs_a_write_removes_the_remains_of_interrupted_writes_of_the_same_file(
    tmp_path: Path,
) -> None:
    file, other = tmp_path / "evaluation.[1].csv", tmp_path / "other.csv"
    left, others = leave_part(file), leave_part(other)
    with writer(file) as (process, written):
        with replacing(file) as aside:
            aside.write_text("new")
        assert written.exists()
        process.communicate("die\n", timeout=60)
    assert file.read_text() == "new"
    assert not left.exists()
    assert others.exists(), "remains of other files stay"


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_files_have_the_permissions_of_new_files(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        with replacing(tmp_path / "file") as aside:
            aside.write_text("new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask
