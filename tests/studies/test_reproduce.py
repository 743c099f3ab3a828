"""The paper's experiments as studies."""

from pathlib import Path

import pytest

import ppga
from ppga.errors import InputError
from ppga.studies.reproduce import EXPERIMENTS, SCALES, plan_experiment

from helpers.commands import command


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_can_be_planned(scale: str, tmp_path: Path) -> None:
    for name, experiment in EXPERIMENTS.items():
        study = plan_experiment(name, scale, output=tmp_path)
        assert study.tasks == experiment.tasks
        assert len({run.folder for run in study.runs()}) == len(study.runs())
        assert study.seeds == (4 if scale == "paper" else 1)
    main, corrected = (plan_experiment(name, scale, output=tmp_path) for name in ("fig-4", "table-1"))
    assert main.runs() == corrected.runs()
    with pytest.raises(InputError, match="Did you mean 'fig-4'"):
        plan_experiment("fig-44", scale)


def test_budgets_are_those_of_the_paper_and_in_proportion(tmp_path: Path) -> None:
    usual, longer = (plan_experiment(name, "laptop", output=tmp_path) for name in ("fig-3", "longer"))
    assert longer.budget.minutes == 2 * (usual.budget.minutes or 0)
    assert {run.folder for run in longer.runs()}.isdisjoint(run.folder for run in usual.runs())
    paper = plan_experiment("all-systems", "paper", output=tmp_path)
    budgets = {run.system: paper.budget_of(run) for run in paper.runs()}
    for name in ("ppga", "ppga-cma-es", "ppga-no-measures", "ppo-archive", "td3ga"):
        assert budgets[name] == ppga.Budget(evaluations=600_000, iterations=2000)
    for name in ("pga-me", "map-elites", "qdpg", "cma-maega-td3-es", "sep-cma-mae", "pbt-me-sac"):
        assert budgets[name] == ppga.Budget(evaluations=600_000)


def test_the_command_lists_plans_and_runs(tmp_path: Path) -> None:
    listed = command("reproduce", "--list").stdout
    assert all(name in listed for name in EXPERIMENTS)
    words = ("reproduce", "recombination", "--scale", "smoke", "--tasks", "sphere")
    plans = command(*words, "--dry-run", folder=tmp_path)
    runs = [f"reproduce/smoke/sphere/{name}-0" for name in ("ppga", "ppga-recombination", "ppga-cma-es")]
    assert plans.stdout.split() == runs
    assert not (tmp_path / "reproduce").exists()
    done = command(*words, folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert all((tmp_path / run / "archive").exists() for run in runs)
    assert "ppga-recombination" in (tmp_path / "reproduce/smoke/report-recombination/report.html").read_text()
    refused = command("reproduce", "fig-4", "--scale", "paper", "--minutes", "3")
    assert refused.returncode == 2
    assert "measured in evaluations" in refused.stderr
