"""`ppga adapt`, and the adaptation to a simulated damage."""

import json
from pathlib import Path

import numpy as np
import pytest

import ppga
from ppga.adaptation import draw, recover
from ppga.analysis.corrected import play_all
from ppga.archives import load_archive
from ppga.tasks import robot

from helpers.commands import command


@pytest.fixture(scope="module")
def walkers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a few elites of walker2d, in episodes of 20 steps."""
    run = tmp_path_factory.mktemp("walkers") / "run"
    config, budget = ppga.preset("smoke", "walker2d", "map-elites")
    ppga.train("walker2d", config, budget=budget, output=run)
    return run


def test_the_command_writes_figures_and_a_picture(walkers: Path, tmp_path: Path) -> None:
    words = ["--damage", "weak:foot_joint:0", "--trials", "2", "--episodes", "2", "--sets", "3"]
    done = command("adapt", str(walkers), *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "mean over 3 sets" in done.stdout
    assert "chosen elite scores" in done.stdout
    content = json.loads((tmp_path / "adaptation.json").read_text())
    assert content["damage"] == ["weak:foot_joint:0"]
    assert content["possible"] >= content["adapted"][-1]
    assert len(content["sets"]) == 3
    assert content["adapted"][-1] == pytest.approx(np.mean([each["adapted"][-1] for each in content["sets"]]))
    assert content["trials"] == pytest.approx(np.mean([len(each["cells"]) for each in content["sets"]]))
    assert (tmp_path / "adaptation.png").stat().st_size > 5000
    rejected = command("adapt", str(walkers), "--damage", "lock:elbow", folder=tmp_path)
    assert rejected.returncode == 2
    assert "Possible: thigh_joint" in rejected.stderr


def test_each_set_has_its_own_seed_and_is_scored_by_other_episodes(walkers: Path) -> None:
    archive = load_archive(walkers)
    task = ppga.damaged(robot("walker2d", episode_length=20), ["friction:0.3"])
    recovery = recover(archive, task, 2, 3, seed=4, sets=2)
    for number, adaptation in enumerate(recovery.adaptations):
        rewards = play_all(archive, task, 3, 4 + number)["objective"]
        trial = dict(zip(archive.elites["index"].tolist(), rewards[:, 0].tolist(), strict=True))
        expected = ppga.adapt(archive, trial.__getitem__, 2)
        np.testing.assert_array_equal(adaptation.cells, expected.cells)
        np.testing.assert_allclose(adaptation.rewards, expected.rewards)
        mean = rewards[:, 1:].mean(axis=1)
        chosen = [mean[archive._row(int(cell))] for cell in expected.best_cells]
        np.testing.assert_allclose(recovery.adapted[number, : len(chosen)], chosen)
        np.testing.assert_allclose(recovery.adapted[number, len(chosen) :], chosen[-1])
        assert recovery.champion[number] == pytest.approx(mean[archive._row(archive.best())])
        assert recovery.possible[number] == pytest.approx(mean.max())
    content = recovery.to_json()
    np.testing.assert_allclose(content["adapted"], recovery.adapted.mean(axis=0))
    axes = draw(recovery)
    np.testing.assert_allclose(np.asarray(axes.lines[0].get_ydata(), float), recovery.adapted.mean(axis=0))
    assert len(axes.collections) == 2, "bands of the variation between sets"
    single = recover(archive, task, 1, 1, seed=4)
    assert single.adapted[0, 0] == single.adaptations[0].rewards[0], "the trial is the only episode"
    assert not draw(single).collections
