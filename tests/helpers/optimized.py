"""Tests with all of XLA's optimizations, as users have them; `test_rollouts.py` runs this file."""

import os
from dataclasses import replace

import jax
import numpy as np
import pytest

from ppga.policies.network import Network
from ppga.policies.policy import init_policy
from ppga.rollouts import Evaluator, EvaluatorSettings, Scores
from ppga.tasks import robot


def test_no_optimization_is_disabled() -> None:
    assert "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ
    assert "xla_cpu" not in os.environ.get("XLA_FLAGS", "")


@pytest.mark.parametrize(
    ("sample_actions", "threads"),
    [
        (True, (3, 7)),
        pytest.param(True, (2,), marks=pytest.mark.long),
        pytest.param(False, (2, 3), marks=pytest.mark.long),
        pytest.param(False, (7,), marks=pytest.mark.long),
    ],
)
def test_scores_do_not_depend_on_how_policies_are_shared_among_threads(
    sample_actions: bool, threads: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven policies in one thread, and in several; in seven threads, each policy has its own."""
    network = Network((11, 8, 3))
    keys = jax.random.split(jax.random.key(0), 7)
    policies = jax.vmap(lambda key: init_policy(key, network, 0.4))(keys)
    policies = replace(policies, parameters=3 * policies.parameters)

    def scores(callers: int) -> Scores:
        task = robot("hopper", episode_length=40, threads=3)
        monkeypatch.setattr(task.physics, "callers", lambda _: callers)
        return Evaluator(task, network, EvaluatorSettings(2, sample_actions))(policies, jax.random.key(1))[0]

    expected = scores(1)
    assert expected.objective.shape == (7, 2)
    assert len(np.unique(expected.objective)) == 14
    for callers in threads:
        jax.tree.map(np.testing.assert_array_equal, scores(callers), expected)
