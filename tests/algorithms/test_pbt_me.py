"""PBT-MAP-Elites: the population at the start, and its exchange with the archive."""

from typing import Any

import jax
import numpy as np
import pytest

import ppga
from ppga.algorithms.pbt_me import PBTME
from ppga.archives import ArchiveConfig, EliteArchive
from ppga.runs.build import make_algorithm

from helpers.settings import slider


@pytest.fixture(scope="module")
def algorithm() -> PBTME:
    """Ten agents among sixteen policies, each evaluated once, on a robot with two feet."""
    preset, _ = ppga.preset("smoke", "halfcheetah", "pbt-me-sac")
    config = preset.replace(
        confirm=None, batch_size=16, population=10, best_share=0.1, worst_share=0.2, archive_share=0.4
    )
    algorithm = make_algorithm("halfcheetah", config)
    assert isinstance(algorithm, PBTME)
    algorithm.start()
    return algorithm


def test_a_population_and_further_agents_are_evaluated_before_they_learn(algorithm: PBTME) -> None:
    """They are different from each other already."""
    assert algorithm.evaluations == algorithm.episodes == 16
    assert algorithm.env_steps == 64 * 100 + 16 * 20
    elites, agents = algorithm.elites.elites(), algorithm.problem_state.agents
    assert len(elites["index"]) >= 4
    assert np.ptp(elites["objective"]) > 1
    actors = np.asarray(agents.actor)
    from_population = [(actors == solution).all(axis=1).any() for solution in elites["solution"]]
    assert any(from_population)
    assert not all(from_population)
    assert elites["critics"].shape[1:] == agents.critics.shape[1:]
    assert algorithm.problem.actor.activation == "tanh", "with ReLU, robots with new policies do not move"


def test_the_worst_agents_are_replaced_by_the_best_ones_and_by_elites(algorithm: PBTME) -> None:
    """Of 10: the worst 2 become copies of the best one, and the next 4 are elites with their critics."""
    problem, agents = algorithm.problem, algorithm.problem_state.agents
    archive = EliteArchive(
        problem.solution_size, (4, 4), ((0, 1), (0, 1)), problem.fields, 0.0, ArchiveConfig()
    )
    exchanging = PBTME(problem, algorithm.config, archive)
    exchanging.problem_state = algorithm.problem_state
    elite: Any = jax.tree.map(lambda leaf: leaf[:1] + 1000, agents)
    fields = problem.stored_fields_of(exchanging.problem_state, elite)
    archive.add(np.asarray(elite.actor), np.ones(1), np.full((1, 2), 0.5), **fields)
    exchanging.exchange(np.array([5.0, 9.0, 1.0, 4.0, 3.0, 2.0, 6.0, 7.0, 8.0, -np.inf]))
    after = exchanging.problem_state.agents
    owners = np.arange(10)
    owners[[2, 9]] = 1, 1
    assert (np.asarray(exchanging.problem_state.owners) == owners).all(), "experience moves with its agent"
    for worst in (2, 9):
        np.testing.assert_array_equal(after.actor[worst], agents.actor[1])
        np.testing.assert_array_equal(after.critics[worst], agents.critics[1])
        assert (np.asarray(after.hyper[worst]) != np.asarray(agents.hyper[1])).any()
    from_archive = [number for number in range(10) if (after.actor[number] == elite.actor[0]).all()]
    assert from_archive == [0, 3, 4, 5]
    for number in from_archive:
        np.testing.assert_array_equal(after.critics[number], elite.critics[0])
    unchanged = [number for number in range(10) if (after.actor[number] == agents.actor[number]).all()]
    assert unchanged == [1, 6, 7, 8]


def test_copies_learn_from_the_experience_of_the_best_agents() -> None:
    """Replay buffers move with their agents: against copies of the experience itself, in three iterations."""
    preset, _ = ppga.preset("smoke", slider(), "pbt-me-sac")
    config = preset.replace(**{"sac.buffer_size": 100, "confirm": None})
    algorithm = make_algorithm(slider(), config)
    assert isinstance(algorithm, PBTME)
    problem = algorithm.problem
    problem.open(None)
    algorithm.start()
    state, size = algorithm.problem_state, config.population  # type: ignore[attr-defined]
    experience: list[list[bytes]] = [[] for _ in range(size)]
    exchanges = [(np.array([0]), np.array([2])), (np.array([1, 2]), np.array([0, 0])), (np.array([0]), None)]
    for number, (replaced, parents) in enumerate(exchanges):
        written = problem.replay.written
        state, _ = problem.learn(state, jax.random.key(number))
        new = problem.replay.at(np.arange(written, problem.replay.written))
        for agent in range(size):
            experience[agent] += [row.tobytes() for row in new[:, agent]]
        buffers = [set(own[-100:]) for own in experience]
        normalized = np.asarray(problem._sample(state, np.random.default_rng(number), 300))
        for agent in range(size):
            drawn = {row.tobytes() for row in normalized[agent].reshape(-1, normalized.shape[-1])}
            assert drawn == buffers[agent]
        agents = jax.tree.map(lambda leaf, replaced=replaced: leaf[replaced], state.agents)
        state = problem.with_agents(state, replaced, agents, parents)
        if parents is not None:
            inherited = [list(experience[parent]) for parent in parents]
            for agent, own in zip(replaced, inherited, strict=True):
                experience[agent] = own


def test_iso_line_varies_policies_critics_and_temperatures(algorithm: PBTME) -> None:
    agents = algorithm.problem_state.agents
    both = algorithm.with_varied_elites(agents)
    elites = algorithm.elites.elites()
    fields = {"actor": "solution", "critics": "critics", "log_temperature": "log_temperature"}
    for name, field in fields.items():
        children = np.asarray(getattr(both, name)[10:]).reshape(6, -1)
        parents = elites[field].reshape(len(elites["index"]), -1)
        assert (children[:, None] != parents[None]).any(axis=-1).all(), "each differs from all elites"


def test_an_iteration_can_begin_with_fresh_optimizers() -> None:
    preset, _ = ppga.preset("smoke", slider(), "pbt-me-sac")
    counts = []
    for fresh in (True, False):
        algorithm = make_algorithm(slider(), preset.replace(**{"sac.fresh_optimizers": fresh}))
        assert isinstance(algorithm, PBTME)
        algorithm.problem.open(None)
        algorithm.start()
        state = algorithm.problem_state
        for number in range(2):
            state, _ = algorithm.problem.learn(state, jax.random.key(number))
        counts.append(np.asarray(state.agents.optimizers[0].count).max())
    assert counts[1] == 2 * counts[0] > 0
