"""Commands, engines and figures on a small archive of random hoppers."""

import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import ppga
from ppga.analysis import frames, gaits
from ppga.analysis.corrected import evaluate
from ppga.archives import Archive, heatmaps
from ppga.cli import main
from ppga.errors import InputError
from ppga.policies.network import Network
from ppga.policies.normalizer import CLIP
from ppga.policies.policy import init_policy
from ppga.rendering import Renderer

from helpers.tasks import shared_task

STEPS = 12
CELLS = [1, 4, 7]


@pytest.fixture(scope="module")
def archive() -> Archive:
    """Three random hoppers with invented scores."""
    task = shared_task("hopper", episode_length=STEPS)
    network = Network((task.observation_size, 8, task.action_size))
    keys = jax.random.split(jax.random.key(0), len(CELLS))
    policies = jax.vmap(lambda key: init_policy(key, network, 0.4))(keys)
    n = len(CELLS)
    elites = {
        "index": np.array(CELLS, np.int32),
        "solution": np.asarray(policies.parameters) * 3,
        "objective": np.array([1.0, 3.0, 2.0], np.float32),
        "measures": np.array([[0.15], [0.45], [0.75]], np.float32),
        "log_std": np.asarray(policies.log_std),
        "observation_mean": np.zeros((n, task.observation_size), np.float32),
        "observation_variance": np.ones((n, task.observation_size), np.float32),
        "observation_count": np.ones(n, np.float32),
    }
    description = {
        "task": {"name": "hopper", "physics": "mujoco", "episode_length": STEPS, "integrator": "fast"},
        "network": {"sizes": list(network.sizes), "observation_clip": CLIP},
        "shape": [10], "ranges": [[0.0, 1.0]], "measure_names": ["foot"], "qd_offset": 0.0,
    }  # fmt: skip
    return Archive(description, elites)


def command(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", ["ppga", *map(str, words)])
    main()


def test_evaluate_writes_the_corrected_archive_and_its_metrics(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive.save(tmp_path / "archive.safetensors")
    command(monkeypatch, "evaluate", tmp_path, "--episodes", "3", "--seed", "5")
    output = capsys.readouterr().out
    expected = evaluate(archive, 3, seed=5)
    corrected = ppga.load_archive(tmp_path / "corrected.safetensors")
    for name in ("index", "objective", "measures", "solution"):
        np.testing.assert_array_equal(corrected.elites[name], expected.corrected.elites[name])
    figures = json.loads((tmp_path / "evaluation.json").read_text())
    assert figures["best"] == pytest.approx(corrected.elites["objective"].max())
    assert figures["qd_score"] == pytest.approx(corrected.qd_score)
    assert f"{figures['best']:,.0f}" in output
    rows = (tmp_path / "evaluation.csv").read_text().splitlines()
    assert len(rows) == 1 + len(CELLS)
    command(
        monkeypatch, "compare", tmp_path, tmp_path / "corrected.safetensors", "--output", tmp_path / "d.png"
    )
    assert (tmp_path / "d.png").stat().st_size > 0


def test_both_engines_give_the_same_scores(archive: Archive) -> None:
    """Over a few steps; later, trajectories diverge because of contacts."""
    mujoco, mjx = evaluate(archive, 2), evaluate(archive, 2, physics="mjx")
    assert (mujoco.physics, mjx.physics) == ("mujoco", "mjx")
    np.testing.assert_allclose(mjx.objective, mujoco.objective, rtol=1e-3)
    np.testing.assert_allclose(mjx.measures, mujoco.measures, atol=1e-6)
    assert mjx.corrected.description["corrected"]["physics"] == "mjx"


def test_frames_show_a_moving_robot(archive: Archive) -> None:
    task = shared_task("hopper", episode_length=STEPS)
    try:
        Renderer(task.model, 64, 48).close()
    except InputError as error:
        pytest.skip(str(error))
    images = frames.render_frames(task, archive, CELLS, count=3, seconds=0.05, size=(64, 48))
    assert images.shape == (3, 3, 48, 64, 3)
    for elite in images.astype(int):
        assert np.abs(elite[0] - elite[2]).max() > 20
    axes = frames.strips(archive, {"best": 4, "best again": 4, "another": 1}, count=2)
    figure = axes.get_figure(root=True)
    assert figure is not None
    titles = [axes.get_title(loc="left") for part in figure.subfigs for axes in part.axes]
    assert [title.split(":")[0] for title in titles] == ["1  best", "2  another"]


def test_a_machine_that_cannot_render_raises_an_error(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ppga.rendering._backends", lambda: ("mujoco.no_such_backend",))
    with pytest.raises(
        InputError, match=r"cannot render images without a window \(no_such_backend: No module"
    ):
        frames.strips(archive, gaits.corners(archive))


def test_cells_are_marked_at_their_place_on_the_heatmap() -> None:
    """Four measures: the third and fourth nest inside the cells of the first two."""
    shape, ranges = (2, 3, 4, 5), [[0, 2], [10, 13], [0, 1], [0, 1]]
    elites = {"index": np.array([0]), "objective": np.zeros(1), "measures": np.zeros((1, 4))}
    names = list("abcd")
    archive = Archive({"shape": shape, "ranges": ranges, "measure_names": names, "qd_offset": 0}, elites)
    cell = int(np.ravel_multi_index((1, 2, 3, 0), shape))
    x, y = heatmaps.place(archive, cell)
    assert x == pytest.approx(1 + 3.5 / 4)
    assert y == pytest.approx(12 + 0.5 / 5)
    axes = heatmaps.heatmap(Archive(archive.description, elites | {"index": np.array([cell])}))
    image = axes.images[0]
    values = image.get_array()
    assert values is not None
    rows, columns = values.shape
    ((row, column),) = np.argwhere(~np.ma.getmaskarray(values))
    assert (column + 0.5) / columns * 2 == pytest.approx(x)
    assert 10 + (rows - row - 0.5) / rows * 3 == pytest.approx(y)
