"""CMA-MAEGA (TD3, ES): gradients of measures, and what enters the archives."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ppga.algorithms.cma_maega import CMAMAEGA, CMAMAEGAConfig, ESConfig, mirrored_noise
from ppga.archives import ArchiveConfig, EliteArchive, SoftArchiveConfig
from ppga.problems import Evaluation, LearningReport, Sphere
from ppga.problems.sphere import OPTIMUM


def test_openai_es_estimates_the_gradients_of_measures() -> None:
    """Of linear measures, whose gradients are known, in ten dimensions."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(2, 10))
    noise = mirrored_noise(rng, 2000, 10)
    np.testing.assert_array_equal(noise[:1000], -noise[1000:])
    measures = (noise @ truth.T).astype(np.float32)
    zeros, ones = np.zeros(2000), np.ones(2000)
    scores = Evaluation(zeros, zeros, measures, np.zeros((2000, 2)), ones, ones, 0, 2000, 2000)
    algorithm: Any = SimpleNamespace(config=CMAMAEGAConfig(es=ESConfig(sigma=0.02)))
    estimated = CMAMAEGA.measure_gradients(algorithm, noise, scores)
    for gradient, true in zip(estimated, truth, strict=True):
        assert gradient @ true / np.linalg.norm(gradient) / np.linalg.norm(true) > 0.97


class LearnedSphere(Sphere):
    """The sphere for an algorithm that learns its gradient; the greedy actor is the optimum."""

    def learn(self, state: Any, key: Any, steps: int) -> tuple[Any, LearningReport]:  # noqa: ARG002
        return state, LearningReport()

    def gradient(self, state: Any, number: int, solution: np.ndarray, *_: Any) -> np.ndarray:  # noqa: ARG002
        return OPTIMUM - solution

    def greedy(self, state: Any) -> np.ndarray:  # noqa: ARG002
        return np.full((1, self.solution_size), OPTIMUM, np.float32)


@pytest.mark.parametrize("insert", [True, False])
def test_samples_and_the_greedy_actor_enter_both_archives(insert: bool) -> None:
    """All evaluated policies are added, but samples only if so configured; the emitter ranks its branches."""
    problem = LearnedSphere()
    elites = EliteArchive(20, (400, 400), problem.measure_ranges, {}, 0.0, ArchiveConfig())
    config = CMAMAEGAConfig(
        seed=1,
        confirm=None,
        archive=SoftArchiveConfig(alpha=0.5, threshold_min=0.0),
        branches=6,
        sigma0=1.0,
        es=ESConfig(samples=8, sigma=2.0, insert=insert),
    )
    algorithm = CMAMAEGA(problem, config, elites)
    algorithm.start()
    record = algorithm.step()
    evaluated = 8 + 1 + 1 + 5
    assert record["evaluations"] == evaluated
    assert [emitter.batch_size for emitter in algorithm.emitters] == [5]
    # cells are so small that no two policies share one
    entered = evaluated if insert else evaluated - 8
    assert record["new_elites"] == record["elites"] == record["soft_entries"] == entered
    noise = mirrored_noise(algorithm.generator("samples"), 8, 20)
    for solutions in (elites.elites()["solution"], algorithm.soft.state()["solution"]):
        assert len(solutions) == entered
        assert (solutions == np.float32(OPTIMUM)).all(axis=1).sum() == 1
        distances = np.linalg.norm(solutions[:, None] - solutions[None], axis=-1)
        for sample, mirrored in zip(noise[:4], noise[4:], strict=True):
            distance = 2 * np.linalg.norm(sample - mirrored)
            assert np.isclose(distances, distance, rtol=1e-4).any() == insert, "a mirrored pair"
