"""The commands of a study's runs, as processes."""

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

from ppga.config import Budget
from ppga.runs.signals import STOP_SIGNALS, replaced, stop_handlers
from ppga.studies.plan import Study, StudyRun, parse_system
from ppga.studies.progress import has_elites

STOPPED = [code for number in STOP_SIGNALS for code in (128 + number, -number)]
"""Exit codes of a run that got a stop signal."""
CHILD_PROGRAM = """
import ctypes, signal, sys
if sys.platform == "linux":
    PR_SET_PDEATHSIG = 1
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
from ppga.cli import main
main()
"""
"""The program `ppga`, killed with the process that started it: otherwise it would keep its folder locked."""


def execute(run: StudyRun, study: Study, errors: IO[str] | None = None) -> int:
    """Start or resume a run, then re-evaluate its elites if the study asks for that; return the exit code.

    Args:
        run: one of the study's runs.
        study: the study.
        errors: for a run on a cluster, a file for its stderr; the run is killed with this process.
    """
    code = run_command(train_command(run, study), errors)
    if code == 0 and study.corrects(run) and has_elites(run):
        code = run_command(evaluate_command(run, study), errors)
    return code


def train_command(run: StudyRun, study: Study) -> list[str]:
    """The command that starts or resumes a run, without `ppga`."""
    task, budget = study.task_argument(run.task), budget_options(study.budget_of(run))
    if run.files.config.exists():
        return ["train", task, "--resume", str(run.folder), *budget]
    system = parse_system(run.system)
    changes = [f"--{name.replace('_', '-')}={text}" for name, text in system.settings.items()]
    label = [f"--label={system.name}"] if system.customized else []
    return [
        "train", task, "--algorithm", system.algorithm, "--preset", study.preset, "--seed", str(run.seed),
        *changes, *label, *budget, "--output", str(run.folder),
    ]  # fmt: skip


def evaluate_command(run: StudyRun, study: Study) -> list[str]:
    """The command that re-evaluates the elites of a run, without `ppga`."""
    file = study.task_files.get(run.task)
    task = [] if file is None else ["--task", file]
    return ["evaluate", str(run.folder), "--episodes", str(study.episodes), *task]


def study_command(study: Study) -> list[str]:
    """The command of a study, without `ppga`, with absolute paths."""
    files = {name: str(Path(file).absolute()) for name, file in study.task_files.items()}
    return [
        "study", "--tasks", *(files.get(task, task) for task in study.tasks), "--algorithms", *study.systems,
        "--seeds", str(study.seeds), *budget_options(study.budget), "--preset", study.preset,
        "--episodes", str(study.episodes), "--output", str(study.output.absolute()),
    ]  # fmt: skip


def budget_options(budget: Budget) -> list[str]:
    """Options of a budget."""
    return [
        word
        for name in ("iterations", "minutes", "env_steps", "evaluations")
        if (limit := getattr(budget, name)) is not None
        for word in (f"--{name.replace('_', '-')}", str(limit))
    ]


def run_command(words: Sequence[str], errors: IO[str] | None = None) -> int:
    """Run a command of `ppga` in a new process on this terminal, and return its exit code.

    A terminal sends SIGINT (Ctrl-C) and SIGHUP to all of its processes. The command ignores both and gets
    SIGTERM from this process, so that a run ends its iteration. A second Ctrl-C kills it; then only that
    iteration is lost.

    Args:
        words: the command, without `ppga`.
        errors: a file for its stderr; then the command is also killed if this process dies.
    """
    program = ["-m", "ppga"] if errors is None else ["-c", CHILD_PROGRAM]
    started: list[subprocess.Popen[bytes]] = []
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        at_once = number == signal.SIGINT and signal.SIGINT in received
        received.append(number)
        for process in started:
            process.send_signal(signal.SIGKILL if at_once else signal.SIGTERM)

    before = stop_handlers()
    with replaced(before, forward):
        with replaced(dict.fromkeys(before.keys() - {signal.SIGTERM}, forward), signal.SIG_IGN):
            process = subprocess.Popen([sys.executable, *program, *words], stderr=errors)
        started.append(process)
        if received:
            process.terminate()
        code = process.wait()
    return 128 + received[0] if received and code in (0, -signal.SIGKILL) else code
