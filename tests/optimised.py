"""With XLA as users have it; `test_rollouts.py` runs this."""

import os

import pytest

from test_rollouts import check_callers


def test_nothing_is_left_out() -> None:
    assert "JAX_DISABLE_MOST_OPTIMIZATIONS" not in os.environ
    assert "xla_cpu" not in os.environ.get("XLA_FLAGS", "")


def test_scores_do_not_depend_on_how_policies_are_shared_among_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_callers(True, (7,), monkeypatch)
