"""Presets on tasks that they were not chosen on."""

from typing import Any

import pytest

import ppga
from ppga.algorithms import ALGORITHMS
from ppga.archives import SoftArchiveConfig
from ppga.config import differences

from helpers.slider import Slider


class Offset(Slider):
    """A slider whose QD-score has an offset."""

    offset = 0.0

    @property
    def qd_offset(self) -> float:
        return self.offset


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [(algorithm, name) for algorithm in ALGORITHMS for name in ALGORITHMS[algorithm].presets],
)
def test_thresholds_admit_episodes_without_progress(algorithm: str, name: str) -> None:
    """The QD-score's offset is the return of an episode without progress."""
    tuned = ppga.preset(name, "humanoid", algorithm)[0].archive
    for offset in (-70.0, 55.0):
        task = Offset()
        task.offset = offset
        archive = ppga.preset(name, task, algorithm)[0].archive
        if isinstance(tuned, SoftArchiveConfig):
            assert isinstance(archive, SoftArchiveConfig)
            assert tuned.threshold_min is not None
            assert archive.threshold_min == min(tuned.threshold_min, offset)


@pytest.mark.parametrize("algorithm", ["ppga", "ppga-no-measures"])
@pytest.mark.parametrize(
    ("task", "shape", "alpha", "sigma0", "rate", "threshold_min", "std", "target_kl", "clip"),
    [
        ("humanoid", (50, 50), 0.1, 0.5, 3e-4, 200.0, "reset", 0.008, 10.0),
        ("walker2d", (50, 50), 0.5, 1.0, 1e-3, 200.0, "reset", 0.008, None),
        ("halfcheetah", (50, 50), 0.5, 1.0, 1e-3, 200.0, "learned", 0.008, None),
        ("ant", (10,) * 4, 0.1, 3.0, 1e-3, -500.0, "learned", 0.0, None),
    ],
)
def test_paper_scripts_has_the_numbers_of_the_scripts(
    algorithm: str, task: str, shape: Any, alpha: float, sigma0: float, rate: float, threshold_min: float,
    std: str, target_kl: float, clip: float | None,
) -> None:  # fmt: skip
    config: Any = ppga.preset("paper-scripts", task, algorithm)[0]
    default = ppga.make_task(task).archive_shape
    assert (config.archive.shape or default, config.archive.alpha) == (shape, alpha)
    assert (config.archive.threshold_min, config.archive.restart_from) == (threshold_min, "entries")
    assert (config.strategy.sigma0, config.strategy.mean) == (sigma0, "random")
    assert (config.ppo.learning_rate, config.ppo.std, config.ppo.target_kl) == (rate, std, target_kl)
    assert (config.simulation.clip, config.branches, config.evaluation.episodes) == (clip, 300, 10)
    assert (config.jacobian_updates, config.walk_updates, config.ppo.environments) == (10, 10, 3000)


def test_paper_and_paper_scripts_differ_where_the_scripts_contradict_the_text() -> None:
    contradictions = {
        "humanoid": {"archive.shape", "ppo.std"},
        "walker2d": {"archive.shape", "archive.alpha"},
        "halfcheetah": {"archive.shape", "archive.alpha", "ppo.std"},
        "ant": set(),
    }
    for task, expected in contradictions.items():
        text, scripts = (ppga.preset(name, task)[0] for name in ("paper", "paper-scripts"))
        assert {name for name, _, _ in differences(text, scripts)} == expected, task


@pytest.mark.parametrize("algorithm", ["ppga", "ppga-no-measures", "ppo", "ppo-archive"])
def test_environments_can_be_divided_among_the_agents(algorithm: str) -> None:
    for name in ("laptop", "paper"):
        config, _ = ppga.preset(name, Slider(), algorithm)
        assert config.ppo.environments % 2 == 0  # type: ignore[attr-defined]  # two agents
        config.check(1)
