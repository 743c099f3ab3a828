"""Settings that cannot work are rejected before anything is compiled or written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ppga
from ppga import Budget, InputError
from ppga.limits import LONGEST_EPISODE
from ppga.runs.build import make_algorithm

from helpers.runs import SPHERE

CONFIG = replace(SPHERE, objective=ppga.PPGAConfig().objective)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "--seed must lie"),
        ({"branches": 1}, "--branches must be an integer of at least 2, got 1"),
        ({"branches": 2.5}, "branches: expected int, got 2.5"),
        ({"evaluation.episodes": 0}, "--evaluation.episodes must be an integer"),
        ({"strategy.sigma0": 0.0}, "sigma0 must be a positive"),
        (
            {"ppo.environments": 100},
            r"by 3 agents \(reward and 2 measures\); --ppo.environments 99 or 102 can",
        ),
        ({"ppo.environments": 2}, "--ppo.environments 3 can"),
        ({"ppo.minibatches": 7}, "cannot be cut into 7 minibatches"),
        ({"ppo.gamma": 1.5}, "--ppo.gamma must lie"),
        ({"ppo.learning_rate": float("nan")}, "--ppo.learning-rate must lie"),
        ({"archive.alpha": 2.0}, r"--archive.alpha must lie in \[0, 1\]"),
        ({"archive.threshold_min": None}, "needs an --archive.threshold-min"),
        ({"network.actor": (0,)}, "--network.actor"),
        ({"log.checkpoint_seconds": -1.0}, "--log.checkpoint-seconds"),
        ({"init_from": "nowhere"}, "no archive in .*nowhere"),
        ({"objective.scaling": "scalled"}, "objective.scaling: expected"),
        ({"ppo.std": "Fixed"}, "ppo.std: expected"),
        ({"log.wandb": "mine"}, r"ppga\[wandb\]"),
    ],
)
def test_settings_that_cannot_work_are_rejected_before_anything_is_written(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        ppga.train(
            "halfcheetah", CONFIG.replace(**changes), budget=Budget(iterations=1), output=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_unknown_settings_and_algorithms_are_rejected_with_the_closest_name() -> None:
    with pytest.raises(InputError, match="Did you mean 'branches'"):
        CONFIG.replace(branchs=3)
    with pytest.raises(InputError, match="Did you mean 'ppga'"):
        ppga.preset("smoke", "halfcheetah", "pppga")


def test_plain_ppo_needs_environments_for_one_agent_only() -> None:
    config, _ = ppga.preset("laptop", "halfcheetah", "ppo")
    make_algorithm("halfcheetah", config.replace(**{"ppo.environments": 100}))
    with pytest.raises(InputError, match="99 or 102 can"):
        make_algorithm("halfcheetah", CONFIG.replace(**{"ppo.environments": 100}))


def test_episodes_that_no_memory_or_time_suffices_for_are_rejected() -> None:
    config, _ = ppga.preset("smoke", "hopper")
    with pytest.raises(InputError, match=r"--simulation\.episode-length must be at most 100,000"):
        make_algorithm("hopper", config.replace(**{"simulation.episode_length": LONGEST_EPISODE + 1}))
    with pytest.raises(InputError, match="at most 100,000"):
        ppga.make_task("hopper", episode_length=LONGEST_EPISODE + 1)
