import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga import Budget, InputError, PPGAConfig
from ppga.algorithms import PPGA
from ppga.algorithms.sphere import Sphere
from ppga.archives import maps
from ppga.physics import Array
from ppga.runs import checkpoints
from ppga.runs import folder as folder_module
from ppga.runs.config import differences, from_json, to_json
from ppga.runs.display import Lines, Picture
from ppga.runs.folder import RunFolder, read_lines
from ppga.runs.loop import make_algorithm
from ppga.strategies import XNES
from ppga.tasks import sample
from ppga.tasks.maze import PointMaze

from conftest import lines, same_runs

CONFIG = PPGAConfig(
    search=ppga.SearchConfig(branches=8, sigma0=5.0, walk_updates=1),
    keeping=ppga.KeepingConfig(checkpoint_seconds=0, snapshot_iterations=4, tensorboard=False),
)


# The folder.


def test_a_run_leaves_all_it_should(tmp_path: Path) -> None:
    run = tmp_path / "run"
    config = replace(CONFIG, keeping=replace(CONFIG.keeping, tensorboard=True))
    outcome = ppga.train("sphere", config, budget=Budget(iterations=9), output=run)
    told = json.loads((run / "config.json").read_text())
    assert told["task"] == "sphere"
    assert told["config"]["search"]["branches"] == 8
    assert told["machine"]["cores"] >= 1
    assert {"jax", "mujoco", "ppga"} <= told["machine"]["versions"].keys()
    metrics = list(read_lines(run / "metrics.jsonl"))
    assert [line["iteration"] for line in metrics] == list(range(1, 10))
    for name in (
        "evaluations", "env_steps", "wall_time", "qd_score", "qd_offset", "coverage", "best", "mean",
        "elites", "new_elites", "soft_new", "restarts", "nonfinite", "search_objective", "search_measures",
        "xnes_mean", "xnes_scale", "times",
    ):  # fmt: skip
        assert name in metrics[-1], name
    archive = ppga.load_archive(run)
    assert metrics[-1]["qd_score"] == pytest.approx(archive.qd_score)
    assert metrics[-1]["best"] == archive.elites["objective"].max()
    assert metrics[-1]["coverage"] == archive.coverage == len(archive) / 400
    assert metrics[-1]["evaluations"] == 9 * 9
    for name, values in outcome.archive.elites.items():
        np.testing.assert_array_equal(archive.elites[name], values)
    snapshots = list(read_lines(run / "cells.jsonl"))
    assert [shot["iteration"] for shot in snapshots] == [4, 8]
    assert len(snapshots[1]["cells"]) == metrics[7]["elites"]
    assert (run / "heatmap.png").read_bytes().startswith(b"\x89PNG")
    assert list((run / "tensorboard").glob("events*"))
    kept = sorted(file.name for file in (run / "checkpoints").iterdir())
    assert kept == [f"00000{i}.{suffix}" for i in (7, 8, 9) for suffix in ("json", "safetensors")]


def test_without_an_output_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = ppga.train("sphere", CONFIG, budget=Budget(iterations=2))
    assert outcome.folder is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("budget", "iterations"),
    [
        (Budget(iterations=3), 3),
        (Budget(evaluations=20), 3),  # 9 an iteration
        (Budget(evaluations=1000, iterations=2), 2),
        (Budget(minutes=1e-9), 1),
    ],
)
def test_a_budget_ends_the_run(budget: Budget, iterations: int) -> None:
    outcome = ppga.train("sphere", CONFIG, budget=budget)
    assert outcome.record is not None
    assert outcome.record["iteration"] == iterations


def test_callbacks_see_every_iteration_and_can_stop() -> None:
    seen = []

    def watch(iteration: ppga.Iteration) -> None:
        seen.append(iteration.record["iteration"])
        iteration.stop = iteration.record["iteration"] == 4

    ppga.train("sphere", CONFIG, budget=Budget(iterations=100), callbacks=[watch])
    assert seen == [1, 2, 3, 4]


