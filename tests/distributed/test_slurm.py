"""Studies on SLURM: the job script is run as SLURM runs it, with a stand-in for `scontrol`."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from ppga.analysis.corrected import AT_ONCE, PARTIAL, evaluated
from ppga.archives import load_archive
from ppga.config import Budget
from ppga.distributed import slurm
from ppga.distributed.slurm import ATTEMPTS
from ppga.errors import InputError
from ppga.runs.folder import RunFolder, read_lines
from ppga.storage import read_json, write_tensors
from ppga.studies import Study, count_attempt, plan_study, write_script
from ppga.studies.processes import study_command
from ppga.tasks import TASKS

from helpers.commands import Done, command

ALGORITHM = "map-elites:log.checkpoint-seconds=0"
TESTS = Path(__file__).parents[1]
SLOW = 240
"""Seconds after which a test that waits for something fails."""


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + SLOW
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.05)


@dataclass
class Node:
    """A study's job script, and what SLURM does with it on a node."""

    folder: Path
    tools: Path

    @property
    def script(self) -> Path:
        return self.folder / "study.sbatch"

    @property
    def log(self) -> Path:
        return self.tools / "log"

    @property
    def run(self) -> RunFolder:
        (run,) = self.folder.glob("sphere/*")
        return RunFolder(run)

    def calls(self) -> list[str]:
        """Arguments of all calls of scontrol."""
        file = self.tools / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def start(self, restarts: int = 0) -> subprocess.Popen[bytes]:
        """Start an attempt; all of its processes are one group."""
        job = {"SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_JOB_ID": "77"}
        if restarts:
            job["SLURM_RESTART_COUNT"] = str(restarts)
        environment = {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}", **job}
        with self.log.open("a") as log:
            return subprocess.Popen(
                ["bash", str(self.script)], env=environment, start_new_session=True, stdout=log, stderr=log
            )

    def near_limit(self, job: subprocess.Popen[bytes]) -> None:
        """Send the script the signal that it asks for, and kill all processes at the time limit."""
        match = re.search(r"^#SBATCH --signal=B:(\w+)@(\d+)$", self.script.read_text(), re.MULTILINE)
        assert match is not None
        job.send_signal(signal.Signals[f"SIG{match[1]}"])
        try:
            job.wait(int(match[2]))
        except subprocess.TimeoutExpired:
            pytest.fail("the time limit came first: SLURM does not queue such a job again")
        finally:
            self.kill(job)

    def kill(self, job: subprocess.Popen[bytes]) -> None:
        """Kill all processes at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)
        job.wait()


def processes(group: int, word: str) -> list[int]:
    """Processes of a group that have a word in their command line."""
    numbers = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            number, words = int(entry.name), (entry / "cmdline").read_bytes().split(b"\0")
            if os.getpgid(number) == group and word.encode() in words:
                numbers.append(number)
        except OSError:  # it has ended
            pass
    return numbers


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node with a study in a folder whose name contains special characters of shells, SLURM and rich."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, body in {
        "scontrol": f'echo "$@" >> {shlex.quote(str(tools / "calls"))}',
        "ppga": f'exec {shlex.quote(sys.executable)} -m ppga "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    return Node(tmp_path / """a "study's" 100% #1 $HOME [bold] `id`""", tools)


def study(node: Node, *words: str) -> Done:
    """Run `ppga study` with these options."""
    settings = ("--tasks", "sphere", "--preset", "smoke", "--output", str(node.folder), "--minutes", "60")
    mode = () if "--only" in words else ("--cluster", "slurm")
    return command("study", *settings, "--algorithms", ALGORITHM, *words, *mode)


def iterations(node: Node) -> list[int]:
    return [line["iteration"] for line in read_lines(node.run.metrics)]


def checkpoint(node: Node) -> int:
    return max((int(file.stem) for file in node.run.checkpoints.glob("0*.json")), default=0)


def has_newer_checkpoint(node: Node, before: int) -> Callable[[], bool]:
    return lambda: any(node.folder.glob("sphere/*/checkpoints/0*.json")) and checkpoint(node) > before


