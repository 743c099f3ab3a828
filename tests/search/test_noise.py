"""Exploration noise that the archive controls."""

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.algorithms import PPGA
from ppga.problems import Sphere
from ppga.runs.build import make_algorithm
from ppga.search import NoiseConfig, noise_factor


def test_noise_grows_below_the_yield_and_shrinks_otherwise() -> None:
    config = NoiseConfig(low_yield=0.25, factor=1.5)
    factors = [noise_factor(config, new_elites, 8) for new_elites in (0, 1, 2, 8)]
    assert factors == [1.5, 1.5, 1 / 1.5, 1 / 1.5]
    assert noise_factor(config, 0, 8) * noise_factor(config, 8, 8) == pytest.approx(1.0)
    assert noise_factor(replace(config, low_yield=0.0), 0, 8) < 1, "without a yield, noise always shrinks"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"low_yield": -1.0}, r"--noise\.low-yield must lie in \[0, inf\]"),
        ({"factor": 0.9}, r"noise\.factor must lie in \[1, inf\]"),
        ({"factor": np.nan}, r"noise\.factor must lie in \[1, inf\]"),
        ({"min_std": 0.0}, r"--noise\.min-std must be a positive number"),
        ({"max_std": 0.05}, r"--noise\.max-std must be at least --noise\.min-std, 0\.1, got 0\.05"),
        ({"max_std": np.nan}, r"--noise\.max-std must be at least"),
    ],
)
def test_bad_settings(changes: dict[str, float], message: str) -> None:
    NoiseConfig().check()
    with pytest.raises(InputError, match=message):
        replace(NoiseConfig(), **changes).check()


class NoisySphere(Sphere):
    """A sphere that records how its noise is scaled."""

    calls: ClassVar[list[tuple[float, float, float]]] = []

    def scale_exploration_noise(self, state: Any, factor: float, low: float, high: float) -> Any:
        self.calls.append((factor, low, high))
        return state


@pytest.mark.parametrize("noise", [None, NoiseConfig(low_yield=1e3, min_std=0.2), NoiseConfig(low_yield=0.0)])
def test_ppga_scales_the_noise_before_each_walk_if_it_has_the_section(noise: NoiseConfig | None) -> None:
    preset, _ = ppga.preset("smoke", "sphere")
    assert isinstance(preset, ppga.PPGAConfig)
    config = preset.replace(**{"ppo.std": "fixed"})
    algorithm = make_algorithm(NoisySphere(), replace(config, noise=noise))
    assert isinstance(algorithm, PPGA)
    algorithm.start()
    NoisySphere.calls.clear()
    algorithm.step()
    if noise is None:
        assert NoisySphere.calls == []
    else:
        factor = noise.factor if noise.low_yield else 1 / noise.factor
        assert NoisySphere.calls == [(factor, noise.min_std, noise.max_std)]
    with pytest.raises(InputError, match=r"the section noise needs --ppo\.std fixed, got learned"):
        replace(preset, noise=NoiseConfig()).check(2)
