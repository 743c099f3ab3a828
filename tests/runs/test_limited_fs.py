"""Runs on file systems without locks, without fsync of folders, and without chmod."""

import errno
import fcntl
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ppga
from ppga import storage
from ppga.errors import InputError, StorageWarning

from helpers.commands import environment
from helpers.runs import same_runs

PRESET, _ = ppga.preset("laptop", "sphere")
CONFIG = PRESET.replace(
    **{
        "branches": 8, "walk_updates": 1, "strategy.sigma0": 5.0, "log.checkpoint_seconds": 0.0,
        "log.tensorboard": False,
    }
)  # fmt: skip
"""The settings of SPHERE_WORDS."""
TRAINING = """
import shutil, sys
from helpers.runs import SPHERE_WORDS
from ppga.cli import main
_, place, outside = sys.argv
run = f"{place}/runs/run"
for words in (
    [*SPHERE_WORDS, "--output", run, "--iterations", "3"],
    ["train", "--resume", run, "--iterations", "6"],
):
    sys.argv = ["ppga", *words, "--quiet"]
    main()
shutil.copytree(run, outside)
"""


def train_and_resume(run: Path) -> None:
    ppga.train("sphere", CONFIG, budget=ppga.Budget(iterations=3), output=run)
    ppga.resume(run, budget=ppga.Budget(iterations=6))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption on an ordinary file system."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    ppga.train("sphere", CONFIG, budget=ppga.Budget(iterations=6), output=run)
    return run


def limited(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the file system of `limited_fs.py` mounted on a folder."""
    place.mkdir()
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    mounted = [sys.executable, "-m", "helpers.limited_fs", str(place)]
    return subprocess.run(
        [*namespace, *mounted, sys.executable, *words],
        capture_output=True, text=True, check=False, timeout=300, env=environment(),
    )  # fmt: skip


def test_a_run_on_a_real_file_system_without_locks(undisturbed: Path, tmp_path: Path) -> None:
    try:
        attempt = limited(tmp_path / "attempt", "-c", "")
    except FileNotFoundError:
        pytest.skip("needs the command unshare")
    if attempt.returncode:
        pytest.skip(f"needs FUSE and the right to mount: {attempt.stderr.strip().splitlines()[-1]}")
    done = limited(tmp_path / "place", "-c", TRAINING, str(tmp_path / "place"), str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()
    assert "folders cannot be synced to the disk" in first
    assert "Invalid argument" in first
    assert "files cannot be locked" in second
    assert "Function not implemented" in second
    assert first.startswith("ppga: warning: ")
    same_runs(undisturbed, tmp_path / "run")


def fails(function: Callable[..., Any], number: int, when: Callable[[Any], bool]) -> Callable[..., Any]:
    """A function that raises an OSError where its first argument fulfills a condition.

    Args:
        function: called where the condition is not fulfilled.
        number: errno of the error.
        when: the condition.
    """

    def failing(first: Any, *others: Any, **named: Any) -> Any:
        if when(first):
            raise OSError(number, os.strerror(number))
        return function(first, *others, **named)

    return failing


def is_folder(handle: int) -> bool:
    return stat.S_ISDIR(os.fstat(handle).st_mode)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL, errno.EIO])
def test_a_run_without_locks(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(storage, "_WARNED", set())
    monkeypatch.setattr(fcntl, "flock", fails(fcntl.flock, number, lambda _: True))
    with pytest.warns(StorageWarning, match="nothing keeps a second process from training") as caught:
        train_and_resume(tmp_path / "run")
    assert len(caught) == 1
    same_runs(undisturbed, tmp_path / "run")


@pytest.mark.parametrize("number", [errno.EWOULDBLOCK, errno.EAGAIN])
def test_a_locked_run_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(fcntl, "flock", fails(fcntl.flock, number, lambda _: True))
    with pytest.raises(InputError, match="being trained by another process"):
        ppga.train("sphere", CONFIG, budget=ppga.Budget(iterations=3), output=tmp_path / "run")


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF])
def test_a_run_where_nothing_can_be_synced(
    undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(storage, "_WARNED", set())
    monkeypatch.setattr(os, "fsync", fails(os.fsync, number, lambda _: True))
    monkeypatch.setattr(os, "chmod", fails(os.chmod, errno.EPERM, lambda _: True))
    with pytest.warns(StorageWarning, match="after a power failure") as caught:
        train_and_resume(tmp_path / "run")
    assert sorted(str(warning.message).split()[0] for warning in caught) == ["files", "folders"]
    same_runs(undisturbed, tmp_path / "run")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("folders", [True, False])
def test_a_disk_that_fails_to_sync_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, folders: bool
) -> None:
    run = tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=ppga.Budget(iterations=2), output=run)
    monkeypatch.setattr(os, "fsync", fails(os.fsync, number, lambda handle: is_folder(handle) == folders))
    with pytest.raises(InputError, match=f"cannot write to {run}: {os.strerror(number)}"):
        ppga.resume(run, budget=ppga.Budget(iterations=3))


WRITING = """
import os, sys
from pathlib import Path
from ppga.storage import write_text
if os.geteuid() == 0:  # root may list every folder
    os.setuid(65534)
write_text(Path(sys.argv[1]) / "own" / "file", "text")
"""


def test_a_folder_that_can_be_written_to_but_not_listed() -> None:
    """Shared disks often have such a folder for the users' own ones; it cannot be opened to be synced."""
    with tempfile.TemporaryDirectory() as place:
        shared = Path(place) / "shared"
        shared.mkdir()
        shared.chmod(0o333)
        Path(place).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", WRITING, str(shared)], capture_output=True, text=True, check=False
        )
        shared.chmod(0o755)
        assert done.returncode == 0, done.stderr
        assert "folders cannot be synced to the disk" in done.stderr
        assert (shared / "own" / "file").read_text() == "text"
