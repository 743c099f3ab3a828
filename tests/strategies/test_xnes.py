"""xNES against an independent implementation, and on problems with known answers."""

from collections.abc import Callable
from typing import Any

import cmaes
import numpy as np
import pytest
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter, GradientArborescenceEmitter
from ribs.schedulers import Scheduler

from ppga.strategies import XNES


@pytest.mark.parametrize("d", [3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_equals_cmaes_over_50_generations(d: int, seed: int) -> None:
    """The same ranked samples give the same mean and covariance factor."""
    rng = np.random.default_rng(seed)
    start, goal = rng.normal(size=d), rng.normal(size=d)
    n = 12
    ours = XNES(sigma0=0.7, solution_dim=d, batch_size=n, seed=seed)
    ours.reset(start)
    theirs = cmaes.XNES(mean=start.copy(), sigma=0.7, population_size=n, seed=seed)
    for _ in range(50):
        samples = ours.ask()
        losses = ((samples - goal) ** 2 * np.arange(1, d + 1)).sum(axis=1)
        ours.tell(np.argsort(losses), -np.sort(losses))
        theirs.tell([(x, loss) for x, loss in zip(samples, losses, strict=True)])
        np.testing.assert_allclose(ours.mean, theirs._mean, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(ours.scale * ours.shape, theirs._sigma * theirs._B, rtol=1e-6, atol=1e-9)
    assert np.linalg.det(ours.shape) == pytest.approx(1.0)


def minimize(es: XNES, loss: Callable[[Any], Any], generations: int) -> None:
    for _ in range(generations):
        losses = loss(es.ask())
        es.tell(np.argsort(losses), -np.sort(losses))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_adapts_to_a_rotated_ellipsoid(seed: int) -> None:
    """The covariance must take the shape of the inverse Hessian: stretched 100:1 along rotated axes."""
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.normal(size=(4, 4)))
    hessian = rotation @ np.diag([1.0, 10.0, 100.0, 10_000.0]) @ rotation.T
    es = XNES(sigma0=1.0, solution_dim=4, batch_size=20, seed=seed)
    es.reset(np.full(4, 3.0))
    minimize(es, lambda x: np.einsum("ni,ij,nj->n", x, hessian, x), 300)
    eigenvalues = np.linalg.eigvals(hessian @ es.covariance).real  # all equal when the shapes match
    assert eigenvalues.max() / eigenvalues.min() < 100
    assert es.mean @ hessian @ es.mean < 1e-6


def test_a_restored_state_continues_exactly() -> None:
    def loss(x: Any) -> Any:
        return (x**2).sum(axis=1)

    original = XNES(sigma0=1.0, solution_dim=3, batch_size=8, seed=4)
    minimize(original, loss, 5)
    saved = original.state()
    minimize(original, loss, 5)
    restored = XNES(sigma0=1.0, solution_dim=3, batch_size=8, seed=99)
    restored.load_state(saved)
    minimize(restored, loss, 5)
    for name, value in original.state().items():
        np.testing.assert_array_equal(restored.state()[name], value)


def test_a_reset_restores_the_shape_and_does_not_repeat_samples() -> None:
    es = XNES(sigma0=0.5, solution_dim=3, batch_size=8, seed=0)
    first = es.ask()
    minimize(es, lambda x: (x**2).sum(axis=1), 10)
    es.reset(np.zeros(3))
    np.testing.assert_array_equal(es.covariance, 0.25 * np.eye(3))
    assert not np.allclose(es.ask(), first)


def test_samples_without_a_score_do_not_count() -> None:
    """Ranking five of eight samples gives the update of a generation of these five."""
    es, five = (XNES(sigma0=1.0, solution_dim=2, batch_size=8, seed=1) for _ in range(2))
    es.ask()
    order = np.array([6, 0, 3, 5, 2])
    es.tell(order, np.arange(5.0)[::-1])
    five.ask()
    five._samples = five._samples[order]
    five.tell(np.arange(5), np.arange(5.0)[::-1])
    np.testing.assert_allclose(es.mean, five.mean)
    np.testing.assert_allclose(es.covariance, five.covariance)
    before = es.state()
    es.ask()
    es.tell(np.array([3]), np.array([1.0]))
    np.testing.assert_array_equal(es.mean, before["mean"])


@pytest.mark.parametrize(("scale", "stops"), [(1.0, False), (1e9, True), (1e-20, True), (np.nan, True)])
def test_check_stop_reports_a_degenerate_distribution(scale: float, stops: bool) -> None:
    es = XNES(sigma0=1.0, solution_dim=3)
    es.scale = scale
    assert es.check_stop(np.zeros(7)) is stops


def test_works_in_stock_pyribs_emitters() -> None:
    """Both kinds of emitter must fill cells and approach the optimum of a sphere with linear measures."""
    archive = GridArchive(solution_dim=6, dims=(20, 20), ranges=[(-2, 2), (-2, 2)], seed=0)
    emitters = [
        EvolutionStrategyEmitter(archive, x0=np.full(6, 1.0), sigma0=0.3, es=XNES, batch_size=20, seed=1),
        GradientArborescenceEmitter(
            archive, x0=np.full(6, 1.0), sigma0=0.3, lr=0.2, es=XNES, batch_size=20, ranker="imp", seed=2
        ),
    ]
    direct, branching = emitters
    scheduler = Scheduler(archive, [direct])
    for _ in range(60):
        x = scheduler.ask()
        scheduler.tell(-(x**2).sum(axis=1), x[:, :2])
    best = archive.stats.obj_max
    scheduler = Scheduler(archive, [branching])
    gradients = np.zeros((1, 3, 6))
    gradients[0, 1, 0] = gradients[0, 2, 1] = 1.0
    for _ in range(60):
        x = scheduler.ask_dqd()
        gradients[0, 0] = -2 * x[0]
        scheduler.tell_dqd(-(x**2).sum(axis=1), x[:, :2], gradients.copy())
        x = scheduler.ask()
        scheduler.tell(-(x**2).sum(axis=1), x[:, :2])
    assert archive.stats.coverage > 0.5
    assert best is not None
    assert archive.stats.obj_max is not None
    assert 0 >= archive.stats.obj_max >= best > -6.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sigma0": 0.0}, "sigma0 must be a positive number, got 0.0"),
        ({"sigma0": np.inf}, "sigma0 must be a positive number, got inf"),
        ({"solution_dim": 0}, "solution_dim must be an integer of at least 1, got 0"),
        ({"batch_size": -2}, "batch_size must be an integer of at least 1, got -2"),
        ({"upper_bounds": 1.0}, "without bounds"),
    ],
)
def test_bad_settings(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        XNES(**{"sigma0": 1.0, "solution_dim": 3, **options})
    assert message in str(caught.value)


def test_bad_rankings() -> None:
    es = XNES(sigma0=1.0, solution_dim=2, batch_size=4, seed=0)
    es.ask()
    for indices in ([0, 0, 1], [0, 4], [-1, 2], [[0, 1]]):
        with pytest.raises(ValueError, match="ranking_indices must"):
            es.tell(np.array(indices), np.zeros(len(indices)))
    with pytest.raises(ValueError, match=r"mean must have shape \(2,\), got \(3,\)"):
        es.reset(np.zeros(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scale": np.array(0.0)}, "its scale above 0"),
        ({"mean": np.array([0.0, np.nan])}, "must be finite"),
        ({"mean": np.zeros(3)}, "mean"),
        ({"generation": np.array(-1)}, "its generation at least 0"),
        ({"seed": np.array(1.5)}, "seed"),
        ({"extra": np.zeros(1)}, "extra"),
    ],
)
def test_bad_states(changes: dict[str, Any], message: str) -> None:
    es = XNES(sigma0=1.0, solution_dim=2, batch_size=4, seed=0)
    before = es.state()
    with pytest.raises(ValueError, match=message):
        es.load_state(before | changes)
    with pytest.raises(ValueError, match="shape"):
        es.load_state({name: value for name, value in before.items() if name != "shape"})
    for name, value in es.state().items():
        np.testing.assert_array_equal(value, before[name])