def test_a_run_can_begin_with_the_elites_of_another(tmp_path: Path) -> None:
    first = ppga.train("sphere", CONFIG, budget=Budget(iterations=10), output=tmp_path / "first")
    config = replace(CONFIG, init_from=str(tmp_path / "first"), seed=5)
    second = ppga.train("sphere", config, budget=Budget(iterations=1))
    assert second.archive.qd_score >= first.archive.qd_score
    assert set(first.archive.elites["index"]) <= set(second.archive.elites["index"])
    assert second.record is not None
    best = first.archive.elite(first.archive.best())
    assert second.record["search_objective"][0] == pytest.approx(best["objective"], rel=1e-5)


def test_a_run_goes_on_without_the_elites_it_began_with(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=2), output=tmp_path / "first")
    config = replace(CONFIG, init_from=str(tmp_path / "first"), seed=5)
    ppga.train("sphere", config, budget=Budget(iterations=1), output=tmp_path / "run")
    (tmp_path / "first").rename(tmp_path / "moved")
    outcome = ppga.resume(tmp_path / "run", budget=Budget(iterations=2))
    assert outcome.record is not None
    assert outcome.record["iteration"] == 2


def test_by_how_many_episodes_elites_were_judged_is_not_forgotten(tmp_path: Path) -> None:
    first = ppga.train("sphere", CONFIG, budget=Budget(iterations=3)).archive
    known = {**first.elites, "episodes": np.arange(2, 2 + len(first), dtype=np.int32)}
    replace(first, elites=known).save(tmp_path / "known.safetensors")
    config = replace(CONFIG, init_from=str(tmp_path / "known.safetensors"), seed=5)
    second = ppga.train("sphere", config, budget=Budget(iterations=1)).archive
    then = dict(zip(first.elites["objective"], known["episodes"], strict=True))
    kept = [
        (then[objective], episodes)
        for objective, episodes in zip(second.elites["objective"], second.elites["episodes"], strict=True)
        if objective in then
    ]
    assert kept
    assert all(before == now for before, now in kept)


class StillMaze(PointMaze):
    """Every episode begins alike, so that a policy's score is one number."""

    name = "still-maze"

    def initial(self, key: Array) -> tuple[Array, Array]:
        del key
        return jnp.array([-0.7, -0.75]), jnp.zeros(2)


def test_what_begins_with_elites_sees_as_they_do(tmp_path: Path) -> None:
    """Where one run has one normaliser, that of the elites it begins with: they score as in their archive."""
    config, _ = ppga.preset("smoke", "point-maze", "map-elites")
    config = replace(config, search=replace(config.search, confirm=0, steady=0.0))
    task = StillMaze(episode_length=20)
    first = ppga.train(task, config, budget=Budget(iterations=1), output=tmp_path / "first").archive
    second = make_algorithm(task, replace(config, seed=5))
    second.start(ppga.load_archive(tmp_path / "first").elites)
    best = first.elite(first.best())
    for name in ("mean", "variance", "count"):
        np.testing.assert_array_equal(getattr(second.search.observation, name), best[f"observation_{name}"])
    own = second.problem.start(second.key("start")).observation
    assert not np.allclose(own.mean, best["observation_mean"], rtol=1e-3), "otherwise nothing is tested"
    many = np.repeat(best["solution"][None, None], 4, axis=1)
    judged = second.judge(many, jax.random.key(0))
    np.testing.assert_allclose(judged.objective, best["objective"], rtol=1e-6)
    np.testing.assert_allclose(judged.measures, [best["measures"]] * 4, rtol=1e-6)


# Going on.


