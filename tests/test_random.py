"""Random streams: reproducible, independent, and no key used twice."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

import ppga
from ppga import random
from ppga.runs import Budget

from helpers.settings import settings, slider

STREAM = some.tuples(some.integers(0, 2**32 - 1), some.integers(0, 2**31), some.text(max_size=8))
SAMPLERS = ("normal", "uniform", "bits", "permutation", "randint", "choice", "orthogonal")


@given(STREAM, STREAM)
def test_streams_with_another_name_iteration_or_seed_differ(a: Any, b: Any) -> None:
    def numbers(stream: tuple[int, int, str]) -> tuple[bytes, bytes]:
        key = np.asarray(jax.random.key_data(random.key(*stream)))
        return key.tobytes(), random.generator(*stream).bytes(8)

    assert numbers(a) == numbers(a)
    for of_a, of_b in zip(numbers(a), numbers(b), strict=True):
        assert (of_a == of_b) == (a == b)


class KeyUses:
    """All uses of keys, inside jitted code (while it is traced) and outside.

    The slow and obvious rule: a key is drawn from once, or split once, or folded with different numbers.
    """

    def __init__(self) -> None:
        self.by_key: dict[Any, list[Any]] = defaultdict(list)
        self.tracers: list[Any] = []  # kept alive, so that no id is used twice

    def note(self, key: Any, use: Any) -> None:
        if isinstance(key, jax.core.Tracer):
            self.tracers.append(key)
            self.by_key[id(key)].append(use)
            return
        # outside of jitted code, a key is identified by its numbers, and so are keys folded from it
        for data in np.asarray(jax.random.key_data(key)).reshape(-1, 2):
            self.by_key[data.tobytes()].append((use[0], None))

    def check(self) -> None:
        for uses in self.by_key.values():
            assert len(uses) == 1 or all(use[0] == "fold_in" for use in uses), uses
            numbers = [number for _, number in uses if isinstance(number, int)]
            assert len(numbers) == len(set(numbers)), uses


@contextmanager
def watch_keys() -> Iterator[KeyUses]:
    """Record the uses of keys by ppga and by what it calls; JAX's own check inside programs is on, too."""
    uses = KeyUses()
    with pytest.MonkeyPatch.context() as patch, jax.debug_key_reuse(True):

        def watch(name: str) -> None:
            original = getattr(jax.random, name)

            def use(key: Any, *arguments: Any, **options: Any) -> Any:
                number: Any = arguments[0] if name == "fold_in" else None
                concrete = number is not None and not isinstance(number, jax.core.Tracer)
                uses.note(key, (name, int(number) if concrete else number))
                return original(key, *arguments, **options)

            patch.setattr(jax.random, name, use)

        for name in ("split", "fold_in", *SAMPLERS):
            watch(name)
        yield uses


def test_a_key_used_twice_is_detected() -> None:
    for use_twice in (
        lambda key: (jax.random.split(key), jax.random.fold_in(key, 1)),
        jax.jit(lambda key: (jax.random.fold_in(key, 1), jax.random.fold_in(key, 1))),
        lambda key: [jax.random.normal(jax.random.fold_in(key, 1)) for _ in range(2)],
        lambda key: (jax.random.normal(key), jax.random.split(key)),
        jax.jit(lambda key: (jax.random.split(key), jax.random.fold_in(key, 1))),
    ):
        with watch_keys() as uses:
            key = jax.random.key(5)
            try:
                use_twice(key)
            except jax.errors.KeyReuseError:
                continue
            with pytest.raises(AssertionError):
                uses.check()


@pytest.mark.parametrize(
    "algorithm", ["ppga", "ppo-archive", "map-elites", "pga-me", "td3ga", "cma-maega-td3-es", "pbt-me-sac"]
)
def test_no_two_consumers_in_an_iteration_share_a_key(algorithm: str) -> None:
    """With restarts, confirmation and re-evaluation."""
    changes: dict[str, Any] = {"confirm.episodes": 2, "confirm.recheck": 2}
    if algorithm in ("ppga", "td3ga"):
        changes |= {"strategy.mean": "random", "legs.iterations": 1, "phases.first_iterations": 1}
        changes |= {"legs.first_iterations": 0}
    config = settings(algorithm, seed=7, **changes)
    task = slider()  # constructing a task resets it once, with key 0
    with watch_keys() as uses:
        outcome = ppga.train(task, config, budget=Budget(iterations=2))
    if algorithm in ("ppga", "td3ga"):
        assert outcome.record is not None
        assert outcome.record["restarts"] >= 1
    assert len(uses.by_key) > 20
    uses.check()
