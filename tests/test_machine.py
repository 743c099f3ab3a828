"""Cores that this process may use, and warnings about machines that differ."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ppga
from ppga import machine
from ppga.runs.folder import RunFolder
from ppga.storage import read_json, write_json

VISIBLE = "from ppga.machine import describe; d = describe(); print(d['usable_cores'], d['cores'])"


def quota(group: Path, value: str) -> None:
    """Write a CPU quota as in version 2 of control groups, or in two files as in version 1."""
    group.mkdir(parents=True, exist_ok=True)
    names = ["cpu.max"] if "cpu" not in group.parts else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    for name, words in zip(names, [value] if len(names) == 1 else value.split(), strict=True):
        (group / name).write_text(f"{words}\n")


@pytest.mark.parametrize(
    ("own", "quotas", "expected"),
    [
        ("0::/job/step\n", {"job/step": "max 100000", "job": "150000 100000", "": "400000 100000"}, [2, 4]),
        ("0::/job\n", {"job": "50000 100000"}, [1]),
        ("0::/job\n", {"job": "max 100000"}, []),
        ("0::/path/outside\n", {"": "300000 100000"}, [3]),
        ("9:memory:/job\n4:cpu,cpuacct:/job\n0::/\n", {"cpu/job": "250000 100000", "cpu": "-1 100000"}, [3]),
        ("4:cpu:/path/outside\n", {"cpu": "100000 50000"}, [2]),
        ("4:memory:/job\n", {"cpu/job": "100000 100000"}, []),
        ("nonsense\n", {"": "100000 100000"}, []),
    ],
)
def test_the_quotas_of_the_group_and_its_parents_count(
    own: str, quotas: dict[str, str], expected: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = tmp_path / "groups", tmp_path / "own"
    file.write_text(own)
    quota(tmp_path, "1000 100000")  # not a group
    for group, value in quotas.items():
        quota(root / group, value)
    monkeypatch.setattr(machine, "GROUPS", root)
    monkeypatch.setattr(machine, "OWN_GROUPS", file)
    cores = len(os.sched_getaffinity(0))
    assert machine.visible_cores() == min([cores, *expected])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert machine.visible_cores() == min([64, *expected])
    assert machine.describe()["cores"] == 64, "XLA ignores quotas"


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A real control group with a quota of one core, of version 1 or 2."""
    for root in (machine.GROUPS, machine.GROUPS / "cpu"):
        group = root / f"ppga-test-{os.getpid()}"
        try:
            if not (root / "cgroup.procs").exists():
                continue
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / "cpu.cfs_quota_us").exists() or (group / "cpu.max").exists():
                quota(group, "100000 100000")
                yield group
                return
        finally:
            group.rmdir()
    pytest.skip("no control group with a CPU quota can be made here (needs root and a writable cgroup)")


def test_a_real_cpu_quota_limits_the_usable_cores(one_core: Path) -> None:
    enter = f"import os; open({str(one_core / 'cgroup.procs')!r}, 'w').write(str(os.getpid()));"
    done = subprocess.run([sys.executable, "-c", enter + VISIBLE], capture_output=True, text=True)
    assert done.stdout.split() == ["1", str(len(os.sched_getaffinity(0)))], done.stderr


def test_a_resumed_run_reports_another_quota(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    ppga.train("sphere", budget=ppga.Budget(iterations=1), output=run.path)
    assert run.machine_differences() == []
    content = read_json(run.config)
    usable = content["machine"].pop("usable_cores")
    content["machine"]["cores"] = machine.describe()["cores"]
    write_json(run.config, content | {"machine": content["machine"] | {"usable_cores": usable + 1}})
    assert run.machine_differences() == [f"usable_cores: {usable + 1} then, {usable} now"]
    write_json(run.config, content)  # a record without quotas
    assert bool(run.machine_differences()) == (usable != content["machine"]["cores"])


COMPILE = """
import jax
from ppga import machine

machine.CACHED_SECONDS = 0.0
machine.prepare_jax()
jax.jit(lambda x: jax.numpy.sin(x) @ x)(jax.numpy.eye(40))
"""


def test_compiled_programs_are_stored_for_later_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")

    def run(**variables: str) -> None:
        subprocess.run([sys.executable, "-c", COMPILE], check=True, env=os.environ | variables)

    folder = tmp_path / "cache" / "ppga" / "compiled"
    run(XDG_CACHE_HOME=str(tmp_path / "cache"))
    stored = {file.name: file.stat().st_mtime_ns for file in folder.glob("*-cache")}
    assert stored
    run(XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert {file.name: file.stat().st_mtime_ns for file in folder.glob("*-cache")} == stored, "found again"
    run(XDG_CACHE_HOME=str(tmp_path / "off"), JAX_ENABLE_COMPILATION_CACHE="false")
    assert not list((tmp_path / "off" / "ppga" / "compiled").glob("*-cache"))


def test_a_cache_folder_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert machine.cache_folder() is None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "ppga" / "compiled"
