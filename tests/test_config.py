"""Settings: JSON, dotted names, and presets that fit their tasks."""

import json
from dataclasses import replace

import pytest

import ppga
from ppga import Budget
from ppga.algorithms.registry import config_from_json, config_to_json
from ppga.config import differences, from_json, to_json
from ppga.tasks import sample

from helpers.runs import SPHERE


@pytest.mark.parametrize("algorithm", ppga.ALGORITHMS)
def test_configs_survive_json(algorithm: str) -> None:
    for name in ppga.ALGORITHMS[algorithm].presets:
        for task in (*ppga.TASKS, "sphere"):
            config, budget = ppga.preset(name, task, algorithm)
            assert config_from_json(json.loads(json.dumps(config_to_json(config)))) == config
            assert from_json(Budget, json.loads(json.dumps(to_json(budget)))) == budget


@pytest.mark.parametrize("algorithm", ppga.ALGORITHMS)
def test_presets_fit_their_tasks(algorithm: str) -> None:
    for name in ppga.ALGORITHMS[algorithm].presets:
        for task in ppga.TASKS:
            config, budget = ppga.preset(name, task, algorithm)
            config.check(len(sample(task).measure_names))
            budget.check()


def test_the_papers_preset_has_no_extensions() -> None:
    config, _ = ppga.preset("paper", "halfcheetah")
    assert isinstance(config, ppga.PPGAConfig)
    assert not config.ppo.adaptive_learning_rate
    extensions = (config.confirm, config.objective, config.phases, config.legs, config.noise)
    assert extensions == (None,) * len(extensions)


def test_differences_name_the_setting() -> None:
    other = replace(SPHERE, branches=9).replace(**{"ppo.gamma": 0.5})
    assert set(differences(SPHERE, other)) == {("branches", 8, 9), ("ppo.gamma", SPHERE.ppo.gamma, 0.5)}
    without = replace(SPHERE, noise=None, legs=ppga.PPGAConfig().legs)
    assert list(differences(SPHERE, without)) == [("legs", None, without.legs)]
