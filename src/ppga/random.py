"""Named random streams: every consumer of randomness in an iteration has its own.

In JAX, `fold_in(key, i)` is the i-th key of `split(key, n)`, so a key that is both split and folded, or
folded by two consumers, gives two consumers the same numbers. Hence two rules. A key that belongs to an
iteration comes from here, by the name of what consumes it, and each name is used once in an iteration. And a
function that needs several keys splits the one it is given, once.
"""

import zlib

import jax
import numpy as np


def key(seed: int, iteration: int, stream: str) -> jax.Array:
    """Key of a named stream in an iteration of a run."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), _number(stream)), iteration)


def generator(seed: int, iteration: int, stream: str) -> np.random.Generator:
    """NumPy's generator of a named stream in an iteration of a run."""
    return np.random.default_rng(entropy(seed, iteration, stream))


def entropy(seed: int, iteration: int, stream: str) -> list[int]:
    """The same as what NumPy and pyribs make a generator of."""
    return [seed, iteration, _number(stream)]


@jax.jit
def split_each(keys: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two keys of each of the given keys (n,), or of one key ()."""
    if not keys.ndim:
        first, second = jax.random.split(keys)
        return first, second
    pairs = jax.vmap(jax.random.split)(keys)
    return pairs[:, 0], pairs[:, 1]


def _number(stream: str) -> int:
    """A number of 32 bits, never 0: NumPy ignores zeros at the end."""
    return zlib.crc32(stream.encode()) or 1
