"""MAP-Elites and PGA-MAP-Elites: how new policies are made."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from ppga.algorithms.map_elites import MAPElites, MAPElitesConfig, VariationConfig
from ppga.algorithms.pga_me import PGAME, PGAMEConfig
from ppga.archives import ArchiveConfig, EliteArchive


def elites() -> EliteArchive:
    return EliteArchive(3, (4, 4), ((0, 1), (0, 1)), {}, 0.0, ArchiveConfig())


def test_iso_line_is_the_published_variation() -> None:
    """Noise around the first parent, and normally distributed steps along the line to the second one."""
    variation = VariationConfig(iso_sigma=0.1, line_sigma=0.5)
    algorithm = MAPElites(SimpleNamespace(), MAPElitesConfig(confirm=None, variation=variation), elites())
    parents = np.stack([np.zeros((20_000, 3)), np.tile([0.0, 0.0, 4.0], (20_000, 1))]).astype(np.float32)
    children = algorithm.vary(parents)
    np.testing.assert_allclose(children.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(children.std(axis=0), [0.1, 0.1, np.hypot(0.1, 2.0)], rtol=0.03)


def test_policy_gradients_and_iso_line_share_the_offspring() -> None:
    """Of 8: the greedy actor and three by policy gradients, which is half of them; the rest by iso+line."""
    arguments: dict[str, Any] = {}

    def policy_gradient_steps(
        state: Any,  # noqa: ARG001
        policies: np.ndarray,
        critics: np.ndarray,
        key: Any,  # noqa: ARG001
        steps: int,
    ) -> np.ndarray:
        arguments.update(critics=critics, parents=policies, steps=steps)
        return policies + 100

    problem = SimpleNamespace(
        greedy=lambda _: np.full((1, 3), -50.0),
        policy_gradient_steps=policy_gradient_steps,
        replay=[1],
    )
    archive = elites()
    measures = np.array([[0.1, 0.1], [0.5, 0.5], [0.9, 0.9]])
    archive.add(np.eye(3, dtype=np.float32), np.arange(3.0), measures)
    config = PGAMEConfig(confirm=None, batch_size=8, gradient_share=0.5, policy_steps=7)
    children = PGAME(problem, config, archive).offspring()
    assert children.shape == (8, 3)
    assert (children[0] == -50).all()
    assert (children[1:4] >= 100).all()
    assert (np.abs(children[4:]) < 5).all()
    np.testing.assert_array_equal(arguments["critics"], [0, 0, 0])
    assert arguments["parents"].shape == (3, 3)
    assert arguments["steps"] == 7
