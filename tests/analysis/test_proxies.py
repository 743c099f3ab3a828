"""Comparison of measure proxies with measures."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import ppga
from ppga import InputError
from ppga.analysis.proxies import _correlation, _rank_correlation, _ranks
from ppga.rollouts import Recording
from ppga.tasks import find, make_task

from helpers.tasks import SLIDER, registry_restored, shared_task


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with registry_restored():
        yield


def test_proxies_are_compared_with_measures() -> None:
    task = shared_task("hopper", episode_length=40)
    own = ppga.check_proxies(task, policies=32)
    np.testing.assert_allclose(own.proxies, own.measures, atol=1e-6)
    np.testing.assert_allclose(own.rank_correlation, 1.0)
    assert own.problems() == []

    def opposite(recording: Recording) -> np.ndarray:
        steps = np.asarray(recording.active).sum(axis=1)[:, None]
        return np.asarray(-np.asarray(recording.proxies).sum(axis=1) / steps)

    wrong = ppga.check_proxies(task, opposite, policies=32)
    np.testing.assert_allclose(wrong.correlation, -1.0, atol=1e-5)
    assert "rank correlation of only -1.00" in wrong.problems()[0]
    constant = ppga.check_proxies(task, lambda recording: np.ones(len(recording.reward)), policies=8)
    assert "the measure is always 1" in constant.problems()[0]
    with pytest.raises(InputError, match="is not a finite number of 1 of 8 episodes"):
        ppga.check_proxies(
            task, lambda recording: np.where(np.arange(len(recording.reward)) == 3, np.nan, 1.0), 8
        )
    assert own.plot().get_xlabel() == "mean of the proxy"


def test_a_proxy_that_varies_by_rounding_only_is_constant(tmp_path: Path) -> None:
    """The mean of 1/3 in every step, over episodes of different lengths."""
    content = SLIDER.replace("return body.qpos\n", "return 0 * body.qpos + 1 / 3\n")
    content = content.replace("jnp.zeros(1), jnp.zeros(1)", "jnp.zeros(1), jax.random.normal(key, (1,))")
    content += "\n    def terminated(self, body):\n        return jnp.abs(body.qpos[0]) > 0.03\n"
    (tmp_path / "slider.py").write_text("import jax\n" + content)
    task = make_task(find(f"{tmp_path / 'slider.py'}:Slider"))
    report = ppga.check_proxies(
        task, lambda recording: np.asarray(recording.active).mean(axis=1), policies=16
    )
    assert np.ptp(report.measures) > 0.1
    assert "the proxy is always 0.333333; it has no gradient" in report.problems()[0]
    assert np.isnan(report.correlation).all()
    assert np.isnan(report.rank_correlation).all()
    noise = np.float32(1 / 3) + np.array([0, 1, 2, 3]) * 2e-8
    assert np.isnan(_correlation(noise, np.arange(4.0)))
    assert np.isnan(_rank_correlation(noise, np.arange(4.0)))


def test_equal_values_have_the_mean_of_their_ranks() -> None:
    from scipy.stats import rankdata

    for seed in range(5):
        values = np.random.default_rng(seed).integers(0, 6, 30).astype(float)
        np.testing.assert_allclose(_ranks(values), rankdata(values))
