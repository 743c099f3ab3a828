"""Weights of a walk, against their definition."""

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppga import InputError
from ppga.search import ObjectiveConfig, walk_weights
from ppga.storage import NumpyArray

MEANS = hnp.arrays(np.float64, st.integers(1, 5), elements=st.floats(-100, 100).map(lambda x: round(x, 3)))


def slow_weights(mean: NumpyArray, clip: bool, share: float) -> list[float]:
    """The definition, number by number."""
    reward, *measures = mean.tolist()
    least = share * sum(value**2 for value in measures) ** 0.5
    if clip and reward < 0:
        reward = 0.0
    if share and reward < least:
        reward = least
    return [reward, *measures] if reward or any(measures) else [1.0, *measures]


@given(MEANS, st.booleans(), st.sampled_from([0.0, 0.5, 1.0, 3.0]))
def test_weights_equal_their_definition(mean: NumpyArray, clip: bool, share: float) -> None:
    before = mean.copy()
    weights = walk_weights(mean, ObjectiveConfig(clip_reward=clip, min_reward_share=share))
    np.testing.assert_allclose(weights, slow_weights(mean, clip, share), rtol=1e-12)
    np.testing.assert_array_equal(mean, before, err_msg="the strategy's mean is not changed")
    assert weights.any(), "a walk has a direction"


@given(MEANS)
def test_without_the_section_weights_are_the_mean_coefficients(mean: NumpyArray) -> None:
    expected = mean if mean.any() else np.eye(1, len(mean))[0]
    np.testing.assert_array_equal(walk_weights(mean, None), expected)


@given(MEANS, st.one_of(st.none(), st.builds(ObjectiveConfig, min_reward_share=st.floats(0, 5))))
def test_a_walk_along_the_reward_ignores_the_coefficients(
    mean: NumpyArray, config: ObjectiveConfig | None
) -> None:
    np.testing.assert_array_equal(walk_weights(mean, config, reward_only=True), np.eye(1, len(mean))[0])


@pytest.mark.parametrize("share", [-0.1, np.nan, np.inf])
def test_bad_settings(share: float) -> None:
    with pytest.raises(InputError, match=r"--objective\.min-reward-share must lie in \[0, inf\]"):
        ObjectiveConfig(min_reward_share=share).check()
    ObjectiveConfig(min_reward_share=0.0).check()
