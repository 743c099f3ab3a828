"""Check whether a task's measure proxies predict its measures, on random policies.

PPGA ascends the return of a Markovian proxy, a number of every step, to move a measure of the entire episode.
This works as far as the two are correlated.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppga.archives.heatmaps import literal
from ppga.errors import InputError, check_count
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import init_mlp
from ppga.rollouts import Recording, record
from ppga.storage import NumpyArray
from ppga.tasks import Environment

MIN_CORRELATION = 0.5
"""A proxy with a smaller rank correlation is reported as a problem."""
ROUNDING = 1e-5
"""Values that vary by no more than this, relative to their size if that is above 1, count as constant."""


@dataclass(frozen=True)
class ProxyReport:
    """Proxies and measures of n random policies.

    Attributes:
        names: names of the k measures.
        proxies: (n, k) mean of each policy's proxies over its episode.
        measures: (n, k) measures of the episode.
        correlation: (k,) correlation of proxies and measures; NaN where one of them is constant.
        rank_correlation: (k,) correlation of their ranks; NaN where one of them is constant.
    """

    names: tuple[str, ...]
    proxies: NumpyArray
    measures: NumpyArray
    correlation: NumpyArray
    rank_correlation: NumpyArray

    def problems(self) -> list[str]:
        """One message for each proxy that does not predict its measure."""
        messages = []
        for number, name in enumerate(self.names):
            rank = self.rank_correlation[number]
            if _is_constant(self.proxies[:, number]):
                messages.append(
                    f"{name}: the proxy is always {self.proxies[0, number]:g}; it has no gradient."
                )
            elif _is_constant(self.measures[:, number]):
                messages.append(f"{name}: the measure is always {self.measures[0, number]:g}.")
            elif not rank >= MIN_CORRELATION:
                messages.append(f"{name}: proxy and measure have a rank correlation of only {rank:.2f}.")
        return messages

    def plot(self) -> Axes:
        """Draw a scatter plot for each measure, with a point for each policy."""
        figure = Figure(figsize=(3.6 * len(self.names), 3.4), layout="constrained")
        row = figure.subplots(1, len(self.names), squeeze=False)[0]
        for number, (axes, name) in enumerate(zip(row, self.names, strict=True)):
            axes.scatter(self.proxies[:, number], self.measures[:, number], s=12, alpha=0.6, color="#264683")
            axes.set_xlabel("mean of the proxy")
            axes.set_ylabel(literal(name))
            axes.set_title(f"rank correlation {self.rank_correlation[number]:.2f}", fontsize="medium")
        return row[0]  # type: ignore[no-any-return]


def check_proxies(
    task: Environment,
    measure: Callable[[Recording], NumpyArray] | None = None,
    policies: int = 64,
    seed: int = 0,
) -> ProxyReport:
    """Play one episode with each of many random policies, and compare their proxies with their measures.

    Args:
        task: the task.
        measure: recording of n episodes -> measures (n, k); the task's own by default. Steps after the end of
            an episode are not `active`.
        policies: number of policies.
        seed: of policies and starts.
    """
    check_count("policies", policies)
    network = Network((task.observation_size, 32, task.action_size))
    policy_key, key = jax.random.split(jax.random.key(seed))
    # from small to large actions: small ones alone would hardly vary the measures
    scales = jnp.geomspace(0.3, 10.0, policies)[:, None]
    keys = jax.random.split(policy_key, policies)
    parameters = scales * jax.vmap(lambda key: network.flatten(init_mlp(key, network.sizes)))(keys)

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return jax.vmap(lambda flat, each: jnp.tanh(network(flat, each)))(parameters, observation)

    play = jax.jit(lambda key: record(task, act, key, policies, task.episode_length))
    recording: Recording = play(key)
    total, steps = np.asarray(recording.proxies).sum(axis=1), np.asarray(recording.active).sum(axis=1)
    proxies = total / np.maximum(steps, 1)[:, None]
    if measure is None:
        measures = np.asarray(task.measures(jnp.asarray(total), jnp.asarray(steps)), float)
    else:
        measures = np.asarray(measure(recording), float)
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
    return ProxyReport(
        task.measure_names,
        proxies,
        measures,
        np.array([_correlation(a, b) for a, b in pairs]),
        np.array([_rank_correlation(a, b) for a, b in pairs]),
    )


def _correlation(a: NumpyArray, b: NumpyArray) -> float:
    """Correlation of values (n,) and (n,); NaN if one of them is constant."""
    if _is_constant(a) or _is_constant(b):
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _rank_correlation(a: NumpyArray, b: NumpyArray) -> float:
    """Correlation of the ranks of values (n,) and (n,); NaN if one of them is constant."""
    if _is_constant(a) or _is_constant(b):  # ranks would magnify rounding
        return float("nan")
    return _correlation(_ranks(a), _ranks(b))


def _is_constant(values: NumpyArray) -> bool:
    """Whether values vary by no more than rounding."""
    return bool(np.ptp(values) <= ROUNDING * max(1.0, np.abs(values).max()))


def _ranks(values: NumpyArray) -> NumpyArray:
    """Ranks (n,) of values (n,); equal values have the mean of their ranks."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[group])
