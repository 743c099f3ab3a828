"""`ppga train` as a user calls it: two stages of options, help, settings from files, and resumed runs."""

import json
from pathlib import Path

import pytest

from ppga.algorithms import ALGORITHMS, config_from_json, preset
from ppga.cli import main
from ppga.cli.options import options_of, parse
from ppga.cli.train import parse_request
from ppga.config import Budget, setting_types
from ppga.errors import InputError

from helpers.commands import command, run_main


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_help_shows_the_common_options_of_the_algorithm(algorithm: str) -> None:
    for name in ALGORITHMS[algorithm].presets:
        words = ("train", "walker2d", "--algorithm", algorithm, "--preset", name, "--help")
        assert len(run_main(main, "ppga", *words, columns=80).stdout.splitlines()) <= 60
        result = command(*words)
        assert result.returncode == 0, result.stderr
        config, _ = preset(name, "walker2d", algorithm)
        for option in options_of(config):
            assert (f"  {option.usage} " in result.stdout) == option.common, option.name


def test_help_has_the_defaults_of_task_and_preset() -> None:
    result = command("train", "walker2d", "--preset", "paper", "--help-all")
    assert "--branches INT" in result.stdout
    assert "(lambda) [300]" in " ".join(result.stdout.split())
    assert "{zero,random}" in result.stdout, "choices are listed"
    config, _ = preset("paper", "walker2d")
    for option in options_of(config):
        assert f"{option.usage} " in result.stdout
        assert option.text, f"{option.name} has no help"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_setting_has_help(algorithm: str) -> None:
    for name in ALGORITHMS[algorithm].presets:
        config, _ = preset(name, "walker2d", algorithm)
        assert [option.name for option in options_of(config) if not option.text] == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "no task given. Choose one of halfcheetah,"),
        (["halfcheeta"], "Did you mean 'halfcheetah'?"),
        (["hopper", "ant"], "one task is trained at a time, got hopper, ant"),
        (["hopper", "--task", "ant"], "one task is trained at a time, got hopper, ant"),
        (["hopper", "--preset", "desktop"], "unknown preset 'desktop'"),
        (
            ["hopper", "--algorithm", "pga-me", "--preset", "paper-scripts"],
            "pga-me has no preset paper-scripts; choose one of laptop, paper, smoke.",
        ),
        (["hopper", "--algorithm", "pgga"], "Did you mean 'ppga'?"),
        (["hopper", "--minutes", "0"], "the budget of minutes must be positive"),
        (["hopper", "--minutes", "many"], "minutes"),
        (["hopper", "--minutes"], "--minutes needs a value"),
        (["hopper", "--minutes", "1", "--minutes", "2"], "--minutes is given twice"),
        (["hopper", "--ppo.environments", "7"], "--ppo.environments 6 or 8 can"),
        (["hopper", "--ppo.enviroments", "8"], "Did you mean --ppo.environments?"),
        (["hopper", "--archive.alpha", "1.5"], "alpha must lie in [0, 1]"),
        (["hopper", "--init-from", "nowhere"], "nowhere: looked for"),
        (["hopper", "--physics", "mjx"], "Did you mean --simulation.physics?"),
        (
            ["hopper", "--algorithm", "map-elites", "--legs.iterations", "3"],
            "unknown option --legs.iterations",
        ),
        (["hopper", "--algorithm", "pga-me", "--branches", "3"], "unknown option --branches"),
        (["hopper", "--algorithm", "pga-me", "--search.batch-size", "3"], "Did you mean --batch-size?"),
        (["hopper", "--strategy.kind", "sgd"], "xnes, cma-es"),
        (["hopper", "--config", "nowhere.yaml"], "cannot read nowhere.yaml: No such file"),
        (["--resume", "nowhere"], "nowhere is not a run's folder"),
        (["walkr2d", "--help"], "Did you mean 'walker2d'?"),
        (["hopper", "--workers", "2", "--dry-run"], "need --cluster ray or --cluster jax"),
        (["hopper", "--init-from", "nowhere", "--dry-run"], "nowhere: looked for"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(arguments: list[str], words: str, tmp_path: Path) -> None:
    result = command("train", *arguments, folder=tmp_path)
    assert result.returncode == 2, result.stdout
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_options_are_parsed_by_their_types() -> None:
    config, _ = preset("laptop", "hopper")
    kinds = dict(setting_types(type(config)))
    words = "--archive.shape 5 7 hopper --archive.threshold-min -3 --ppo.reset-optimizer --seed=4"
    assert parse([*words.split(), "--log.no-tensorboard", "--confirm", "none"], kinds) == (
        ["hopper"],
        {
            "archive.shape": "5 7", "archive.threshold_min": "-3", "ppo.reset_optimizer": "true",
            "seed": "4", "log.tensorboard": "false", "confirm": "none",
        },
    )  # fmt: skip
    assert parse(["--ppo.reset-optimizer", "false"], kinds)[1] == {"ppo.reset_optimizer": "false"}
    assert parse(["--no-log.tensorboard"], kinds) == parse(["--log.tensorboard", "false"], kinds)
    for word in ("--no-seed", "-s"):
        with pytest.raises(InputError, match=f"unknown option {word}"):
            parse([word], kinds)


def test_sections_are_added_and_removed() -> None:
    config = parse_request(["hopper", "--preset", "paper", "--noise", "default", "--ppo.std", "fixed"]).config
    assert config.noise is not None  # type: ignore[attr-defined]
    config = parse_request(["hopper", "--confirm", "none", "--legs", "none", "--phases.every", "0"]).config
    assert config.confirm is None
    assert config.legs is None  # type: ignore[attr-defined]


def test_a_value_that_is_a_task_does_not_choose_the_preset(tmp_path: Path) -> None:
    result = command("train", "--output", "ant", "hopper", "--preset", "smoke", "--dry-run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "ppga on hopper" in result.stdout
    row = next(line for line in result.stdout.splitlines() if "archive.threshold_min" in line)
    assert row.split()[-1] == "0.0", "hopper's, not ant's"


def test_a_dry_run_shows_settings_and_cost_and_writes_nothing(tmp_path: Path) -> None:
    result = command("train", "halfcheetah", "--preset", "paper", "--dry-run", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    for words in ("branches", "300", "memory, full archives", "an iteration takes about", "days"):
        assert words in result.stdout
    assert list(tmp_path.iterdir()) == []


# Settings from files.


def test_a_yaml_file_gives_settings_that_options_override(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(
        "task: walker2d\npreset: smoke\nseed: 3\nppo:\n  learning_rate: 3e-4\n  gamma: 0.98\n"
        "archive:\n  shape: [4, 5]\nlegs: null\nbudget:\n  iterations: 7\n"
    )
    request = parse_request(["--config", str(file), "--ppo.gamma", "0.9"])
    smoke, _ = preset("smoke", "walker2d")
    assert request.task == "walker2d"
    assert request.budget == Budget(iterations=7)
    assert request.config == smoke.replace(
        **{
            "seed": 3, "ppo.learning_rate": 3e-4, "ppo.gamma": 0.9, "archive.shape": (4, 5), "legs": None
        }
    )  # fmt: skip
    assert parse_request(["hopper", "--config", str(file)]).task == "hopper"


@pytest.mark.parametrize("algorithm", ["ppga", "pga-me", "sep-cma-mae"])
def test_the_settings_of_a_run_are_read_from_its_config_json(algorithm: str, tmp_path: Path) -> None:
    from ppga.runs.folder import RunFolder

    config, _ = preset("smoke", "ant", algorithm)
    config = config.replace(seed=9, confirm=None)
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.create("ant", config, Budget(minutes=3.0), {"task": {}})
    content = json.loads(run.config.read_text())
    assert config_from_json(content["config"]) == config
    request = parse_request(["--config", str(run.config)])
    assert (request.task, request.config, request.budget) == ("ant", config, Budget(minutes=3.0))
    assert not request.resumed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed: [", "cannot be read"),
        ("- 1", "must contain a mapping of setting names to values"),
        ("sead: 3", "Did you mean 'seed'?"),
        ("ppo:\n  gama: 0.9", "Did you mean 'gamma'?"),
        ("ppo: 3", "ppo: expected a mapping of setting names to values, got 3"),
        ("seed: three", "seed: expected int, got 'three'"),
        ("task: 3", "task must be a text, got 3"),
        ("algorithm: pgga", "Did you mean 'ppga'?"),
        ("budget: 3", "Budget: expected"),
        ("config: 3", "config must be a mapping of setting names to values, got 3"),
        ("a: &a [1]\nb: " + "[" * 3000, "cannot be read"),
    ],
)
def test_a_mistake_in_a_file_is_one_message(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "settings.yaml").write_text(text)
    result = command("train", "hopper", "--config", "settings.yaml", "--iterations", "1", folder=tmp_path)
    assert result.returncode == 2
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert len(list(tmp_path.iterdir())) == 1


# Resumed runs.


def test_a_resumed_run_keeps_its_algorithm(tmp_path: Path) -> None:
    words = ("train", "sphere", "--algorithm", "map-elites", "--iterations", "1", "--output", "run")
    assert command(*words, folder=tmp_path).returncode == 0
    result = command("train", "--resume", "run", "--algorithm", "ppga", folder=tmp_path)
    assert result.returncode == 2
    assert "is a run of map-elites, not of ppga" in result.stderr
    result = command("train", "--resume", "run", "--help", folder=tmp_path)
    assert result.returncode == 0
    assert "Settings of map-elites on sphere, as in run" in result.stdout
    assert "--batch-size INT" in result.stdout
    assert "--branches" not in result.stdout


def test_a_run_is_resumed_with_its_own_settings_only(tmp_path: Path) -> None:
    result = command(
        "train", "sphere", "--iterations", "2", "--output", "run", "--branches", "4", folder=tmp_path
    )
    assert result.returncode == 0, result.stderr
    assert "QD-score" in result.stdout
    for arguments, words in (
        (["--branches", "8"], "branches (was 4, now 8)"),
        (["hopper"], "is a run of sphere, not of hopper"),
        (["--algorithm", "map-elites"], "is a run of ppga, not of map-elites"),
        (["--output", "elsewhere"], "leave --output out"),
        (["--preset", "smoke"], "leave --preset out"),
        (["--config", "run/config.json"], "leave --config out"),
    ):
        result = command("train", "--resume", "run", *arguments, folder=tmp_path)
        assert result.returncode == 2
        assert words in result.stderr
    before = (tmp_path / "run" / "config.json").read_text()
    result = command("train", "--resume", "run", "--iterations", "9", "--dry-run", folder=tmp_path)
    assert result.returncode == 0
    assert "memory" in result.stdout
    assert (tmp_path / "run" / "config.json").read_text() == before
    result = command("train", "--resume", "run", "--branches", "4", folder=tmp_path)
    assert result.returncode == 0
    assert "nothing to do" in result.stdout
    result = command("train", "--resume", "run", "--iterations", "3", folder=tmp_path)
    assert result.returncode == 0
    assert "resuming after iteration 2" in result.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3]
