"""PPO with an archive: the policies between minibatch steps."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.algorithms.ppo_archive import PPOArchive
from ppga.runs.build import make_algorithm

from helpers.settings import settings, slider


def test_the_policies_between_minibatch_steps_end_at_the_next_search_policy() -> None:
    """Exploration noise that is reset in every iteration is reset before the first update of a walk only."""
    preset, _ = ppga.preset("smoke", "hopper", "ppo-archive")
    config: Any = preset.replace(**{"ppo.std": "reset"})
    algorithm = make_algorithm("hopper", config)
    assert isinstance(algorithm, PPOArchive)
    algorithm.start()
    problem, weights, key = algorithm.problem, np.array([1.0, 0.0]), jax.random.key(1)
    reduced = replace(algorithm.problem_state.policy, log_std=algorithm.problem_state.policy.log_std - 1)

    def state() -> Any:
        """A copy of the state, whose environments a rollout may overwrite, with less noise."""
        return replace(jax.tree.map(jax.numpy.copy, algorithm.problem_state), policy=reduced)

    before, after, policies, _ = problem.walk_recorded(state(), weights, key, first=True)
    assert policies.shape == (config.ppo.epochs * config.ppo.minibatches, problem.solution_size)
    np.testing.assert_array_equal(policies[-1], problem.solution(after))
    assert (policies[0] != problem.solution(before)).any()
    assert before.policy.normalizer.count < after.policy.normalizer.count
    np.testing.assert_allclose(before.policy.log_std, np.log(config.ppo.initial_std), rtol=1e-6)
    later, *_ = problem.walk_recorded(state(), weights, key, first=False)
    np.testing.assert_array_equal(later.policy.log_std, reduced.log_std)


def test_the_policies_after_all_minibatch_steps_of_a_walk_can_be_evaluated() -> None:
    """Of two of three updates, and the search policy is the last of them."""
    config = settings("ppo-archive", walk_updates=3, recorded_updates=2, confirm=None)
    algorithm: Any = make_algorithm(slider(), config)
    algorithm.start()
    elites: list[np.ndarray] = []
    add = algorithm.add_elites

    def recorded(solutions: np.ndarray, *args: Any) -> int:
        elites.append(solutions)
        return int(add(solutions, *args))

    algorithm.add_elites = recorded
    record = algorithm.step()
    each = config.ppo.epochs * config.ppo.minibatches  # type: ignore[attr-defined]
    assert [len(solutions) for solutions in elites] == [each, each]
    assert record["evaluations"] == 2 * each
    assert (elites[0][-1] != elites[1][0]).any()
    np.testing.assert_array_equal(elites[1][-1], algorithm.problem.solution(algorithm.problem_state))
    with pytest.raises(InputError, match="--recorded-updates must be at most 3"):
        config.replace(recorded_updates=4).check(1)