def test_an_extended_run_is_a_longer_run(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=12), output=tmp_path / "whole")
    ppga.train("sphere", CONFIG, budget=Budget(iterations=5), output=tmp_path / "parts")
    nothing = ppga.resume(tmp_path / "parts")
    assert nothing.record is None, "it was finished"
    ppga.resume(tmp_path / "parts", budget=Budget(iterations=12))
    same_runs(tmp_path / "whole", tmp_path / "parts")
    assert RunFolder(tmp_path / "parts").read()[2] == Budget(iterations=12)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "json", "missing"])
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(tmp_path: Path, damage: str) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=Budget(iterations=12), output=whole)
    ppga.train("sphere", CONFIG, budget=Budget(iterations=6), output=run)
    data = run / "checkpoints" / "000006.safetensors"
    content = bytearray(data.read_bytes())
    if damage == "truncated":
        data.write_bytes(content[: len(content) // 2])
    elif damage == "flipped":
        content[-1] ^= 1
        data.write_bytes(content)
    elif damage == "json":
        data.with_suffix(".json").write_text("{")
    else:
        data.unlink()
    output = io.StringIO()
    ppga.resume(run, budget=Budget(iterations=12), display=Lines(Console(file=output, width=200)))
    assert "checkpoint 6 is damaged" in output.getvalue()
    assert "resuming after iteration 5" in output.getvalue()
    same_runs(whole, run)


def test_when_all_checkpoints_are_damaged_it_says_so(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=2), output=tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").glob("*.safetensors"):
        file.write_bytes(b"")
    with pytest.raises(InputError, match=r"all checkpoints .* damaged"):
        ppga.resume(tmp_path / "run", budget=Budget(iterations=4))


def test_a_leftover_of_a_cut_write_does_no_harm(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=8), output=tmp_path / "whole")
    run = tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=Budget(iterations=4), output=run)
    (run / "checkpoints" / "000005.safetensors").write_bytes(b"half")
    (run / "checkpoints" / ".000005.json.0123abcd.part").write_bytes(b"")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "qd')
    ppga.resume(run, budget=Budget(iterations=8))
    same_runs(tmp_path / "whole", run)
    assert len(list((run / "checkpoints").iterdir())) == 6


def command(run: Path, *options: str) -> list[str]:
    return [
        sys.executable, "-m", "ppga", "train", "sphere", "--quiet", "--iterations", "60",
        "--output", str(run),
        "--search.branches", "8", "--search.sigma0", "5", "--search.walk-updates", "1",
        "--keeping.checkpoint-seconds", "0", "--keeping.no-tensorboard", *options,
    ]  # fmt: skip


def done(run: Path) -> int:
    """Iteration of the newest finished checkpoint."""
    return max((int(file.stem) for file in (run / "checkpoints").glob("0*.json")), default=0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_iteration_and_says_how_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    run = tmp_path / "run"
    start = command(run, "--iterations", "100000")
    process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not done(run):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert "finishing this iteration" in errors
    assert process.returncode == 128 + number
    assert f"ppga train --resume {run}" in output
    last = lines(run)[-1]["iteration"]
    checkpoint = checkpoints.newest(run / "checkpoints", print)
    assert checkpoint is not None
    assert checkpoint.iteration == last


# Bad input.


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(CONFIG, algorithm="pppga"), "Did you mean 'ppga'"),
        (replace(CONFIG, seed=-1), "seed must lie"),
        (replace(CONFIG, search=replace(CONFIG.search, branches=1)), "at least 2"),
        (replace(CONFIG, search=replace(CONFIG.search, episodes=0)), "episodes must be a whole number"),
        (replace(CONFIG, search=replace(CONFIG.search, sigma0=0.0)), "sigma0 must be a positive"),
        (replace(CONFIG, ppo=replace(CONFIG.ppo, environments=100)), "try 99 or 102"),
        (replace(CONFIG, ppo=replace(CONFIG.ppo, environments=2)), "try 3"),
        (replace(CONFIG, ppo=replace(CONFIG.ppo, minibatches=7)), "cannot be cut into 7 minibatches"),
        (replace(CONFIG, ppo=replace(CONFIG.ppo, discount=1.5)), "discount must lie"),
        (replace(CONFIG, ppo=replace(CONFIG.ppo, learning_rate=float("nan"))), "learning_rate must lie"),
        (replace(CONFIG, archive=replace(CONFIG.archive, alpha=2.0)), r"alpha must lie in \[0, 1\]"),
        (replace(CONFIG, archive=replace(CONFIG.archive, threshold_min=None)), "needs a threshold_min"),
        (replace(CONFIG, network=replace(CONFIG.network, actor=(0,))), "hidden units"),
        (replace(CONFIG, keeping=replace(CONFIG.keeping, checkpoint_seconds=-1.0)), "checkpoint_seconds"),
        (replace(CONFIG, init_from="nowhere"), "no archive in .*nowhere"),
        (replace(CONFIG, search=replace(CONFIG.search, mix="scalled")), "search.mix: expected"),  # type: ignore[arg-type]
        (replace(CONFIG, ppo=replace(CONFIG.ppo, std="Fixed")), "ppo.std: expected"),  # type: ignore[arg-type]
        (replace(CONFIG, keeping=replace(CONFIG.keeping, wandb="mine")), r"ppga\[wandb\]"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_written(
    config: PPGAConfig, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        ppga.train("halfcheetah", config, budget=Budget(iterations=1), output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "budget", [Budget(), Budget(iterations=0), Budget(minutes=-1.0), Budget(minutes=float("nan"))]
)
def test_budgets_that_cannot_be_met_are_refused(budget: Budget) -> None:
    with pytest.raises(InputError, match="budget"):
        ppga.train("sphere", CONFIG, budget=budget)


def test_another_run_is_never_written_over(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    with pytest.raises(InputError, match="already holds a run"):
        ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=tmp_path / "other")
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        with pytest.raises(InputError, match="is a file"):
            ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=tmp_path / place)


def test_folders_that_are_no_runs_of_this_version_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not a run's folder"):
        ppga.resume(tmp_path)
    run = tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=run)
    content = json.loads((run / "config.json").read_text())
    for change, message in (
        ({"version": 99}, "another version"),
        ({"format": "other"}, "does not describe a run"),
        ({"config": {"search": {"branchs": 3}}}, "Did you mean 'branches'"),
        ({"config": {"search": {"branches": "many"}}}, "expected int"),
        ({"config": []}, "table of settings"),
        ({"problem": None}, "begun with another task"),
        ({"task": "mine"}, r"ppga.resume\(run, task=...\)"),
    ):
        (run / "config.json").write_text(json.dumps(content | change))
        with pytest.raises(InputError, match=message):
            ppga.resume(run)


