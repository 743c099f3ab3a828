"""Loops of ppga and of other libraries, at the smallest scale, and the figures of a race."""

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.table import Table

import ppga
from ppga.analysis import metrics
from ppga.archives import load_archive
from ppga.machine import visible_cores
from ppga.policies.network import Network
from ppga.storage import read_tensors

from benchmarks import fresh
from benchmarks.ascii_me import GAMMA, ASCIIEmitter, returns, similarity
from benchmarks.fresh import Scores
from benchmarks.harness import Result, environment
from benchmarks.library_task import LibraryTask
from benchmarks.loops import LIBRARY_LOOPS, LOOPS, PPGA_LOOPS, History
from benchmarks.pyribs_loops import es_gradients
from benchmarks.qdax_loops import policy_network, to_flat, to_tree
from benchmarks.race import NEED_QDAX, Outcome, figures, race_table
from helpers.commands import benchmark

EPISODES = 5
RACE = ("race", "--task", "hopper", "--preset", "smoke", "--minutes", "0.0001", "--episodes", str(EPISODES))
PYRIBS = "pyribs cma-mae"
LOOPS_RACED = ("--loops", PYRIBS, "--seeds", "2")
CORES = visible_cores()


@pytest.mark.parametrize("loop", ["map-elites", *LIBRARY_LOOPS])  # ppga's loops differ by a name only
def test_every_loop_fills_an_archive_and_reports_it(loop: str) -> None:
    if loop in NEED_QDAX:
        pytest.importorskip("qdax")
    reports: list[tuple[int, float, float]] = []

    def report(*values: Any) -> bool:
        reports.append(values)
        return len(reports) < 3

    archive = LOOPS[loop]("hopper", "smoke", report, 1, 100.0)
    assert len(reports) == 3
    steps, scores, coverages = zip(*reports, strict=True)
    assert 0 < steps[0] < steps[1] < steps[2]
    assert archive.description["network"]["sizes"] == [11, 8, 3], "all loops search the same policies"
    assert len(archive) > 0
    if loop in NEED_QDAX:  # QDax may count measures on a border to another cell
        assert archive.coverage <= coverages[-1]
        assert archive.qd_score <= scores[-1] + 1e-3
    else:
        assert archive.coverage == pytest.approx(coverages[-1])
        assert archive.qd_score == pytest.approx(scores[-1], rel=1e-5)
    if loop not in PPGA_LOOPS:  # the other libraries never remove elites
        assert list(coverages) == sorted(coverages)


# The parts of the loops.


def test_policies_of_qdax_are_those_of_ppga() -> None:
    pytest.importorskip("qdax")
    network = Network((3, 5, 4, 2), head="tanh")
    rng = np.random.default_rng(0)
    flat = rng.normal(size=(6, network.parameters)).astype(np.float32)
    observations = rng.normal(size=(7, 3)).astype(np.float32)
    tree = to_tree(network, flat)
    np.testing.assert_array_equal(to_flat(network, tree), flat)
    actions = jax.vmap(policy_network(network).apply, (0, None))(tree, observations)
    expected = [network(parameters, observations) for parameters in flat]
    np.testing.assert_allclose(actions, expected, atol=1e-6)


def test_short_episodes_are_repeated_for_learners() -> None:
    task = LibraryTask("hopper", "smoke", lambda *_: True, seed=3, record=True)
    task.evaluate(10 * task.problem.random(task.key(), 6))
    played, repeated = task.trajectories(), task.transitions()
    lengths = played["taken"].sum(axis=1)
    assert 1 <= lengths.min() < lengths.max(), "some hoppers fall before the others"
    for name, values in played.items():
        for policy, length in enumerate(lengths):
            assert not values[policy, length:].any()
            for step in range(values.shape[1]):
                np.testing.assert_array_equal(repeated[name][policy, step], values[policy, step % length])


