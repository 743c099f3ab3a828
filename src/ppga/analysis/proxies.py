"""Do a task's measure proxies lead where its measures are? Tried on random policies.

PPGA climbs the return of a Markovian proxy, a number of every step, to move a measure of the whole episode.
That works as far as the two go together, which is asked here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppga.archives.maps import literal
from ppga.errors import InputError, at_least_one
from ppga.networks import Network
from ppga.physics import Array
from ppga.policies import init_mlp
from ppga.rollouts import Recording, record
from ppga.storage import NumpyArray
from ppga.tasks import Environment

LITTLE = 0.5
"""A rank correlation below this is hardly a lead."""
STILL = 1e-5
"""What varies by less than this, in units of its size if that is above 1, does not vary but by rounding."""


@dataclass(frozen=True)
class Together:
    """Proxies and measures of random policies.

    Attributes:
        names: of the k measures.
        proxies: (n, k) mean of each policy's proxies over its episode.
        measures: (n, k) what is to be measured.
        correlation: (k,) between the two; NaN where one of them never changes.
        rank_correlation: (k,) likewise, of the ranks.
    """

    names: tuple[str, ...]
    proxies: NumpyArray
    measures: NumpyArray
    correlation: NumpyArray
    rank_correlation: NumpyArray

    def problems(self) -> list[str]:
        """What stands against using them, in words."""
        found = []
        for number, name in enumerate(self.names):
            rank = self.rank_correlation[number]
            if _still(self.proxies[:, number]):
                found.append(f"{name}: the proxy is always {self.proxies[0, number]:g}: nothing to climb.")
            elif _still(self.measures[:, number]):
                found.append(f"{name}: random policies always measure {self.measures[0, number]:g}.")
            elif not rank >= LITTLE:
                found.append(f"{name}: proxy and measure hardly go together (rank correlation {rank:.2f}).")
        return found

    def plot(self) -> Axes:
        """A cloud for each measure, a point a policy."""
        figure = Figure(figsize=(3.6 * len(self.names), 3.4), layout="constrained")
        spots = figure.subplots(1, len(self.names), squeeze=False)[0]
        for number, (axes, name) in enumerate(zip(spots, self.names, strict=True)):
            axes.scatter(self.proxies[:, number], self.measures[:, number], s=12, alpha=0.6, color="#264683")
            axes.set_xlabel("mean of the proxy")
            axes.set_ylabel(literal(name))
            axes.set_title(f"rank correlation {self.rank_correlation[number]:.2f}", fontsize="medium")
        return spots[0]  # type: ignore[no-any-return]


def check_proxies(
    task: Environment,
    measure: Callable[[Recording], NumpyArray] | None = None,
    policies: int = 64,
    seed: int = 0,
) -> Together:
    """Play an episode with each of many random policies, and hold measures against proxies.

    Args:
        task: whose proxies.
        measure: what is to be measured, (n, k), of whole episodes; the task's own measures by default. Steps
            after the end of an episode have `alive` False.
        policies: how many.
        seed: of policies and starts.
    """
    at_least_one("policies", policies)
    network = Network((task.observation_size, 32, task.action_size))
    policy_key, key = jax.random.split(jax.random.key(seed))
    # from timid to wild: small actions alone would tell little
    loud = jnp.geomspace(0.3, 10.0, policies)[:, None]
    keys = jax.random.split(policy_key, policies)
    parameters = loud * jax.vmap(lambda key: network.flatten(init_mlp(key, network.sizes)))(keys)

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jax.vmap(lambda own, seen: jnp.tanh(network(own, seen)))(parameters, observation)

    seen: Recording = jax.jit(lambda key: record(task, act, key, policies, task.episode_length))(key)
    alive = np.asarray(seen.alive)
    total, steps = np.asarray(seen.proxies).sum(axis=1), alive.sum(axis=1)
    proxies = total / np.maximum(steps, 1)[:, None]
    found = task.measures(jnp.asarray(total), jnp.asarray(steps)) if measure is None else measure(seen)
    measures = np.asarray(found, float)
    if measures.shape == (policies,) and proxies.shape[1] == 1:
        measures = measures[:, None]
    if measures.shape != proxies.shape:
        raise InputError(
            f"{task.name} has the measures {', '.join(task.measure_names)}: expected shape "
            f"{proxies.shape}, got {measures.shape}."
        )
    for name, values in zip(task.measure_names, measures.T, strict=True):
        if not np.isfinite(values).all():
            bad = int((~np.isfinite(values)).sum())
            raise InputError(
                f"{task.name}: {name!r} is not a finite number of {bad} of {policies} episodes: "
                f"{values.tolist()[:8]}{'' if policies <= 8 else ' ...'}."
            )
    pairs = list(zip(proxies.T, measures.T, strict=True))
    return Together(
        task.measure_names,
        proxies,
        measures,
        np.array([_correlation(one, other) for one, other in pairs]),
        np.array([_rank_correlation(one, other) for one, other in pairs]),
    )


def _correlation(one: NumpyArray, other: NumpyArray) -> float:
    if _still(one) or _still(other):
        return float("nan")
    return float(np.corrcoef(one, other)[0, 1])


def _rank_correlation(one: NumpyArray, other: NumpyArray) -> float:
    if _still(one) or _still(other):  # ranks would make much of rounding
        return float("nan")
    return _correlation(_ranks(one), _ranks(other))


def _still(values: NumpyArray) -> bool:
    """Whether they never change."""
    return bool(np.ptp(values) <= STILL * max(1.0, np.abs(values).max()))


def _ranks(values: NumpyArray) -> NumpyArray:
    """Ranks, the mean of them where values are equal."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[which])
