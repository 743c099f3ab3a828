"""The paper's experiments as studies."""

from pathlib import Path

import pytest

import ppga
from ppga.analysis.runs import read_run
from ppga.errors import InputError
from ppga.reproduce import EXPERIMENTS, SCALES, planned
from ppga.runs import Budget
from ppga.study import _train_words, plan, system

from conftest import command


@pytest.mark.parametrize("scale", SCALES)
def test_every_experiment_can_be_planned(scale: str, tmp_path: Path) -> None:
    for name, experiment in EXPERIMENTS.items():
        made = planned(name, scale, output=tmp_path)
        assert made.tasks == experiment.tasks
        assert len({one.folder for one in made.runs()}) == len(made.runs())
        assert made.seeds == (4 if scale == "paper" else 1)
    assert (
        planned("fig-4", scale, output=tmp_path).runs() == planned("table-1", scale, output=tmp_path).runs()
    )
    with pytest.raises(InputError, match="Did you mean 'fig-4'"):
        planned("fig-44", scale)


def test_budgets_are_those_of_the_paper_and_in_proportion(tmp_path: Path) -> None:
    usual, longer = (planned(name, "laptop", output=tmp_path) for name in ("fig-3", "longer"))
    assert longer.budget.minutes == 2 * (usual.budget.minutes or 0)
    assert {one.folder for one in longer.runs()}.isdisjoint(one.folder for one in usual.runs())
    paper = planned("all-systems", "paper", output=tmp_path)
    budgets = {one.algorithm: paper.budget_of(one) for one in paper.runs()}
    for name in ("ppga", "ppo-archive", "td3ga"):
        assert budgets[name] == Budget(evaluations=600_000, iterations=2000)
    for name in ("pga-me", "map-elites"):
        assert budgets[name] == Budget(evaluations=600_000)


def test_a_system_may_be_changed_by_options(tmp_path: Path) -> None:
    name = "ppga-cma-es:search.sigma0=3,archive.shape=5 7"
    words = ("--strategy", "cma-es", "--label", name, "--search.sigma0", "3", "--archive.shape", "5", "7")
    assert system(name) == ("ppga", words)
    for value, switch in (("true", "--ppo.fresh-adam"), ("False", "--ppo.no-fresh-adam")):
        assert system(f"ppga:ppo.fresh-adam={value}")[1][2:] == (switch,)
        plan(["sphere"], [f"ppga:ppo.fresh-adam={value}"], 1, Budget(iterations=1), "smoke", 0, tmp_path)
    for wrong in ("ppga:sigma0", "ppga:=3", "ppga:search.sigma0="):
        with pytest.raises(InputError, match="ALGORITHM:OPTION=VALUE"):
            system(wrong)
    with pytest.raises(InputError, match="unknown algorithm"):
        plan(["sphere"], ["ppgaa:a=1"], 1, Budget(iterations=1), "smoke", 0, tmp_path)
    with pytest.raises(InputError, match="sigma0 must be a positive number"):
        plan(["sphere"], ["ppga:search.sigma0=-1"], 1, Budget(iterations=1), "smoke", 0, tmp_path)
    for wrong in ("ppga:search.sigma0=x", "ppga:search.sigma=1"):  # seen before anything is run
        with pytest.raises(SystemExit, match="2"):
            plan(["sphere"], [wrong], 1, Budget(iterations=1), "smoke", 0, tmp_path)
    made = plan(["sphere"], [name], 1, Budget(iterations=1), "smoke", 0, tmp_path)
    (one,) = made.runs()
    assert one.folder.name == "ppga-cma-es_search.sigma0=3,archive.shape=5_7-0"
    assert command(*_train_words(one, made), "--quiet").returncode == 0
    assert read_run(one.folder).algorithm == name
    assert ppga.load_archive(one.folder).shape == (5, 7)


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
