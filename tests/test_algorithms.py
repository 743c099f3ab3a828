"""Every algorithm in the one harness: it runs, resumes exactly, and what it writes can be used."""

import io
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import ppga
from ppga import Budget, InputError, Iteration, PPGAConfig
from ppga.algorithms import ALGORITHMS, PPGA
from ppga.algorithms.cma_maega import CMAMAEGA, mirrored
from ppga.algorithms.map_elites import MAPElites
from ppga.algorithms.pbt_me import PBTME
from ppga.algorithms.pga_me import PGAME
from ppga.algorithms.ppga import recombined
from ppga.algorithms.ppo_archive import PPOArchive
from ppga.algorithms.problem import Effort, Judgement
from ppga.algorithms.qdpg import OTHERS, Novelty
from ppga.algorithms.sphere import OPTIMUM, Sphere
from ppga.analysis import corrected
from ppga.analysis.report import report
from ppga.analysis.runs import read_run
from ppga.archives import ArchiveConfig, ArchivePair
from ppga.runs.display import Lines
from ppga.runs.loop import make_algorithm
from ppga.strategies import CMAES
from ppga.strategies.plain import load_plain_state, plain_state
from ppga.viewer.player import Player

from conftest import lines, same_runs

KEEPING = ppga.KeepingConfig(checkpoint_seconds=0, snapshot_iterations=1, tensorboard=False)
LEARNING = ("pga-me", "qdpg", "cma-maega-td3-es", "td3ga", "pbt-me-sac", "ppo-archive")
"""Those that need environments."""
ON_ROBOTS = ("map-elites", "sep-cma-mae", "ppga-no-measures", *LEARNING)
"""Of the others, those that nothing else runs on a robot."""


def on_sphere(algorithm: str, **search: Any) -> PPGAConfig:
    settings = {"branches": 12, "sigma0": 5.0, "walk_updates": 1, "iso_sigma": 0.5, "line_sigma": 0.3}
    return PPGAConfig(
        algorithm=algorithm,
        seed=3,
        search=ppga.SearchConfig(**{**settings, **search}),
        archive=ArchiveConfig(alpha=0.3, threshold_min=0.0),
        keeping=KEEPING,
    )


def crash_in(iteration: int, run: Path, copy: Path) -> Callable[[Iteration], None]:
    """A callback that copies a run's folder as a kill in the middle of an iteration would leave it."""

    def watch(now: Iteration) -> None:
        if now.record["iteration"] == iteration:
            shutil.copytree(run, copy)

    return watch


def check_resume(task: str, config: PPGAConfig, iterations: int, whole: Path) -> None:
    """Run; run again from what a kill in the last but one iteration left; compare."""
    killed = whole.with_name(f"{whole.name}-killed")
    ppga.train(
        task,
        config,
        budget=Budget(iterations=iterations),
        output=whole,
        callbacks=[crash_in(iterations - 1, whole, killed)],
    )
    output = io.StringIO()
    ppga.resume(killed, budget=Budget(iterations=iterations), display=Lines(Console(file=output, width=300)))
    assert f"resuming after iteration {iterations - 2}" in output.getvalue()
    same_runs(whole, killed)


@pytest.mark.parametrize(
    ("algorithm", "search"),
    [
        ("ppga", {}),
        ("map-elites", {}),
        ("ppo", {}),
        ("ppga", {"strategy": "cma-es"}),
        ("ppga", {"step": "recombination"}),
        ("ppga", {"leg": 3, "reward_every": 2, "restart_at": "sparse"}),
        ("sep-cma-mae", {"emitters": 3}),
    ],
)
def test_what_was_killed_goes_on_exactly_on_the_sphere(
    algorithm: str, search: dict[str, Any], tmp_path: Path
) -> None:
    check_resume("sphere", on_sphere(algorithm, **search), 30, tmp_path / "run")
    scores = [line["qd_score"] for line in lines(tmp_path / "run")]
    assert scores[-1] > 1.05 * scores[4], "it finds more and more"


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A robot's run by any algorithm, made when first asked for, and compared with one that was killed."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def run(algorithm: str) -> Path:
        config, _ = ppga.preset("smoke", "hopper", algorithm)
        check_resume("hopper", replace(config, keeping=KEEPING), 5, folder / algorithm)
        return folder / algorithm

    return run


