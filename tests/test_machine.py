"""What this process may use of the machine."""

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
    """A quota in the manner of version 2, or with a word per file in that of version 1."""
    group.mkdir(parents=True, exist_ok=True)
    names = ["cpu.max"] if "cpu" not in group.parts else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    for name, words in zip(names, [value] if len(names) == 1 else value.split(), strict=True):
        (group / name).write_text(f"{words}\n")


@pytest.mark.parametrize(
    ("own", "quotas", "found"),
    [
        ("0::/job/step\n", {"job/step": "max 100000", "job": "150000 100000", "": "400000 100000"}, [2, 4]),
        ("0::/job\n", {"job": "50000 100000"}, [1]),
        ("0::/job\n", {"job": "max 100000"}, []),
        ("0::/seen/from/outside\n", {"": "300000 100000"}, [3]),
        ("9:memory:/job\n4:cpu,cpuacct:/job\n0::/\n", {"cpu/job": "250000 100000", "cpu": "-1 100000"}, [3]),
        ("4:cpu:/seen/from/outside\n", {"cpu": "100000 50000"}, [2]),
        ("4:memory:/job\n", {"cpu/job": "100000 100000"}, []),
        ("nonsense\n", {"": "100000 100000"}, []),
    ],
)
def test_cpu_quotas_of_all_groups_around_the_process_are_found(
    own: str, quotas: dict[str, str], found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, file = tmp_path / "groups", tmp_path / "own"
    file.write_text(own)
    quota(tmp_path, "1000 100000")  # not a group
    for group, value in quotas.items():
        quota(root / group, value)
    monkeypatch.setattr(machine, "GROUPS", root)
    monkeypatch.setattr(machine, "OWN_GROUPS", file)
    cores = len(os.sched_getaffinity(0))
    assert machine.visible_cores() == min([cores, *found])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    assert machine.visible_cores() == min([64, *found])
    assert machine.describe()["cores"] == 64, "XLA does not know of quotas"


@pytest.fixture
def one_core() -> Iterator[Path]:
    """A real control group with a quota of one core, of whichever version there is."""
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


def test_a_run_resumed_under_another_quota_is_warned_of(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    ppga.train("sphere", budget=ppga.Budget(iterations=1), output=run.path)
    assert run.strange_to() == []
    content = read_json(run.config)
    usable = content["machine"].pop("usable_cores")
    content["machine"]["cores"] = machine.describe()["cores"]
    write_json(run.config, content | {"machine": content["machine"] | {"usable_cores": usable + 1}})
    assert run.strange_to() == [f"usable_cores: {usable + 1} then, {usable} now"]
    write_json(run.config, content)  # of a version that knew of no quotas
    assert bool(run.strange_to()) == (usable != content["machine"]["cores"])
