"""Presets on tasks that they were not chosen on."""

import pytest

import ppga
from ppga.algorithms import ALGORITHMS
from ppga.archives import SoftArchiveConfig

from helpers.slider import Slider


class Offset(Slider):
    """A slider whose QD-score has an offset."""

    offset = 0.0

    @property
    def qd_offset(self) -> float:
        return self.offset


@pytest.mark.parametrize("name", ["laptop", "paper", "smoke"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_thresholds_admit_episodes_without_progress(algorithm: str, name: str) -> None:
    """The QD-score's offset is the return of an episode without progress."""
    tuned = ppga.preset(name, "walker2d", algorithm)[0].archive
    for offset in (-70.0, 55.0):
        task = Offset()
        task.offset = offset
        archive = ppga.preset(name, task, algorithm)[0].archive
        if isinstance(tuned, SoftArchiveConfig):
            assert isinstance(archive, SoftArchiveConfig)
            assert tuned.threshold_min is not None
            assert archive.threshold_min == min(tuned.threshold_min, offset)


@pytest.mark.parametrize("algorithm", ["ppga", "ppga-no-measures", "ppo", "ppo-archive"])
def test_environments_can_be_divided_among_the_agents(algorithm: str) -> None:
    for name in ("laptop", "paper"):
        config, _ = ppga.preset(name, Slider(), algorithm)
        assert config.ppo.environments % 2 == 0  # type: ignore[attr-defined]  # two agents
        config.check(1)
