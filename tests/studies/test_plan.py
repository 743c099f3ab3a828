"""Systems of a study, and what a study checks before it runs."""

from pathlib import Path

import pytest

import ppga
from ppga.algorithms import ALGORITHMS
from ppga.analysis.runs import read_run
from ppga.errors import InputError
from ppga.studies import SYSTEMS, VARIANTS, Study, parse_system, plan_study
from ppga.studies.processes import train_command

from helpers.commands import command

BUDGET = ppga.Budget(iterations=1)


def plan(folder: Path, *systems: str, preset: str = "smoke") -> Study:
    return plan_study(["sphere"], systems, 1, BUDGET, preset, 0, folder)


def test_all_means_every_system_of_the_paper(tmp_path: Path) -> None:
    assert set(SYSTEMS) == {*ALGORITHMS, "ppga-cma-es", "ppga-recombination"} - {"ppo", "mcppo"}
    assert plan(tmp_path, "all", "ppga").systems == SYSTEMS
    listed = command("algorithms").stdout
    for name in (*ALGORITHMS, *VARIANTS):
        assert f" {name} " in listed


def test_variants_change_one_setting_of_ppga() -> None:
    config, _ = ppga.preset("laptop", "hopper")
    changed = {name: parse_system(name).config("hopper", "laptop") for name in VARIANTS}
    assert changed["ppga-cma-es"] == config.replace(**{"strategy.kind": "cma-es"})
    assert changed["ppga-recombination"] == config.replace(step="recombination")


def test_a_system_may_change_settings(tmp_path: Path) -> None:
    name = "ppga-cma-es:strategy.sigma0=3,archive.shape=5 7,ppo.reset-optimizer=True"
    system = parse_system(name)
    assert system.algorithm == "ppga"
    assert system.customized
    assert not parse_system("ppga-cma-es").customized
    config, _ = ppga.preset("smoke", "sphere")
    changes = {"strategy.kind": "cma-es", "strategy.sigma0": 3.0, "archive.shape": (5, 7)}
    assert system.config("sphere", "smoke") == config.replace(**changes, **{"ppo.reset_optimizer": True})

    study = plan(tmp_path, name)
    (run,) = study.runs()
    assert run.folder.name == "ppga-cma-es_strategy.sigma0=3,archive.shape=5_7,ppo.reset-optimizer=True-0"
    words = train_command(run, study)
    options = ("--strategy.kind=cma-es", "--strategy.sigma0=3", "--archive.shape=5 7", f"--label={name}")
    assert {*options, "--ppo.reset-optimizer=True"} <= {*words}
    assert command(*words, "--quiet").returncode == 0
    _, trained, _ = run.files.read()
    assert trained == config.replace(**changes, **{"ppo.reset_optimizer": True, "label": name})
    assert read_run(run.folder).algorithm == name
    assert ppga.load_archive(run.folder).shape == (5, 7)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ("ppga:sigma0", "ALGORITHM:OPTION=VALUE"),
        ("ppga:=3", "ALGORITHM:OPTION=VALUE"),
        ("ppga:strategy.sigma0=", "ALGORITHM:OPTION=VALUE"),
        ("ppga:", "ALGORITHM:OPTION=VALUE"),
        ("ppgaa:a=1", "unknown algorithm 'ppgaa'. Did you mean 'ppga'"),
        ("ppga:strategy.sigma0=-1", "--strategy.sigma0 must be a positive number"),
        ("ppga:strategy.sigma0=x", "strategy.sigma0 must be a number, got 'x'"),
        ("ppga:strategy.sigma=1", "Did you mean 'strategy.sigma0'"),
        ("ppga:ppo.reset-optimizer=yes", "ppo.reset_optimizer must be true or false, got 'yes'"),
        ("map-elites:strategy.sigma0=1", "unknown setting 'strategy.sigma0'"),
    ],
)
def test_a_system_is_checked_before_anything_runs(system: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        plan(tmp_path, "map-elites", system)
    assert message in str(error.value)