@pytest.fixture(params=ON_ROBOTS)
def learnt(request: pytest.FixtureRequest, run_of: Callable[[str], Path]) -> Path:
    return run_of(request.param)


def test_what_was_killed_goes_on_exactly_on_a_robot(learnt: Path) -> None:
    """As the fixture has found; and its records are all there."""
    for line in lines(learnt):
        for name in ("evaluations", "env_steps", "qd_score", "coverage", "best", "mean", "new_elites"):
            assert name in line
    assert [line["iteration"] for line in lines(learnt)] == [1, 2, 3, 4, 5]
    assert lines(learnt)[-1]["elites"] > 0


def test_what_it_leaves_can_be_used(learnt: Path) -> None:
    """The archive's own policy function does what the judge has played."""
    run = read_run(learnt)
    archive = ppga.load_archive(learnt)
    assert run.algorithm == archive.description["algorithm"]
    evaluation = corrected.evaluate(archive, 2)
    assert np.isfinite(evaluation.objective).all()
    task = ppga.make_task("hopper", episode_length=20)
    act = archive.policy(archive.best())
    network = ppga.networks.Network.of(archive.description["network"])
    elite = archive.elite(archive.best())
    seen = np.random.default_rng(0).normal(size=(7, task.observation_size)).astype(np.float32)
    policy = ppga.policies.Policy.of_elite(elite)
    expected = np.clip(policy.mean_action(network, jax.numpy.asarray(seen)), -1, 1)
    np.testing.assert_allclose(act(seen), expected, rtol=1e-4, atol=1e-5)
    assert act(seen).shape == (7, task.action_size)
    shown = Player(task, network).play(archive, archive.best())
    assert 1 <= len(shown) <= 20
    assert np.isfinite(shown.objective)


def test_a_report_has_figures_of_all_kinds_of_policies(run_of: Callable[[str], Path], tmp_path: Path) -> None:
    kinds = ("map-elites", "ppga-no-measures", "pbt-me-sac")  # never learnt, by PPO, by SAC
    page = report([run_of(name) for name in kinds], tmp_path)
    assert "could not be drawn" not in page.read_text()
    drawn = {file.name for file in (tmp_path / "figures").iterdir()}
    assert "hopper-qd_score-evaluations.svg" in drawn
    for name in kinds:
        for figure in (
            "heatmap.png",
            "heatmap-shared.png",
            "film.png",
            "gaits.png",
            "growth.gif",
            "times.png",
        ):
            assert f"hopper-{name}-{figure}" in drawn


def test_what_is_remembered_is_what_policies_saw_and_did() -> None:
    """On halfcheetah, whose speeds are far from 1: what the learner's actor makes of a row is its action."""
    config, _ = ppga.preset("smoke", "halfcheetah", "pga-me")
    made = make_algorithm("halfcheetah", config)
    problem: Any = made.problem
    problem.open(None)
    made.start()
    policies = 3 * problem.random(jax.random.key(1), 4)
    problem.judge(made.search, policies[None], jax.random.key(2))
    assert len(problem.replay) == 4 * 20
    rows = problem.replay.at(np.arange(80)).reshape(4, 20, -1)
    batch = problem.layout.split(problem.layout.seen(jax.numpy.asarray(rows), made.search.observation))
    for policy, seen, done in zip(policies, batch.observation, batch.action, strict=True):
        np.testing.assert_allclose(problem.actor(policy, seen), done, atol=1e-4)
    assert np.abs(np.asarray(batch.observation)).max() > 2
    np.testing.assert_allclose(batch.observation[:, 1:], batch.next_observation[:, :-1], atol=1e-5)


