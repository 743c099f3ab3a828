"""With XLA as users have it; `test_rollouts.py` runs this."""

import os
from dataclasses import replace

import jax
import numpy as np
import pytest

from ppga.policies import Network, init_policy
from ppga.rollouts import Judge, Scores
from ppga.tasks import robot


def test_nothing_is_left_out() -> None:
    assert "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ
    assert "xla_cpu" not in os.environ.get("XLA_FLAGS", "")


@pytest.mark.parametrize(
    ("sample", "others"),
    [
        (True, (3, 7)),
        pytest.param(True, (2,), marks=pytest.mark.long),
        pytest.param(False, (2, 3), marks=pytest.mark.long),
        pytest.param(False, (7,), marks=pytest.mark.long),
    ],
)
def test_scores_do_not_depend_on_how_policies_are_shared_among_threads(
    sample: bool, others: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven policies by one caller, and by so many; by seven, each policy is alone."""
    network = Network((11, 8, 3))
    keys = jax.random.split(jax.random.key(0), 7)
    policies = jax.vmap(lambda key: init_policy(key, network, 0.4))(keys)
    policies = replace(policies, parameters=3 * policies.parameters)

    def scores(callers: int) -> Scores:
        task = robot("hopper", episode_length=40, threads=3)
        monkeypatch.setattr(task.physics, "callers", lambda _: callers)
        return Judge(task, network, 2, sample)(policies, jax.random.key(1))[0]

    whole = scores(1)
    assert whole.objective.shape == (7, 2)
    assert len(np.unique(whole.objective)) == 14
    for callers in others:
        jax.tree.map(np.testing.assert_array_equal, scores(callers), whole)