def test_ascii_me_moves_a_policy_toward_better_actions_and_away_from_worse_ones() -> None:
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(2, 6, 3)).astype(np.float32)
    expected = [
        max(float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)), 0.25)
        for a, b in zip(*observations, strict=True)
    ]
    np.testing.assert_allclose(similarity(*observations), expected, rtol=1e-5)
    rewards = rng.normal(size=(2, 5)).astype(np.float32)
    slow = [
        [sum(GAMMA ** (later - step) * row[later] for later in range(step, 5)) for step in range(5)]
        for row in rewards
    ]
    np.testing.assert_allclose(returns(rewards), slow, rtol=1e-5)

    def act(parameters: Any, observations: Any) -> Any:
        return parameters + 0 * observations[:, :1]

    emitter = ASCIIEmitter(act, batch_size=1, steps=4)
    own = {"observation": observations[0], "return": np.zeros(6, np.float32)}
    other = {"observation": observations[1], "action": np.ones((6, 1), np.float32)}
    for better in (1.0, -1.0, 0.0):
        gain = {"return": np.full(6, better, np.float32), "taken": np.ones(6, bool)}
        moved = float(emitter.cross(np.float32(0.5), own, other | gain)[()])
        assert np.sign(round(moved - 0.5, 6)) == better
        ended = gain | {"taken": np.zeros(6, bool)}
        assert emitter.cross(np.float32(0.5), own, other | ended) == 0.5
    far = other | {
        "action": np.full((6, 1), 3.5, np.float32)
    }  # where the density is below 0.8 of the highest
    worse = {"return": np.full(6, -1, np.float32), "taken": np.ones(6, bool)}
    assert emitter.cross(np.float32(0.5), own, far | worse) == 0.5, "clipped"


def test_evolution_estimates_the_directions_of_gradients() -> None:
    rng = np.random.default_rng(0)
    half = rng.normal(size=(5000, 4))
    noise = np.concatenate([half, -half])
    true = np.array([[1.0, 2.0, 0.0, -2.0], [0.0, 0.0, 3.0, 0.0]])
    scores = np.column_stack([noise @ true.T, np.ones(len(noise))])  # monotone functions have the same ranks
    *directions, none = es_gradients(noise, np.exp(scores))
    for direction, gradient in zip(directions, true, strict=True):
        cosine = direction @ gradient / np.linalg.norm(direction) / np.linalg.norm(gradient)
        assert cosine > 0.999
    assert not none.any()


# Races.


