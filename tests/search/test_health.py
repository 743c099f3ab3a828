"""Warnings about a degenerate search."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from ppga.search import search_warnings
from ppga.search.health import EXPLODED, SHORT_ROW
from ppga.strategies import XNES


@dataclass
class Scaled:
    """A strategy's scale."""

    scale: float


NAMES = ("left foot", "right foot")


def test_a_healthy_search_has_no_warnings() -> None:
    assert search_warnings(XNES(2.0, 3), 2.0, np.array([1.0, 0.1, 5.0]), NAMES) == []


def test_a_large_step_size_is_reported() -> None:
    strategy: Any = Scaled(EXPLODED * 2.0)
    assert search_warnings(strategy, 2.0, np.ones(3), NAMES) == []
    strategy.scale *= 1.01
    (warning,) = search_warnings(strategy, 2.0, np.ones(3), NAMES)
    assert warning.startswith("the strategy's step size has grown")
    assert "101" in warning


@pytest.mark.parametrize("length", [0.0, SHORT_ROW, np.nan])
@pytest.mark.parametrize(("row", "name"), list(enumerate(("reward", *NAMES))))
def test_a_gradient_of_almost_no_length_is_reported(row: int, name: str, length: float) -> None:
    lengths = np.ones(3)
    lengths[row] = length
    (warning,) = search_warnings(XNES(2.0, 3), 2.0, lengths, NAMES)
    assert warning.startswith(f"the gradient of {name} is nearly zero")


def test_gradients_of_the_reward_alone_have_one_length() -> None:
    (warning,) = search_warnings(XNES(2.0, 2), 2.0, np.zeros(1), NAMES)
    assert warning.startswith("the gradient of reward")
