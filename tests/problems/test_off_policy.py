"""Off-policy problems: what the replay buffer holds, against the counters of a run and slow versions."""

from typing import Any

import jax
import numpy as np
import pytest

from ppga.policies.policy import Policy
from ppga.problems import off_policy
from ppga.rollouts import Evaluator, EvaluatorSettings
from ppga.runs.build import make_algorithm

from helpers.settings import settings, slider

EPISODES = {"evaluation.episodes": 2, "confirm.episodes": 3, "confirm.recheck": 2, "td3.buffer_size": 10_000}


def started(algorithm: str) -> Any:
    """An algorithm on the slider with several episodes of each evaluation."""
    made = make_algorithm(slider(), settings(algorithm, **EPISODES))
    made.problem.open(None)
    made.start()
    return made


@pytest.fixture(scope="module")
def pga_me() -> Any:
    return started("pga-me")


@pytest.fixture(scope="module")
def qdpg() -> Any:
    return started("qdpg")


@pytest.mark.parametrize("name", ["pga-me", "qdpg", "td3ga", "cma-maega-td3-es"])
def test_every_simulated_step_enters_the_replay_buffer(name: str, pga_me: Any, qdpg: Any) -> None:
    """Those of first evaluations, of confirmations and of re-evaluations; within the announced number."""
    algorithm = {"pga-me": pga_me, "qdpg": qdpg}.get(name) or started(name)
    replay, evaluated = algorithm.problem.replay, 2 * algorithm.evaluations
    for _ in range(2):
        before = replay.written
        algorithm.step()
        assert replay.written - before <= replay.burst
    assert algorithm.episodes > evaluated, "something was confirmed"
    assert replay.written == algorithm.env_steps - algorithm.problem.warmup_steps
    assert replay.written == 20 * algorithm.episodes, "episodes of the slider do not end early"


def test_evaluations_in_groups_equal_those_of_each_group(
    pga_me: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three policies, two at a time, the second of which is not evaluated."""
    problem, state = pga_me.problem, pga_me.problem_state
    policies = 3 * problem.random(jax.random.key(1), 3)
    monkeypatch.setattr(off_policy, "LARGEST_RECORDING", 2 * 2 * 20 * 4 * problem.layout.width)
    written, key = problem.replay.written, jax.random.key(2)
    scores = problem.evaluate(state, policies, key, 2, np.array([True, False, True]))
    evaluator = Evaluator(problem.task, problem.actor, EvaluatorSettings(2))
    fields = problem.stored_fields(state)
    rewards = []
    for number, rows in enumerate(([0, 1], [2, 2])):
        group = Policy.of_elite(
            {"solution": policies[rows]} | {name: np.stack([field] * 2) for name, field in fields.items()}
        )
        expected, _ = evaluator(group, jax.random.fold_in(key, number))
        np.testing.assert_allclose(scores.objective[rows[0]], expected.objective[0].mean(), rtol=1e-5)
        np.testing.assert_allclose(scores.measures[rows[0]], expected.measures[0].mean(axis=0), rtol=1e-5)
        rewards += expected.objective[0].tolist()
    assert scores.policies == 2
    assert problem.replay.written == written + 2 * 2 * 20
    stored = problem.layout.split(problem.replay.at(np.arange(written, written + 80))).gains[:, 0]
    np.testing.assert_allclose(np.asarray(stored).reshape(4, 20).sum(axis=1), rewards, rtol=1e-4)


def test_policies_are_varied_by_their_own_critics_on_the_same_transitions(qdpg: Any) -> None:
    """Three policies on two critics, together and each by itself."""
    problem, state = qdpg.problem, qdpg.problem_state
    policies, critics, key = 3 * problem.random(jax.random.key(1), 3), np.array([0, 1, 0]), jax.random.key(3)
    together = problem.policy_gradient_steps(state, policies, critics, key, 4)
    for number in range(3):
        one = slice(number, number + 1)
        alone = problem.policy_gradient_steps(state, policies[one], critics[one], key, 4)
        np.testing.assert_allclose(together[one], alone, atol=1e-5)
        other = problem.policy_gradient_steps(state, policies[one], 1 - critics[one], key, 4)
        assert np.abs(other - alone).max() > 1e-3, "critics differ"


@pytest.mark.parametrize(
    ("batches", "group", "sizes"), [(12, 3, [6, 6]), (8, 2, [4, 4]), (5, 1, [5]), (14, 2, [2] * 7)]
)
def test_samples_come_in_chunks_of_one_size(
    pga_me: Any, monkeypatch: pytest.MonkeyPatch, batches: int, group: int, sizes: list[int]
) -> None:
    """So that programs are compiled once; of at most seven batches here, unless a group has more."""
    problem = pga_me.problem
    batch = problem.td3.config.batch_size
    monkeypatch.setattr(off_policy, "MAX_SAMPLE_SIZE", 7 * batch * problem.layout.width)
    chunks = list(problem.samples(pga_me.problem_state, jax.random.key(0), batches, group))
    assert [chunk.shape for chunk in chunks] == [(size, batch, problem.layout.width) for size in sizes]
    numbers = np.concatenate([np.asarray(chunk)[:, :, 0].ravel() for chunk in chunks])
    assert len(np.unique(numbers)) > 0.5 * numbers.size, "chunks hold different transitions"


def test_a_gradient_is_the_mean_over_its_batches(pga_me: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In several chunks, and at once."""
    problem, state = pga_me.problem, pga_me.problem_state
    solution, key = problem.random(jax.random.key(1), 1)[0], jax.random.key(2)
    (rows,) = problem.samples(state, key, 6)
    observation = problem.layout.split(rows.reshape(-1, rows.shape[-1])).observation
    expected = problem.td3.gradient(solution, state.critics.parameters[0, 0], observation)
    np.testing.assert_allclose(problem.gradient(state, 0, solution, key, 6), expected, atol=1e-6)
    monkeypatch.setattr(problem, "samples", lambda *_: iter([rows[:2], rows[2:4], rows[4:]]))
    np.testing.assert_allclose(problem.gradient(state, 0, solution, key, 6), expected, atol=1e-6)
