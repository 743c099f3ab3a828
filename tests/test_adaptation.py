"""Adapting to damage: the arithmetic against scikit-learn's Gaussian process, and a made-up robot."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
from sklearn.gaussian_process.kernels import ConstantKernel, Matern  # type: ignore[import-untyped]

import ppga
from ppga import InputError
from ppga.adaptation import CURIOSITY, LENGTH, NOISE, matern
from ppga.archives import Archive


def repertoire(seed: int, side: int = 12) -> Archive:
    """A full grid whose objective is smooth."""
    x, y = np.meshgrid(*[(np.arange(side) + 0.5) / side] * 2, indexing="ij")
    draws = np.random.default_rng(seed)
    height = 1000 + 400 * np.sin(4 * x + draws.uniform(0, 6)) * np.cos(3 * y + draws.uniform(0, 6))
    n = side * side
    elites = {
        "index": np.arange(n, dtype=np.int32),
        "solution": np.zeros((n, 1), np.float32),
        "objective": height.ravel().astype(np.float32),
        "measures": np.stack([3 * x.ravel(), y.ravel() - 0.5], axis=1).astype(np.float32),
    }
    description = {
        "task": {"name": "made up"}, "network": None, "shape": [side, side], "qd_offset": 0.0,
        "ranges": [[0.0, 3.0], [-0.5, 0.5]], "measure_names": ["a", "b"],
    }  # fmt: skip
    return Archive(description, elites)


def test_expectations_are_those_of_a_gaussian_process() -> None:
    archive = repertoire(0)
    prior = archive.elites["objective"].astype(float)
    truth = prior - 700 * (archive.elites["measures"][:, 1] > 0)
    found = ppga.adapt(archive, lambda cell: float(truth[cell]), 8, enough=10.0, whole=10.0)
    assert len(found.cells) == 8
    assert len(set(found.cells.tolist())) == 8, "no elite twice"
    place = (archive.elites["measures"] - [0.0, -0.5]) / [3.0, 1.0]
    spread = prior.std()
    kernel = ConstantKernel(spread**2, "fixed") * Matern(LENGTH, "fixed", nu=2.5)
    for count in range(1, 9):
        tried = found.cells[:count]
        oracle = GaussianProcessRegressor(kernel, alpha=(NOISE * spread) ** 2, optimizer=None)
        oracle.fit(place[tried], truth[tried] - prior[tried])
        change, doubt = oracle.predict(place, return_std=True)
        if count == 8:
            np.testing.assert_allclose(found.expected, prior + change, rtol=1e-6, atol=1e-3)
        else:  # and each trial was the one that promised most
            rated = prior + change + CURIOSITY * doubt
            rated[tried] = -np.inf
            assert int(np.argmax(rated)) == found.cells[count]
    np.testing.assert_allclose(matern(place[:5], place[:3], 0.2), Matern(0.2, nu=2.5)(place[:5], place[:3]))


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_what_still_works_sooner_than_chance(seed: int) -> None:
    """Half of all behaviours are lost, that of the champion among them."""
    archive = repertoire(seed)
    prior, a = archive.elites["objective"], archive.elites["measures"][:, 0]
    lost = (a > 1.5) == (a[archive.best()] > 1.5)
    truth = np.where(lost, 100.0, prior)
    found = ppga.adapt(archive, lambda cell: float(truth[cell]), 12)
    draws = np.random.default_rng(seed)
    chance = np.mean([draws.choice(truth, len(found.cells), False).max() for _ in range(500)])
    assert truth[found.best] > chance
    assert truth[found.best] > 0.85 * truth.max()
    assert len(found.chosen) == len(found.cells)
    assert set(found.chosen) <= set(found.cells)


def test_on_a_whole_robot_it_stops_at_once() -> None:
    archive = repertoire(1)
    found = ppga.adapt(archive, lambda cell: float(archive.elites["objective"][cell]))
    assert found.enough
    assert found.cells.tolist() == [archive.best()]


def test_what_is_not_finite_counts_as_nothing() -> None:
    archive = repertoire(2)
    found = ppga.adapt(archive, lambda cell: np.nan if cell == archive.best() else 900.0, 3)
    assert found.seen[0] == archive.qd_offset
    assert found.best != archive.best()


def test_bad_input() -> None:
    with pytest.raises(InputError, match="trials"):
        ppga.adapt(repertoire(0), float, 0)
    with pytest.raises(InputError, match="two elites at least"):
        ppga.adapt(repertoire(0).only(3), float)