def race(*words: str, folder: Path) -> dict[str, dict[str, Any]]:
    """Results of a race, by name without the task."""
    done = benchmark(*RACE, *words, "--output", "race", "--json", "out.json", folder=folder)
    assert done.returncode == 0, done.stderr
    results = json.loads((folder / "out.json").read_text())["results"]
    return {result["name"].removesuffix("/hopper"): result for result in results}


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A folder with a race with two seeds, interrupted in the second one and resumed; and its results."""
    folder = tmp_path_factory.mktemp("raced")
    first, second = (folder / "race" / f"pyribs_cma-mae-{seed}" for seed in (1, 2))

    def interrupt() -> None:
        while not second.is_dir():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    done = benchmark(*RACE, *LOOPS_RACED, "--output", "race", folder=folder)
    assert done.returncode == 130, done.stderr
    assert fresh.complete(load_archive(first / "archive.safetensors"), first)
    assert not (second / "history.json").exists(), "its process has ended"
    kept = {file: file.stat().st_mtime_ns for file in first.iterdir()}
    results = race(*LOOPS_RACED, folder=folder)
    assert kept == {file: file.stat().st_mtime_ns for file in first.iterdir()}, "it is not run again"
    return folder, results


def slow_scores(folder: Path) -> Scores:
    """Figures of a kept archive by its fresh episodes, cell by cell."""
    archive = load_archive(folder / "archive.safetensors")
    episodes, _ = read_tensors(folder / "episodes.safetensors")
    assert episodes["objective"].shape == (len(archive), EPISODES)
    halves = range(0, EPISODES, 2), range(1, EPISODES, 2)
    rows = []
    for select, report in (halves, halves[::-1]):
        champions: dict[int, tuple[float, float]] = {}
        for elite in range(len(archive)):
            places = np.mean([episodes["measures"][elite, e] for e in select], axis=0)
            selecting, reported = (
                float(np.mean([episodes["objective"][elite, e] for e in half])) for half in (select, report)
            )
            cell = int(archive.cells_of(places[None])[0])
            champions[cell] = max(champions.get(cell, (-math.inf, 0.0)), (selecting, reported))
        rewards = [reported for _, reported in champions.values()]
        rows.append(
            (
                sum(reward - archive.qd_offset for reward in rewards), len(rewards) / archive.cells,
                max(champions.values())[1], sum(rewards) / len(rewards),
            )
        )  # fmt: skip
    return Scores(*np.mean(rows, axis=0))


def test_reported_figures_are_those_of_the_kept_archives(
    raced: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    folder, results = raced
    folders = [folder / "race" / f"pyribs_cma-mae-{seed}" for seed in (1, 2)]
    scores = [slow_scores(each) for each in folders]
    archives = [load_archive(each / "archive.safetensors") for each in folders]
    expected = {
        "re-evaluated QD-score": [each.qd_score for each in scores],
        "re-evaluated coverage": [each.coverage for each in scores],
        "re-evaluated best": [each.best for each in scores],
        "re-evaluated mean": [each.mean for each in scores],
        "archived QD-score": [archive.qd_score for archive in archives],
        "archived coverage": [archive.coverage for archive in archives],
        "archived best": [float(archive.elites["objective"].max()) for archive in archives],
        "archived mean": [float(archive.elites["objective"].mean()) for archive in archives],
    }
    for figure, values in expected.items():
        result = results[f"{PYRIBS}: {figure}"]
        assert result["value"] == pytest.approx(np.mean(values), rel=1e-5), figure
        assert result["interval"] == pytest.approx([*map(float, metrics.bootstrap(values))], rel=1e-4)
    assert [archive.description["seed"] for archive in archives] == [1, 2]
    assert {archive.description["algorithm"] for archive in archives} == {PYRIBS}
    first, second = (archive.elites["solution"] for archive in archives)
    assert not np.isin(first, second).any(), "other seeds, other policies"
    histories = [History.load(each) for each in folders]
    end = results[f"{PYRIBS}: end"]["value"]
    assert end == pytest.approx(np.mean([each.seconds[-1] for each in histories]))
    assert all(len(each.seconds) == 1 for each in histories), "their time was over before it began"


def test_the_figure_is_beside_the_results(raced: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, _ = raced
    assert (folder / "out-hopper.png").read_bytes().startswith(b"\x89PNG")


def test_an_interrupted_re_evaluation_is_resumed(raced: tuple[Path, dict[str, dict[str, Any]]]) -> None:
    folder, before = raced
    files = {file: file.stat().st_mtime_ns for file in folder.glob("race/*/*")}
    (folder / "race" / "pyribs_cma-mae-2" / "episodes.safetensors").unlink()
    after = race(*LOOPS_RACED, folder=folder)
    assert after == before, "the fresh episodes are the same"
    changed = {file.name for file, when in files.items() if file.stat().st_mtime_ns != when}
    assert changed == {"episodes.safetensors"}


def test_a_race_with_other_settings_needs_another_folder(
    raced: tuple[Path, dict[str, dict[str, Any]]],
) -> None:
    folder, _ = raced
    done = benchmark(*RACE, "--minutes", "2", "--output", "race", folder=folder)
    assert done.returncode == 2
    assert "race is of a race with --minutes 0.0001, and this one has --minutes 2.0" in done.stderr


@pytest.mark.skipif(CORES < 2, reason="needs two cores")
def test_loops_at_once_have_a_core_each_and_do_not_stop_when_one_fails(tmp_path: Path) -> None:
    (tmp_path / "race" / "map-elites-1" / "archive.safetensors").mkdir(parents=True)  # no file can replace it
    words = ("--loops", "map-elites", PYRIBS, "--parallel", "2", "--output", "race")
    done = benchmark(*RACE, *words, folder=tmp_path)
    assert done.returncode == 2
    assert "map-elites with seed 1 ended with exit code 1" in done.stderr
    assert "--output race runs only what is not complete" in done.stderr
    complete = tmp_path / "race" / "pyribs_cma-mae-1"
    assert fresh.complete(load_archive(complete / "archive.safetensors"), complete)
    assert History.load(complete).cores == 1
    assert visible_cores() == CORES, "only the loops are pinned"


def test_a_loop_that_is_stopped_early_is_not_complete(tmp_path: Path) -> None:
    words = ("map-elites", "hopper", "smoke", "1", "100", str(time.time()), "4", str(tmp_path))
    command = [sys.executable, "-m", "benchmarks.loops", *words]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert "qd_score" in json.loads(process.stdout.readline())
        process.terminate()  # the algorithm finishes its iteration, and returns its archive
        _, errors = process.communicate()
    assert process.returncode == 1
    assert "stopped after" in errors
    assert list(tmp_path.iterdir()) == []


# Figures.


def outcome(history: History, score: float, coverage: float = 0.5) -> Outcome:
    return Outcome(history, Scores(history.scores[-1], 1.0, 1.0, 1.0), Scores(score, coverage, 2.0, 1.0))


SLOW = History((10.0, 20.0, 30.0), (100, 300, 500), (1.0, 5.0, 8.0), 2.0, 1)
FAST = History((5.0, 10.0, 30.0), (500, 1000, 3000), (4.0, 8.0, 9.0), 1.0, 1)
POOR = History((40.0,), (400,), (0.5,), 1.0, 1)


def test_the_goal_is_the_final_score_of_the_best_other_library() -> None:
    outcomes = {
        "ppga": [outcome(FAST, 9.0, 0.75)],
        "map-elites": [outcome(POOR, 0.25), outcome(FAST, 0.75)],
        "qdax pga-me": [outcome(SLOW, 6.0)],
        "pyribs cma-mae": [outcome(FAST, 5.0)],  # its archived score is higher, but it was luck
    }
    results = figures(outcomes, "x")
    by_name = {result.name: result for result in results}
    reference = "qdax pga-me"
    assert by_name["ppga: until 8 archived/x"] == Result(
        "ppga: until 8 archived/x", 10.0, "s", 10 / 30, reference
    )
    missed = by_name["map-elites: until 8 archived/x"]
    assert (missed.value, missed.unit, missed.ratio) == (25.0, "s, not reached by 1 of 2", None)
    assert by_name["qdax pga-me: until 8 archived/x"] == Result("qdax pga-me: until 8 archived/x", 30.0, "s")
    assert by_name["ppga: speed/x"].value == 2500 / 25, "the first iteration compiles"
    assert by_name["ppga: speed/x"].ratio == 5.0
    assert by_name["map-elites: speed/x"].value == 55.0, "the mean of 10 and 100 steps/s"
    assert by_name["ppga: first iteration/x"].ratio == 0.5
    assert by_name["ppga: peak memory/x"].ratio == 0.5
    assert by_name["ppga: re-evaluated QD-score/x"].ratio == 1.5
    assert by_name["ppga: re-evaluated coverage/x"].ratio == 1.5
    assert by_name["map-elites: re-evaluated QD-score/x"].value == 0.5
    assert by_name["map-elites: re-evaluated QD-score/x"].interval == (0.25, 0.75)
    scores, archived, speed = race_table(results, "a race").renderables
    assert isinstance(scores, Table)
    assert isinstance(archived, Table)
    assert isinstance(speed, Table)
    assert [table.row_count for table in (scores, archived, speed)] == [4, 4, 4]
    assert list(scores.columns[1].cells) == ["9", "0.5\n[0.25, 0.75]", "6", "5"]
    assert list(speed.columns[-1].cells) == ["10", "> 25\n[10, 40]", "30", "10"]


def test_an_archive_without_elites_has_no_score(tmp_path: Path) -> None:
    config, _ = ppga.preset("smoke", "hopper", "map-elites")
    archive = ppga.train("hopper", config, budget=ppga.Budget(iterations=1)).archive
    empty = ppga.Archive(archive.description, {name: values[:0] for name, values in archive.elites.items()})
    fresh.play(empty, 4, 1, tmp_path, lambda *_: None)
    assert fresh.complete(empty, tmp_path)
    assert fresh.reevaluated(empty, tmp_path).qd_score == 0
