"""Adaptation to damage: compared with scikit-learn's Gaussian process, and on an invented robot."""

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor  # type: ignore[import-untyped]
from sklearn.gaussian_process.kernels import ConstantKernel, Matern  # type: ignore[import-untyped]

import ppga
from ppga import InputError
from ppga.adaptation import EXPLORATION, LENGTH_SCALE, TRIAL_NOISE, matern
from ppga.archives import Archive


def repertoire(seed: int, side: int = 12) -> Archive:
    """A full grid with a smooth objective."""
    x, y = np.meshgrid(*[(np.arange(side) + 0.5) / side] * 2, indexing="ij")
    rng = np.random.default_rng(seed)
    objective = 1000 + 400 * np.sin(4 * x + rng.uniform(0, 6)) * np.cos(3 * y + rng.uniform(0, 6))
    n = side * side
    elites = {
        "index": np.arange(n, dtype=np.int32),
        "solution": np.zeros((n, 1), np.float32),
        "objective": objective.ravel().astype(np.float32),
        "measures": np.stack([3 * x.ravel(), y.ravel() - 0.5], axis=1).astype(np.float32),
    }
    description = {
        "task": {"name": "invented"}, "network": None, "shape": [side, side], "qd_offset": 0.0,
        "ranges": [[0.0, 3.0], [-0.5, 0.5]], "measure_names": ["a", "b"],
    }  # fmt: skip
    return Archive(description, elites)


def test_expected_rewards_are_those_of_a_gaussian_process() -> None:
    archive = repertoire(0)
    prior = archive.elites["objective"].astype(float)
    truth = prior - 700 * (archive.elites["measures"][:, 1] > 0)
    adaptation = ppga.adapt(archive, lambda cell: float(truth[cell]), 8, stop_ratio=10.0, stop_share=10.0)
    assert len(adaptation.cells) == 8
    assert len(set(adaptation.cells.tolist())) == 8, "no elite twice"
    place = (archive.elites["measures"] - [0.0, -0.5]) / [3.0, 1.0]
    std = prior.std()
    kernel = ConstantKernel(std**2, "fixed") * Matern(LENGTH_SCALE, "fixed", nu=2.5)
    for count in range(1, 9):
        tried = adaptation.cells[:count]
        oracle = GaussianProcessRegressor(kernel, alpha=(TRIAL_NOISE * std) ** 2, optimizer=None)
        oracle.fit(place[tried], truth[tried] - prior[tried])
        change, uncertainty = oracle.predict(place, return_std=True)
        if count == 8:
            np.testing.assert_allclose(adaptation.expected_rewards, prior + change, rtol=1e-6, atol=1e-3)
        else:  # the next trial has the highest upper confidence bound
            bound = prior + change + EXPLORATION * uncertainty
            bound[tried] = -np.inf
            assert int(np.argmax(bound)) == adaptation.cells[count]
    np.testing.assert_allclose(matern(place[:5], place[:3], 0.2), Matern(0.2, nu=2.5)(place[:5], place[:3]))


@pytest.mark.parametrize("seed", range(5))
def test_adaptation_finds_better_elites_than_random_trials(seed: int) -> None:
    """Half of all behaviors fail, including that of the best elite."""
    archive = repertoire(seed)
    prior, a = archive.elites["objective"], archive.elites["measures"][:, 0]
    lost = (a > 1.5) == (a[archive.best()] > 1.5)
    truth = np.where(lost, 100.0, prior)
    adaptation = ppga.adapt(archive, lambda cell: float(truth[cell]), 12)
    rng = np.random.default_rng(seed)
    random = np.mean([rng.choice(truth, len(adaptation.cells), False).max() for _ in range(500)])
    assert truth[adaptation.best] > random
    assert truth[adaptation.best] > 0.85 * truth.max()
    assert len(adaptation.best_cells) == len(adaptation.cells)
    assert set(adaptation.best_cells) <= set(adaptation.cells)


def test_adaptation_of_an_intact_robot_stops_after_one_trial() -> None:
    archive = repertoire(1)
    adaptation = ppga.adapt(archive, lambda cell: float(archive.elites["objective"][cell]))
    assert adaptation.stopped_early
    assert adaptation.cells.tolist() == [archive.best()]


def test_a_reward_that_is_not_finite_counts_as_the_qd_offset() -> None:
    archive = repertoire(2)
    adaptation = ppga.adapt(archive, lambda cell: np.nan if cell == archive.best() else 900.0, 3)
    assert adaptation.rewards[0] == archive.qd_offset
    assert adaptation.best != archive.best()


def test_bad_input_is_rejected() -> None:
    with pytest.raises(InputError, match="trials"):
        ppga.adapt(repertoire(0), float, 0)
    with pytest.raises(InputError, match="at least two elites"):
        ppga.adapt(repertoire(0).only(3), float)