def test_steps_are_counted_as_they_are_played(learnt: Path) -> None:
    """Judging and learning, both: all that was judged, and nothing else, but for what learners play."""
    _, config, _ = ppga.runs.folder.RunFolder(learnt).read()
    last = lines(learnt)[-1]
    least = most = 64 * 100  # a look at what there is to see
    if config.algorithm == "pbt-me-sac":
        least = most = least + 5 * config.sac.population * config.sac.environments * config.sac.steps
    update = config.ppo.environments * config.ppo.rollout_length
    if config.algorithm == "ppo-archive":
        least = most = (1 + 5) * update
    if config.algorithm == "ppga-no-measures":  # gradients always, walks where there is something to gain
        least, most = (1 + 5) * update, (1 + 5 + 5) * update
    assert least < last["env_steps"] <= most + 20 * last["episodes"]
    assert last["episodes"] >= last["evaluations"]


def test_an_algorithm_that_needs_environments_says_so() -> None:
    for name in LEARNING:
        with pytest.raises(InputError, match=f"{name} learns in environments"):
            ppga.train("sphere", on_sphere(name), budget=Budget(iterations=1))


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("preset", ["laptop", "paper", "smoke"])
def test_presets_fit_every_task(name: str, preset: str) -> None:
    for task in ppga.TASKS:
        config, budget = ppga.preset(preset, task, name)
        assert config.algorithm == name
        budget.check()
        config.check(4 if task == "ant" else 1 if task == "hopper" else 2)