def test_archives_that_do_not_fit_cannot_be_begun_with(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=tmp_path / "sphere")
    config, budget = ppga.preset("smoke", "hopper")
    with pytest.raises(InputError, match="of sphere, this run of hopper"):
        ppga.train("hopper", replace(config, init_from=str(tmp_path / "sphere")), budget=budget)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_told_and_the_checkpoint_before_survives(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=Budget(iterations=3), output=run)
    metrics = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").symlink_to("/dev/full")

    def cut_after(self: RunFolder, *_: Any) -> None:
        """Leave the full device in place."""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, "cut_after", cut_after)
        with pytest.raises(InputError, match=r"No space left on device.*--resume"):
            ppga.resume(run, budget=Budget(iterations=6))
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").write_text(metrics)
    ppga.resume(run, budget=Budget(iterations=6))
    ppga.train("sphere", CONFIG, budget=Budget(iterations=6), output=tmp_path / "whole")
    same_runs(tmp_path / "whole", run)


FULL = """
import resource, signal, sys
from ppga.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8_000, 8_000))  # less than a checkpoint, more than a line
main()
"""


def test_a_disk_too_full_for_a_checkpoint_is_told(tmp_path: Path) -> None:
    run = tmp_path / "run"
    ppga.train("sphere", CONFIG, budget=Budget(iterations=3), output=run)
    arguments = ["train", "--resume", str(run), "--iterations", "6", "--quiet"]
    result = subprocess.run(
        [sys.executable, "-c", FULL, *arguments], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "cannot write to" in result.stderr
    assert "The last checkpoint is whole" in result.stderr
    assert "Traceback" not in result.stderr
    ppga.resume(run, budget=Budget(iterations=6))
    ppga.train("sphere", CONFIG, budget=Budget(iterations=6), output=tmp_path / "whole")
    same_runs(tmp_path / "whole", run)


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=tmp_path / "run")
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(InputError, match="being trained by another process"),
    ):
        ppga.resume(tmp_path / "run", budget=Budget(iterations=2))
    ppga.resume(tmp_path / "run", budget=Budget(iterations=2))


