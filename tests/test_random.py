"""Random streams: reproducible, independent, and no key used twice."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import ppga
from ppga import random
from ppga.runs import Budget
from test_numbers import settings, slider

STREAM = some.tuples(some.integers(0, 2**32 - 1), some.integers(0, 2**31), some.text(max_size=8))
SAMPLERS = ("normal", "uniform", "bits", "permutation", "randint", "choice", "orthogonal")


@given(STREAM, STREAM)
def test_streams_of_other_names_iterations_or_seeds_are_other_streams(one: Any, other: Any) -> None:
    def numbers(stream: tuple[int, int, str]) -> tuple[bytes, bytes]:
        key = np.asarray(jax.random.key_data(random.key(*stream)))
        return key.tobytes(), random.generator(*stream).bytes(8)

    assert numbers(one) == numbers(one)
    for ours, theirs in zip(numbers(one), numbers(other), strict=True):
        assert (ours == theirs) == (one == other)


class Uses:
    """What is done with keys, inside jitted code (while it is traced) and outside.

    The slow and obvious rule: a key is drawn from once, or split once, or folded with different numbers.
    """

    def __init__(self) -> None:
        self.of: dict[Any, list[Any]] = defaultdict(list)
        self.kept: list[Any] = []  # so that no tracer's number is used for another

    def note(self, key: Any, use: Any) -> None:
        if isinstance(key, jax.core.Tracer):
            self.kept.append(key)
            self.of[id(key)].append(use)
            return
        # a key outside of jitted code is known by its numbers, and so is what the same folding makes of it
        for data in np.asarray(jax.random.key_data(key)).reshape(-1, 2):
            self.of[data.tobytes()].append((use[0], None))

    def check(self) -> None:
        for uses in self.of.values():
            assert len(uses) == 1 or all(use[0] == "fold_in" for use in uses), uses
            numbers = [number for _, number in uses if isinstance(number, int)]
            assert len(numbers) == len(set(numbers)), uses


@contextmanager
def watched() -> Iterator[Uses]:
    """Uses of keys, by ppga and by what it calls; JAX's own check of the keys that programs consume is on."""
    uses = Uses()
    with pytest.MonkeyPatch.context() as patch, jax.debug_key_reuse(True):

        def watch(name: str) -> None:
            before = getattr(jax.random, name)

            def use(key: Any, *arguments: Any, **options: Any) -> Any:
                number: Any = arguments[0] if name == "fold_in" else None
                concrete = number is not None and not isinstance(number, jax.core.Tracer)
                uses.note(key, (name, int(number) if concrete else number))
                return before(key, *arguments, **options)

            patch.setattr(jax.random, name, use)

        for name in ("split", "fold_in", *SAMPLERS):
            watch(name)
        yield uses


def test_a_key_used_twice_is_noticed() -> None:
    for uses in (
        lambda key: (jax.random.split(key), jax.random.fold_in(key, 1)),
        jax.jit(lambda key: (jax.random.fold_in(key, 1), jax.random.fold_in(key, 1))),
        lambda key: [jax.random.normal(jax.random.fold_in(key, 1)) for _ in range(2)],
        lambda key: (jax.random.normal(key), jax.random.split(key)),
        jax.jit(lambda key: (jax.random.split(key), jax.random.fold_in(key, 1))),
    ):
        with watched() as noticed:
            key = jax.random.key(5)
            try:
                uses(key)
            except jax.errors.KeyReuseError:
                continue
            with pytest.raises(AssertionError):
                noticed.check()


@pytest.mark.parametrize(
    "algorithm", ["ppga", "ppo-archive", "map-elites", "pga-me", "td3ga", "cma-maega-td3-es", "pbt-me-sac"]
)
def test_no_two_consumers_of_an_iteration_share_a_key(algorithm: str) -> None:
    """With restarts, confirmation and re-evaluation."""
    config = settings(algorithm, confirm=2, recheck=2, mean="random", emitters=1)
    if algorithm in ("ppga", "td3ga"):
        config = replace(config, search=replace(config.search, leg=1, reward_first=1))
    task = slider()  # a task tries a start by key 0 when it is made
    with watched() as uses:
        ppga.train(task, replace(config, seed=7), budget=Budget(iterations=2))
    assert len(uses.of) > 20
    uses.check()
