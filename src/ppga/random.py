"""Named random streams: every consumer of random numbers in an iteration has a stream of its own.

In JAX, `fold_in(key, i)` is the i-th key of `split(key, n)`. A key that is both split and folded, or folded
by two consumers, therefore gives two consumers the same numbers. Hence two rules: keys of an iteration come
from this module, and each stream name is used once in an iteration; a function that needs several keys splits
its key once.
"""

import zlib

import jax
import numpy as np


def key(seed: int, iteration: int, stream: str) -> jax.Array:
    """JAX key () of a named stream in an iteration of a run."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _number(stream)), iteration)


def generator(seed: int, iteration: int, stream: str) -> np.random.Generator:
    """NumPy generator of a named stream in an iteration of a run."""
    return np.random.default_rng(entropy(seed, iteration, stream))


def entropy(seed: int, iteration: int, stream: str) -> list[int]:
    """Seed for a NumPy generator of a named stream in an iteration of a run, as pyribs takes it."""
    return [seed, iteration, _number(stream)]


@jax.jit
def split_each(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Split each key of an array (n,) in two, or one key (): two arrays of the same shape."""
    if not keys.ndim:
        first, second = jax.random.split(keys)
        return first, second
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def _number(stream: str) -> int:
    """A number of 32 bits for a stream's name; never 0, because NumPy ignores zeros at the end of a seed."""
    return zlib.crc32(stream.encode()) or 1