def test_a_job_is_queued_again_before_its_time_limit_and_resumes(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the run does then; but not after it is canceled."""
    monkeypatch.setattr(slurm, "GRACE", slurm.MARGIN + 2)
    assert study(node).stdout == f"sbatch {shlex.quote(str(node.script))}\n"

    job = node.start()
    wait_until(has_newer_checkpoint(node, 0))
    (training,) = processes(job.pid, "train")
    os.kill(training, signal.SIGSTOP)  # like an iteration that does not end
    node.near_limit(job)
    assert job.returncode == 0
    assert node.calls() == ["requeue 77_0"]
    before = checkpoint(node)

    monkeypatch.setattr(slurm, "GRACE", slurm.MARGIN + SLOW)
    assert study(node).returncode == 0
    job = node.start(restarts=1)
    wait_until(has_newer_checkpoint(node, before))
    node.near_limit(job)
    assert job.returncode == 0
    assert node.calls() == ["requeue 77_0"] * 2
    last = checkpoint(node)
    assert iterations(node) == list(range(1, last + 1)), (
        "the last iteration was finished, and none is missing"
    )

    job = node.start(restarts=2)
    wait_until(has_newer_checkpoint(node, last))
    os.killpg(job.pid, signal.SIGTERM)  # scancel, or a preemption
    assert job.wait(SLOW) == 128 + signal.SIGTERM
    assert len(node.calls()) == 2, "only SLURM decides whether it is queued again"
    assert iterations(node) == list(range(1, checkpoint(node) + 1))


SLOW_TASK = """
from helpers.slider import Slider

class Slow(Slider):
    name = "slow"
    archive_shape = (50,)
    substeps = 60  # a second or more for each elite that is evaluated
"""


def test_an_evaluation_that_exceeds_the_time_limit_is_resumed(node: Node) -> None:
    file = node.tools / "slow.py"
    file.write_text(f"import sys\nsys.path.append({str(TESTS)!r})\n{SLOW_TASK}")
    written = command(
        "study", "--tasks", f"{file}:Slow", "--preset", "smoke", "--algorithms", "map-elites",
        "--evaluations", "12", "--episodes", str(AT_ONCE), "--output", str(node.folder), "--cluster", "slurm",
    )  # fmt: skip
    assert written.returncode == 0, written.stderr
    results = node.folder / "slow" / "map-elites-0" / "archive" / PARTIAL
    job = node.start()
    wait_until(lambda: evaluated(results))
    node.near_limit(job)
    assert job.returncode == 0
    assert node.calls() == ["requeue 77_0"]
    done = evaluated(results)
    elites = len(load_archive(results.with_name("archive.safetensors")))
    assert 0 < done < elites
    job = node.start(restarts=1)
    assert job.wait(SLOW) == 0, node.log.read_text()
    assert read_json(results.with_name("evaluation.json"))["evaluated"] == elites
    assert not results.exists()
    assert len(node.calls()) == 1


def test_a_run_without_progress_fails(node: Node) -> None:
    assert study(node).returncode == 0
    for attempt in range(ATTEMPTS):
        job = node.start(restarts=attempt)
        wait_until(partial(processes, job.pid, "train"))
        node.kill(job)
    job = node.start(restarts=ATTEMPTS)
    try:
        assert job.wait(SLOW) == 2
    finally:
        if job.poll() is None:
            node.kill(job)
    (message,) = [line for line in node.log.read_text().splitlines() if line.startswith("ppga: ")]
    assert f"no progress in {ATTEMPTS} attempts" in message
    assert "sbatch --time" in message
    assert node.calls() == []


def plan(task: str, folder: Path) -> Study:
    return plan_study([task], ["map-elites"], 1, Budget(iterations=1), "smoke", 0, folder)


def test_attempts_are_counted_since_the_last_progress(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (run,) = plan("sphere", node.folder).runs()
    checkpoints = run.files.checkpoints
    checkpoints.mkdir(parents=True)
    results = run.files.archive.with_name(PARTIAL)

    def attempts(times: int) -> None:
        for _ in range(times):
            count_attempt(run)

    attempts(1)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    attempts(ATTEMPTS - 1)
    (checkpoints / "000003.json").touch()
    attempts(ATTEMPTS)
    for done in (1, 2):
        write_tensors(results, {"objective": np.zeros((done, 2))}, None)
        attempts(ATTEMPTS)
    with pytest.raises(InputError, match="no progress in 3 attempts"):
        count_attempt(run)
    results.unlink()  # the evaluation of another archive has started
    with pytest.raises(InputError, match="no progress in 3 attempts"):
        count_attempt(run)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")  # submitted by hand
    attempts(1)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    attempts(ATTEMPTS - 1)
    with pytest.raises(InputError, match="no progress in 3 attempts"):
        count_attempt(run)


def test_each_run_has_a_job(node: Node) -> None:
    words = ("--seeds", "2", "--cores", "3")
    assert study(node, *words).returncode == 0
    directives = [line for line in node.script.read_text().splitlines() if line.startswith("#SBATCH")]
    for option in ("--array=0-1", "--cpus-per-task=3", "--time=71", "--requeue", "--open-mode=append"):
        assert f"#SBATCH {option}" in directives
    done = study(node, *words, "--only", "2")
    assert done.returncode == 2
    assert "--only must lie in [0, 1]" in done.stderr
    assert not (node.folder / "sphere").exists()


def test_paths_are_written_as_slurm_and_bash_read_them(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """This includes files of tasks, whatever folder the script is submitted from."""
    example = TESTS.parent / "examples" / "arm.py"
    monkeypatch.chdir(example.parent)
    study = plan("arm.py:Arm", node.folder)
    text = write_script(study, 2).read_text()
    directive = f"{node.folder}/slurm-%A_%a.log".replace("100%", "100%%").replace('"', '\\"')
    assert f'#SBATCH --output="{directive}"' in text.splitlines()
    assert shlex.join(["ppga", *study_command(study)]) in text
    assert f"{example}:Arm" in study_command(study)
    del TASKS["arm"]


@pytest.mark.parametrize("name", ["two\nlines", "tab\t", "back\\slash", "\udcff"])
def test_a_path_that_cannot_be_written_in_a_script_is_refused(name: str, tmp_path: Path) -> None:
    study = plan("sphere", tmp_path / name)
    with pytest.raises(InputError, match=r"script for SLURM cannot contain|choose an --output"):
        write_script(study, 2)
    assert not list(tmp_path.rglob("*.sbatch"))
