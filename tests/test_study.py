"""Studies: a grid of real runs, stopped, continued and extended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ppga.algorithms import ALGORITHMS
from ppga.analysis.runs import read_run
from ppga.runs import Budget, PPGAConfig
from ppga.runs.folder import RunFolder
from ppga.study import CORRECTION_SECONDS, SYSTEMS, _evaluate_words, _train_words, expected, plan
from ppga.tasks import TASKS

from conftest import Done, command, lines

Study = Callable[..., Done]


@pytest.fixture
def study(capfd: pytest.CaptureFixture[str]) -> Study:
    """Runs a study in this process; its runs have their own, and what they print is read, too."""

    def run(folder: Path, *words: str) -> Done:
        settings = ("--tasks", "sphere", "--preset", "smoke", "--output", str(folder))
        done, printed = command("study", *settings, *words), capfd.readouterr()
        return Done(done.returncode, done.stdout + printed.out, done.stderr + printed.err)

    return run


def test_a_study_runs_the_grid_skips_what_is_done_and_can_be_extended(study: Study, tmp_path: Path) -> None:
    folder = tmp_path / "study"
    first = study(folder, "--algorithms", "map-elites", "--evaluations", "40")
    assert first.returncode == 0, first.stderr
    assert "1 runs: map-elites on sphere" in first.stdout
    assert "not known beforehand" in first.stdout, "the sphere is not simulated"
    metrics = folder / "sphere" / "map-elites-0" / "metrics.jsonl"
    before = metrics.read_bytes()

    again = study(folder, "--algorithms", "map-elites", "ppga-cma-es", "--evaluations", "40")
    assert again.returncode == 0, again.stderr
    assert "1 of them are done already" in again.stdout
    assert "1 of 1: ppga-cma-es on sphere, seed 0" in again.stdout
    assert metrics.read_bytes() == before
    assert "longer than asked" not in again.stdout
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
    assert "holds a study with preset 'smoke'" in other.stderr
    fewer = study(folder, "--algorithms", "map-elites", "--evaluations", "20")
    assert f"{folder}/sphere/map-elites-0 has gone on for longer than asked." in fewer.stdout
    assert metrics.read_bytes() == before


def test_a_run_that_fails_does_not_take_the_others_with_it(study: Study, tmp_path: Path) -> None:
    """PGA-ME needs environments; the sphere has none."""
    found = study(tmp_path / "study", "--algorithms", "pga-me", "map-elites", "--evaluations", "20")
    assert found.returncode == 1
    assert "learns in environments" in found.stderr
    assert f"failed: {tmp_path / 'study' / 'sphere' / 'pga-me-0'}" in found.stdout
    assert (tmp_path / "study" / "sphere" / "map-elites-0" / "archive").exists()


def test_a_study_that_is_stopped_goes_on(study: Study, tmp_path: Path) -> None:
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
    assert "about 2.0 hours to go" in output
    assert "the same command goes on" in output
    done = lines(metrics.parent)[-1]["iteration"]
    more = study(folder, "--algorithms", "map-elites", "--evaluations", str(4 * (done + 5)))
    assert more.returncode == 0, more.stderr
    assert f"resuming after iteration {done}" in more.stdout
    assert lines(metrics.parent)[-1]["evaluations"] >= 4 * (done + 5), "with the new budget"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--algorithms", "pgame"), "Did you mean 'pga-me'"),
        (("--tasks", "walker"), "unknown task"),
        (("--seeds", "0"), "--seeds"),
        (("--minutes", "-1"), "must be positive"),
        (("--episodes", "-1"), "--episodes"),
    ],
)
def test_bad_input(words: tuple[str, ...], message: str, study: Study, tmp_path: Path) -> None:
    found = study(tmp_path / "study", *words)
    assert found.returncode == 2
    assert message in found.stderr
    assert not (tmp_path / "study").exists()


def test_the_time_is_estimated_for_every_kind_of_budget(tmp_path: Path) -> None:
    """By minutes exactly, by evaluations from a measurement; nothing is known of what is not simulated."""
    by_minutes = plan(["hopper"], ["map-elites"], 2, Budget(minutes=3.0), "smoke", 0, tmp_path / "study")
    assert expected(by_minutes.runs(), by_minutes) == 360
    measured = plan(["hopper"], ["map-elites"], 1, Budget(evaluations=400), "smoke", 0, tmp_path / "study")
    seconds = expected(measured.runs(), measured)
    assert seconds is not None
    assert seconds > 0
    sphere = plan(["sphere"], ["map-elites"], 1, Budget(evaluations=40), "smoke", 0, tmp_path / "study")
    assert expected(sphere.runs(), sphere) is None
    corrected = plan(["hopper"], ["map-elites"], 2, Budget(minutes=3.0), "smoke", 20, tmp_path / "study")
    assert expected(corrected.runs(), corrected) == 360 + 2 * CORRECTION_SECONDS


def test_a_task_in_a_file_is_given_by_its_file_to_every_process(tmp_path: Path) -> None:
    word = f"{Path(__file__).parent.parent / 'examples' / 'arm.py'}:Arm"
    output = tmp_path / "study"
    made = plan([word, "sphere"], ["map-elites"], 1, Budget(iterations=1), "smoke", 0, output)
    assert made.tasks == ("arm", "sphere")
    arm, sphere = made.runs()
    assert arm.folder == output / "arm" / "map-elites-0"
    assert _train_words(arm, made)[:2] == ["train", word]
    assert _train_words(sphere, made)[:2] == ["train", "sphere"]
    assert _evaluate_words(arm, made)[-2:] == ["--task", word]
    RunFolder(arm.folder).create("arm", PPGAConfig(), Budget(iterations=1), {})
    assert _train_words(arm, made)[:4] == ["train", word, "--resume", str(arm.folder)]
    del TASKS["arm"]


@pytest.mark.parametrize(("ends", "told"), [(0, 0), (2, 2), (-signal.SIGTERM, 143)])
def test_a_signal_is_told_as_shells_do(
    ends: int, told: int, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppga.study._call", lambda *_: ends)
    words = ("--algorithms", "map-elites", "--evaluations", "40", "--only", "0")
    assert study(tmp_path / "study", *words).returncode == told


def test_all_means_every_system_of_the_paper(tmp_path: Path) -> None:
    assert set(SYSTEMS) == {*ALGORITHMS, "ppga-cma-es", "ppga-recombination"} - {"ppo"}
    listed = command("algorithms").stdout
    for name in ALGORITHMS:
        assert f" {name} " in listed
    assert "--strategy cma-es" in listed
    words = ("--strategy", "cma-es", "--step", "recombination", "--dry-run", "--preset", "smoke")
    plan = command("train", "hopper", *words, folder=tmp_path).stdout
    assert [line.split()[1] for line in plan.splitlines() if "search.strategy" in line] == ["cma-es"]
    assert [line.split()[1] for line in plan.splitlines() if "search.step" in line] == ["recombination"]