def test_who_comes_second_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that begin at once: both find the folder free, and the other is first to have it."""
    folder, first = RunFolder(tmp_path / "run"), [replace(CONFIG, seed=7)]

    def slowly(*words: Any) -> Any:
        algorithm = make_algorithm(*words)
        if first:
            ppga.train("sphere", first.pop(), budget=Budget(iterations=1), output=folder.path)
        return algorithm

    monkeypatch.setattr("ppga.runs.loop.make_algorithm", slowly)
    with pytest.raises(InputError, match="already holds a run"):
        ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=folder.path)
    assert folder.read()[1].seed == 7
    another = RunFolder(tmp_path / "another")
    with another.locked(), pytest.raises(InputError, match="being trained by another process"):
        ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=another.path)
    assert not another.config.exists()


def test_the_commit_is_that_of_the_source_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    git("init")
    (tmp_path / "own.py").touch()
    git("add", "own.py")
    git("commit", "-m", "somebody's own")
    (tmp_path / "folder.py").touch()
    monkeypatch.setattr(folder_module, "__file__", str(tmp_path / "folder.py"))
    assert folder_module._commit() is None, "an installed one, in somebody's repository"
    git("add", "folder.py")
    git("commit", "-m", "ours")
    assert len(folder_module._commit() or "") == 12


def test_a_run_is_not_resumed_on_another_task(tmp_path: Path) -> None:
    small = Sphere(CONFIG.search, solution_size=10)
    ppga.train(small, CONFIG, budget=Budget(iterations=1), output=tmp_path / "run")
    with pytest.raises(InputError, match=r"task.dimensions \(was 10, now 20\)"):
        ppga.resume(tmp_path / "run", budget=Budget(iterations=2))
    again = ppga.resume(tmp_path / "run", budget=Budget(iterations=2), task=small)
    assert again.record is not None


def test_a_cvt_run_resumes_with_the_cells_it_had(tmp_path: Path) -> None:
    config = replace(CONFIG, archive=replace(CONFIG.archive, kind="cvt", cells=30))
    ppga.train("sphere", config, budget=Budget(iterations=6), output=tmp_path / "whole")
    ppga.train("sphere", config, budget=Budget(iterations=3), output=tmp_path / "run")
    with pytest.MonkeyPatch.context() as patch:  # on many cores k-means finds others every time
        patch.setattr("ribs.archives._cvt_archive.k_means_centroids", other_centroids)
        ppga.resume(tmp_path / "run", budget=Budget(iterations=6))
    same_runs(tmp_path / "whole", tmp_path / "run")


def other_centroids(centroids: int, **_: Any) -> tuple[Any, None]:
    return np.random.default_rng(9).uniform(-50, 50, (centroids, 2)).astype(np.float32), None


# Config.


def test_configs_survive_json() -> None:
    for name in ("laptop", "paper", "smoke"):
        for task in (*ppga.TASKS, "sphere"):
            config, budget = ppga.preset(name, task)
            assert from_json(PPGAConfig, json.loads(json.dumps(to_json(config)))) == config
            assert from_json(Budget, json.loads(json.dumps(to_json(budget)))) == budget


def test_presets_fit_their_tasks() -> None:
    for name in ("laptop", "paper", "smoke"):
        for task in ppga.TASKS:
            measures = len(sample(task).measure_names)
            config, budget = ppga.preset(name, task)
            config.check(measures)
            budget.check()


def test_the_papers_preset_has_nothing_of_ours() -> None:
    config, _ = ppga.preset("paper", "halfcheetah")
    assert not config.ppo.adapt_rate
    assert config.search.mix == "raw"


def test_plain_ppo_needs_environments_for_one_agent_only() -> None:
    config = replace(CONFIG, ppo=replace(CONFIG.ppo, environments=100))
    replace(config, algorithm="ppo").check(2)
    with pytest.raises(InputError, match="try 99 or 102"):
        config.check(2)


def test_differences_name_the_field() -> None:
    other = replace(CONFIG, search=replace(CONFIG.search, branches=9), seed=3)
    assert set(differences(CONFIG, other)) == {("search.branches", 8, 9), ("seed", 0, 3)}


# Pictures.


def test_planes_put_the_measures_where_people_look_for_them() -> None:
    cells = np.array([0, 5, 2])  # (0, 0), (1, 2), (0, 2) of 2 x 3
    drawn = maps.plane((2, 3), cells, np.array([1.0, 2.0, 3.0]))
    nan = np.nan
    np.testing.assert_array_equal(drawn, [[3.0, 2.0], [nan, nan], [1.0, nan]])
    four = maps.plane((2, 2, 2, 2), np.array([0b1011]), np.array([7.0]))
    # measures (1, 0, 1, 1): right half, its right column; lower half, its upper row
    assert [tuple(at) for at in np.argwhere(four == 7.0)] == [(2, 3)]
    assert maps.plane((4,), np.array([1]), np.array([5.0])).shape == (1, 4)


def test_big_archives_are_thinned_for_the_terminal_to_the_best_of_each_block() -> None:
    text = maps.text((100, 100), np.arange(10_000), np.arange(10_000.0), width=40)
    rows = text.plain.rstrip("\n").split("\n")
    assert len(rows) == 20
    assert all(len(row) == 40 for row in rows)


def test_both_displays_show_a_run() -> None:
    for make, expected in (
        (lambda console: Lines(console), ["100%  iteration 3", "coverage"]),
        (lambda console: Picture(console), ["QD-score", "coverage", "██", "xNES scale", "100%"]),
    ):
        output = io.StringIO()
        console = Console(file=output, force_terminal=make(Console()).__class__ is Picture, width=120)
        ppga.train("sphere", CONFIG, budget=Budget(iterations=3), display=make(console))
        for word in expected:
            assert word in output.getvalue()


def test_warnings_are_shown_once() -> None:
    output = io.StringIO()
    display = Lines(Console(file=output, width=200), quiet=True)
    nothing = np.zeros(0)
    algorithm = make_algorithm("sphere", CONFIG)
    assert isinstance(algorithm, PPGA)
    strategy = algorithm.strategies[0]
    assert isinstance(strategy, XNES)
    for iteration in range(3):
        strategy.scale = 1e3 * (1 + iteration)
        algorithm.warnings = []
        algorithm.warn(np.array([[1.0, 0.0, 1.0]]))
        display.show({"iteration": iteration}, 0.5, algorithm.warnings, (2, 2), nothing, nothing)
    assert output.getvalue().count("step size has grown") == 1
    assert output.getvalue().count("gradient of first half is nearly zero") == 1


def test_unwritable_places_are_told() -> None:
    for place in ("/proc/run", "/dev/null/run"):  # not even root can
        with pytest.raises(InputError, match=r"cannot (write|make)"):
            ppga.train("sphere", CONFIG, budget=Budget(iterations=1), output=place)


def test_one_policy_can_be_saved_and_begun_with(tmp_path: Path) -> None:
    first = ppga.train("sphere", CONFIG, budget=Budget(iterations=5)).archive
    first.only(first.best()).save(tmp_path / "policy.safetensors")
    assert len(ppga.load_archive(tmp_path / "policy.safetensors")) == 1
    config = replace(CONFIG, init_from=str(tmp_path / "policy.safetensors"))
    second = ppga.train("sphere", config, budget=Budget(iterations=1))
    assert second.record is not None
    assert second.record["search_objective"][0] == pytest.approx(first.elites["objective"].max(), rel=1e-5)


def test_scores_that_cannot_be_compared_are_not_begun_with(tmp_path: Path) -> None:
    short = Sphere(CONFIG.search, solution_size=10)
    ppga.train(short, CONFIG, budget=Budget(iterations=1), output=tmp_path / "run")
    config = replace(CONFIG, init_from=str(tmp_path / "run"))
    with pytest.raises(InputError, match="its dimensions is 10, here 20"):
        ppga.train("sphere", config, budget=Budget(iterations=1))


def test_a_budget_that_is_never_used_up_is_refused() -> None:
    with pytest.raises(InputError, match="not simulated"):
        ppga.train("sphere", CONFIG, budget=Budget(env_steps=100))