@pytest.mark.parametrize(
    ("algorithm", "part", "changes", "message"),
    [
        ("pga-me", "td3", {"critic_steps": 3}, "multiple of td3.delay"),
        ("pga-me", "td3", {"batch": 0}, "td3.batch"),
        ("pga-me", "td3", {"discount": 1.5}, "td3.discount must lie"),
        ("pga-me", "td3", {"buffer": 10**12}, "would fit"),
        ("td3ga", "search", {"walk_updates": 3}, "search.walk_updates must be a multiple"),
        ("pbt-me-sac", "sac", {"steps": 15}, "multiple of sac.chunk"),
        ("pbt-me-sac", "sac", {"best": 0.5, "worst": 0.5, "archived": 0.5}, "at most 1 together"),
        ("pbt-me-sac", "sac", {"rates": (1.0, 0.1)}, "rising pair"),
        ("pbt-me-sac", "sac", {"discounts": (0.9, 1.01)}, "must not exceed 1"),
        ("cma-maega-td3-es", "search", {"es_samples": 5}, "mirrored pairs"),
        ("map-elites", "search", {"line_sigma": -1.0}, "line_sigma must be at least 0"),
        ("pga-me", "search", {"gradient_share": 2.0}, "gradient_share must lie"),
        ("qdpg", "search", {"emitters": 2}, "qdpg has no emitters"),
        ("pbt-me-sac", "archive", {"shape": (10**9,)}, "a full archive of 1,000,000,000 cells"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    algorithm: str, part: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    config, budget = ppga.preset("smoke", "hopper", algorithm)
    config = replace(config, **{part: replace(getattr(config, part), **changes)})
    with pytest.raises(InputError, match=message):
        ppga.train("hopper", config, budget=budget, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The pieces.


def archives(cells: int = 4) -> ArchivePair:
    return ArchivePair(3, (cells, cells), ((0, 1), (0, 1)), {}, 0.0, ArchiveConfig())


def test_iso_line_is_the_published_variation() -> None:
    """Of two parents: noise around the first, spread along the line to the second."""
    algorithm = MAPElites(_plain(3), ppga.SearchConfig(iso_sigma=0.1, line_sigma=0.5), archives(), 0)
    parents = np.stack([np.zeros((20_000, 3)), np.tile([0.0, 0.0, 4.0], (20_000, 1))]).astype(np.float32)
    children = algorithm.vary(parents)
    np.testing.assert_allclose(children.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(children.std(axis=0), [0.1, 0.1, np.hypot(0.1, 2.0)], rtol=0.03)


def _plain(size: int) -> Any:
    return SimpleNamespace(solution_size=size, measure_names=("a", "b"), measure_ranges=((0, 1), (0, 1)))


def test_novelty_is_the_mean_distance_to_what_is_remembered() -> None:
    draws = np.random.default_rng(0)
    remembered = draws.integers(0, 2, (OTHERS, 2)).astype(np.float32)
    replay = SimpleNamespace(sample=lambda *_: np.concatenate([np.zeros((OTHERS, 5)), remembered], axis=1))
    problem: Any = SimpleNamespace(measure_names=("a", "b"), replay=replay)
    rows = np.concatenate([np.ones((2, 3, 5)), draws.integers(0, 2, (2, 3, 2))], axis=-1)
    more = Novelty.with_more(problem, rows, draws)
    for place in np.ndindex(2, 3):
        slow = np.mean([np.linalg.norm(rows[place][-2:] - other) for other in remembered])
        assert more[place][-1] == pytest.approx(slow, rel=1e-5)
        np.testing.assert_array_equal(more[place][:-1], rows[place])


def test_evolution_strategies_find_the_gradients_of_measures() -> None:
    """Of linear measures, whose gradients are known, in ten dimensions."""
    draws = np.random.default_rng(0)
    truth = draws.normal(size=(2, 10))
    noise = mirrored(draws, 1, 2000, 10)
    np.testing.assert_array_equal(noise[:, :1000], -noise[:, 1000:])
    measures = (noise[0] @ truth.T).astype(np.float32)
    judged = Judgement(np.zeros(2000), measures, np.zeros((2000, 2)), 0, 2000, 2000)
    algorithm: Any = SimpleNamespace(config=ppga.SearchConfig(es_sigma=0.02))
    found = CMAMAEGA.measure_gradients(algorithm, noise, judged)[0]
    for gradient, true in zip(found, truth, strict=True):
        assert gradient @ true / np.linalg.norm(gradient) / np.linalg.norm(true) > 0.97


class LearntSphere(Sphere):
    """The sphere for an algorithm that learns its gradient; the greedy actor is the best point there is."""

    def learn(self, state: Any, key: Any) -> tuple[Any, Effort]:
        del key
        return state, Effort()

    def gradient(self, state: Any, which: int, solution: np.ndarray, key: Any) -> np.ndarray:
        del state, which, key
        return OPTIMUM - solution

    def greedy(self, state: Any) -> np.ndarray:
        del state
        return np.full((1, self.solution_size), OPTIMUM, np.float32)


@pytest.mark.parametrize("emitters", [1, 2])
def test_samples_and_greedy_actor_go_into_both_archives(emitters: int) -> None:
    """All that is judged is offered; only what branched off is told to the emitter."""
    search = ppga.SearchConfig(branches=6, es_samples=8, es_sigma=2.0, sigma0=1.0, emitters=emitters)
    problem: Any = LearntSphere(search)
    pair = ArchivePair(
        20, (400, 400), problem.measure_ranges, {}, 0.0, ArchiveConfig(alpha=0.5, threshold_min=0.0)
    )
    algorithm = CMAMAEGA(problem, search, pair, 1)
    algorithm.start()
    record = algorithm.step()
    judged = emitters * (8 + 1 + 1 + 5)
    assert record["evaluations"] == judged
    assert [emitter.batch_size for emitter in algorithm.emitters] == [5] * emitters
    # cells are small: nobody shares one, but for copies of the greedy actor
    assert record["new_elites"] == record["elites"] == judged - (emitters - 1)
    assert record["soft_new"] == judged
    for archive in (pair.result, pair.soft):
        found = archive.data("solution")
        assert (found == np.float32(OPTIMUM)).all(axis=1).sum() == 1
        noise = mirrored(algorithm.generator("samples"), emitters, 8, 20)
        apart = np.linalg.norm(found[:, None] - found[None], axis=-1)
        for one, other in zip(noise[:, :4].reshape(-1, 20), noise[:, 4:].reshape(-1, 20), strict=True):
            assert np.isclose(apart, 2 * np.linalg.norm(one - other), rtol=1e-4).any(), "a mirrored pair"


def test_recombination_is_the_weighted_mean_of_the_better_half() -> None:
    ranked = np.array([[4.0, 0.0], [0.0, 4.0], [100.0, 100.0], [100.0, 100.0]])
    first, second = np.log(2.5), np.log(2.5) - np.log(2)
    np.testing.assert_allclose(recombined(ranked), 4 * np.array([first, second]) / (first + second))


def test_recombination_moves_the_search_point_there() -> None:
    config = on_sphere("ppga", step="recombination")
    algorithm = make_algorithm("sphere", config)
    assert isinstance(algorithm, PPGA)
    algorithm.start()
    branches = np.random.default_rng(0).normal(size=(1, 12, 20)).astype(np.float32)
    order = np.random.default_rng(1).permutation(12)
    algorithm.iteration = 1
    algorithm.step_on(branches, [order], jax.random.key(0))
    np.testing.assert_allclose(
        algorithm.problem.solutions(algorithm.search)[0], recombined(branches[0][order])
    )


def test_without_measures_nothing_but_the_reward_is_followed(tmp_path: Path) -> None:
    ppga.train("sphere", on_sphere("ppga-no-measures"), budget=Budget(iterations=3), output=tmp_path / "run")
    for line in lines(tmp_path / "run"):
        assert np.shape(line["xnes_mean"]) == (1, 1)
        assert np.shape(line["jacobian_lengths"]) == (1, 1)


@given(seed=st.integers(0, 2**31), rounds=st.integers(0, 5))
def test_cma_es_goes_on_from_plain_arrays(seed: int, rounds: int) -> None:
    """Restored into a new one, it draws and adapts as the old one does."""
    old = CMAES(1.0, 3, 12, seed)
    draws = np.random.default_rng(seed)

    def generation(strategy: CMAES, gained: np.ndarray) -> np.ndarray:
        asked = np.array(strategy.ask())
        strategy.tell(np.argsort(-gained), gained)
        return asked

    for _ in range(rounds):
        generation(old, draws.normal(size=12))
    new = CMAES(1.0, 3, 12, seed + 1)
    load_plain_state(new, plain_state(old))
    for _ in range(3):
        gained = draws.normal(size=12)
        np.testing.assert_array_equal(generation(new, gained), generation(old, gained))
        assert new.scale == old.scale
        np.testing.assert_array_equal(new.mean, old.mean)


def test_cma_es_answers_like_xnes() -> None:
    strategy = CMAES(2.0, 3, 12, 0)
    before = strategy.mean.copy()
    strategy.ask()
    strategy.tell(np.array([3]), np.zeros(12))
    np.testing.assert_array_equal(strategy.mean, before)  # nothing to compare
    assert strategy.scale == 2.0
    assert not strategy.check_stop(np.array([3.0, 2.0, 1.0]))
    strategy.sigma = np.nan
    assert strategy.check_stop(np.array([3.0, 2.0, 1.0]))


def test_gradients_share_the_offspring_with_iso_line() -> None:
    """Of 8: the greedy actor, half less that by gradients, the rest by iso+line."""
    seen: dict[str, Any] = {}

    def climb(state: Any, policies: np.ndarray, which: np.ndarray, key: Any) -> np.ndarray:
        del state, key
        seen.update(which=which, parents=policies)
        return policies + 100

    problem = SimpleNamespace(
        **vars(_plain(3)), greedy=lambda _: np.full((1, 3), -50.0), climb=climb, replay=[1]
    )
    pair = archives()
    pair.keep(np.eye(3, dtype=np.float32), np.arange(3.0), np.array([[0.1, 0.1], [0.5, 0.5], [0.9, 0.9]]))
    algorithm = PGAME(problem, ppga.SearchConfig(branches=8, gradient_share=0.5), pair, 0)
    children = algorithm.offspring(jax.random.key(0))
    assert children.shape == (8, 3)
    assert (children[0] == -50).all()
    assert (children[1:4] >= 100).all()
    assert (np.abs(children[4:]) < 5).all()
    np.testing.assert_array_equal(seen["which"], [0, 0, 0])
    assert seen["parents"].shape == (3, 3)


def test_the_policies_between_minibatch_steps_lead_to_the_next_one() -> None:
    """And noise that is to be reset in every iteration is reset where its learning begins."""
    config, _ = ppga.preset("smoke", "hopper", "ppo-archive")
    config = replace(config, ppo=replace(config.ppo, std="reset"))
    algorithm = make_algorithm("hopper", config)
    assert isinstance(algorithm, PPOArchive)
    algorithm.start()
    weights = np.array([[1.0, 0.0]])
    state = algorithm.search
    used_up = replace(state.policies, log_std=state.policies.log_std - 1)
    # a rollout gives the memory of its worlds away
    state, again = (replace(jax.tree.map(jax.numpy.copy, state), policies=used_up) for _ in range(2))
    before, after, way, _ = algorithm.problem.watch(state, weights, jax.random.key(1), first=True)
    steps = config.ppo.epochs * config.ppo.minibatches
    assert way.shape == (1, steps, algorithm.problem.solution_size)
    np.testing.assert_array_equal(way[:, -1], algorithm.problem.solutions(after))
    start = algorithm.problem.solutions(before)
    assert (way[:, 0] != start).any()
    assert (before.policies.observation.count < after.policies.observation.count).all()
    np.testing.assert_allclose(before.policies.log_std, np.log(config.ppo.initial_std), rtol=1e-6)
    later, *_ = algorithm.problem.watch(again, weights, jax.random.key(1), first=False)
    np.testing.assert_array_equal(later.policies.log_std, used_up.log_std)


@pytest.fixture(scope="module")
def population() -> PBTME:
    """Ten agents among sixteen, judged once; all that is asked of them on a robot with two feet."""
    config, _ = ppga.preset("smoke", "halfcheetah", "pbt-me-sac")
    search = replace(config.search, branches=16, confirm=0, steady=0.0)
    sac = replace(config.sac, population=10, best=0.1, worst=0.2, archived=0.4)
    algorithm = make_algorithm("halfcheetah", replace(config, search=search, sac=sac))
    assert isinstance(algorithm, PBTME)
    algorithm.start()
    return algorithm


def test_a_population_and_others_are_judged_before_anybody_learns(population: PBTME) -> None:
    """And they are different from each other already."""
    assert population.evaluations == population.episodes == 16
    assert population.env_steps == 64 * 100 + 16 * 20
    elites = population.archives.result.data()
    assert len(elites["index"]) >= 4
    assert np.ptp(elites["objective"]) > 1
    agents = np.asarray(population.search.agents.actor)
    from_population = [(agents == solution).all(axis=1).any() for solution in elites["solution"]]
    assert any(from_population)
    assert not all(from_population)
    assert elites["critics"].shape[1:] == population.search.agents.critics.shape[1:]
    assert population.problem.actor.activation == "tanh", "as all actors: untrained ones with ReLU lie still"


def test_a_population_is_exchanged_as_told(population: PBTME) -> None:
    """Of 10: the worst 2 become copies of the best, the next 4 come from the archive with what they know."""
    problem, agents = population.problem, population.search.agents
    pair = ArchivePair(problem.solution_size, (4, 4), ((0, 1), (0, 1)), problem.fields, 0.0, ArchiveConfig())
    algorithm = PBTME(problem, population.config, pair, 0)
    algorithm.search = population.search
    elite: Any = jax.tree.map(lambda leaf: leaf[:1] + 1000, agents)
    fields = problem.described(algorithm.search, elite)
    pair.keep(np.asarray(elite.actor), np.ones(1), np.full((1, 2), 0.5), **fields)
    worth = np.array([5.0, 9.0, 1.0, 4.0, 3.0, 2.0, 6.0, 7.0, 8.0, -np.inf])
    algorithm.exchange(worth)
    after = algorithm.search.agents
    for loser in (2, 9):
        np.testing.assert_array_equal(after.actor[loser], agents.actor[1])
        np.testing.assert_array_equal(after.critics[loser], agents.critics[1])
        assert (np.asarray(after.hyper[loser]) != np.asarray(agents.hyper[1])).any()
    from_archive = [number for number in range(10) if (after.actor[number] == elite.actor[0]).all()]
    assert from_archive == [0, 3, 4, 5]
    for number in from_archive:
        np.testing.assert_array_equal(after.critics[number], elite.critics[0])
    same = [number for number in range(10) if (after.actor[number] == agents.actor[number]).all()]
    assert same == [1, 6, 7, 8]
