"""Studies: a grid of real runs, stopped, resumed and extended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import ppga
from ppga.analysis.runs import read_run
from ppga.runs.folder import RunFolder
from ppga.studies import plan_study
from ppga.studies.processes import evaluate_command, train_command
from ppga.studies.progress import CORRECTION_SECONDS, expected_seconds
from ppga.tasks import TASKS

from helpers.commands import Done, command
from helpers.runs import lines

ARM = Path(__file__).parents[2] / "examples" / "arm.py"
Study = Callable[..., Done]


@pytest.fixture
def study(capfd: pytest.CaptureFixture[str]) -> Study:
    """Runs a study in this process; the output of its runs, which are processes, is part of its own."""

    def run(folder: Path, *words: str) -> Done:
        settings = ("--tasks", "sphere", "--preset", "smoke", "--output", str(folder))
        done, printed = command("study", *settings, *words), capfd.readouterr()
        return Done(done.returncode, done.stdout + printed.out, done.stderr + printed.err)

    return run


def test_a_study_runs_the_grid_skips_finished_runs_and_can_be_extended(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    first = study(folder, "--algorithms", "map-elites", "--evaluations", "40")
    assert first.returncode == 0, first.stderr
    assert "1 runs: map-elites on sphere" in first.stdout
    assert "cannot be estimated" in first.stdout, "the sphere is not simulated"
    metrics = folder / "sphere" / "map-elites-0" / "metrics.jsonl"
    before = metrics.read_bytes()

    second = study(folder, "--algorithms", "map-elites", "ppga-cma-es", "--evaluations", "40")
    assert second.returncode == 0, second.stderr
    assert "1 of them are done already" in second.stdout
    assert "1 of 1: ppga-cma-es on sphere, seed 0" in second.stdout
    assert metrics.read_bytes() == before
    assert "more than its budget" not in second.stdout
    runs = sorted(folder.glob("sphere/*"))
    assert [run.name for run in runs] == ["map-elites-0", "ppga-cma-es-0"]
    assert [read_run(run).algorithm for run in runs] == ["map-elites", "ppga-cma-es"]
    for run in runs:
        assert 40 <= lines(run)[-1]["evaluations"] < 50
    page = (folder / "report" / "report.html").read_text()
    assert "ppga-cma-es" in page
    assert "map-elites" in page
    other = study(folder, "--algorithms", "map-elites", "--evaluations", "80", "--preset", "laptop")
    assert other.returncode == 2
    assert "contains a study with preset 'smoke'" in other.stderr
    fewer = study(folder, "--algorithms", "map-elites", "--evaluations", "20")
    assert f"{folder}/sphere/map-elites-0 has used more than its budget." in fewer.stdout
    assert metrics.read_bytes() == before


def test_a_failed_run_does_not_affect_other_runs(study: Study, tmp_path: Path) -> None:
    """PGA-ME needs environments; the sphere has none."""
    done = study(tmp_path / "study", "--algorithms", "pga-me", "map-elites", "--evaluations", "20")
    assert done.returncode == 1
    assert "pga-me learns from transitions, and sphere has none" in done.stderr
    assert f"failed: {tmp_path / 'study' / 'sphere' / 'pga-me-0'}" in done.stdout
    assert (tmp_path / "study" / "sphere" / "map-elites-0" / "archive").exists()


def test_a_stopped_study_is_resumed(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    words = [
        sys.executable, "-m", "ppga", "study", "--tasks", "sphere", "--preset", "smoke", "--output",
        str(folder), "--algorithms", "map-elites", "ppga", "--minutes", "60",
    ]  # fmt: skip
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    metrics = folder / "sphere" / "map-elites-0" / "metrics.jsonl"
    while not metrics.exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "about 2.0 hours left" in output
    assert "the same command resumes the study" in output
    last = lines(metrics.parent)[-1]
    evaluations = last["evaluations"] + 20
    more = study(folder, "--algorithms", "map-elites", "--evaluations", str(evaluations))
    assert more.returncode == 0, more.stderr
    assert f"resuming after iteration {last['iteration']}" in more.stdout
    assert lines(metrics.parent)[-1]["evaluations"] >= evaluations, "with the new budget"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--algorithms", "pgame"), "Did you mean 'pga-me'"),
        (("--algorithms", "ppga:strategy.sigma=1"), "Did you mean 'strategy.sigma0'"),
        (("--tasks", "walker"), "unknown task"),
        (("--preset", "labtop"), "Did you mean 'laptop'"),
        (("--seeds", "0"), "--seeds"),
        (("--minutes", "-1"), "must be positive"),
        (("--episodes", "-1"), "--episodes"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str, study: Study, tmp_path: Path) -> None:
    done = study(tmp_path / "study", *words)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "study").exists()


def test_the_time_is_estimated_for_every_kind_of_budget(tmp_path: Path) -> None:
    """By minutes exactly, by evaluations from a measurement; it is unknown without a simulation."""
    output = tmp_path / "study"
    by_minutes = plan_study(["hopper"], ["map-elites"], 2, ppga.Budget(minutes=3.0), "smoke", 0, output)
    assert expected_seconds(by_minutes.runs(), by_minutes) == 360
    measured = plan_study(["hopper"], ["map-elites"], 1, ppga.Budget(evaluations=400), "smoke", 0, output)
    seconds = expected_seconds(measured.runs(), measured)
    assert seconds is not None
    assert seconds > 0
    sphere = plan_study(["sphere"], ["map-elites"], 1, ppga.Budget(evaluations=40), "smoke", 0, output)
    assert expected_seconds(sphere.runs(), sphere) is None
    corrected = plan_study(["hopper"], ["map-elites"], 2, ppga.Budget(minutes=3.0), "smoke", 20, output)
    assert expected_seconds(corrected.runs(), corrected) == 360 + 2 * CORRECTION_SECONDS


def test_commands_name_the_file_of_a_task(tmp_path: Path) -> None:
    word, output = f"{ARM}:Arm", tmp_path / "study"
    study = plan_study([word, "sphere"], ["map-elites"], 1, ppga.Budget(iterations=1), "smoke", 0, output)
    assert study.tasks == ("arm", "sphere")
    arm, sphere = study.runs()
    assert arm.folder == output / "arm" / "map-elites-0"
    assert train_command(arm, study)[:2] == ["train", word]
    assert train_command(sphere, study)[:2] == ["train", "sphere"]
    assert evaluate_command(arm, study)[-2:] == ["--task", word]
    RunFolder(arm.folder).create("arm", ppga.PPGAConfig(), ppga.Budget(iterations=1), {})
    assert train_command(arm, study)[:4] == ["train", word, "--resume", str(arm.folder)]
    del TASKS["arm"]


@pytest.mark.parametrize(("code", "reported"), [(0, 0), (2, 2), (-signal.SIGTERM, 143)])
def test_the_exit_code_reports_a_signal_as_shells_do(
    code: int, reported: int, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppga.studies.processes.run_command", lambda *_: code)
    words = ("--algorithms", "map-elites", "--evaluations", "40", "--only", "0")
    assert study(tmp_path / "study", *words).returncode == reported
