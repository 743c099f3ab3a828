"""Environments of Brax and MuJoCo Playground as tasks, compiled together with the rollouts."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.errors import InputError, check_choice
from ppga.physics import Array
from ppga.tasks.environment import Environment, ExternalEnvironment, TaskState


class BraxTask(ExternalEnvironment):
    """An environment with `reset(rng)` and `step(state, action)`; see `from_brax`.

    Args:
        env: the environment.
        measure: measure proxies (k,) of a state of the environment.
        *common: arguments of `ExternalEnvironment`.
        observation: name of the observation that policies get, if there are several.
        control_dt: seconds of simulated time in one control step; NaN if unknown.
    """

    def __init__(
        self, env: Any, measure: Callable[[Any], Any], *common: Any, observation: str, control_dt: float
    ) -> None:
        super().__init__(*common)
        self.env, self._observation_name = env, observation
        # converted for one environment: mapped lists would become lists of arrays of all environments
        self.measure: Callable[[Any], Array] = lambda state: jnp.asarray(measure(state), jnp.float32)
        self.observation_size, self.action_size = self._observation_size(), int(env.action_size)
        self.control_dt = control_dt
        self.control_range = ((-1.0, 1.0),) * self.action_size
        self.model, self._positions = _model(env)

        def initial_proxies(key: Array) -> Array:
            return self.measure(env.reset(_raw_key(key)))

        self.check_sample(np.asarray(jax.jit(initial_proxies)(jax.random.key(0)))[None], 1)

    def _observation_size(self) -> int:
        """Size of the observation that policies get."""
        size = self.env.observation_size
        if isinstance(size, Mapping):
            size = size[check_choice("observation", self._observation_name, size)]
        if isinstance(size, tuple) and len(size) == 1:
            size = size[0]
        if not isinstance(size, int):
            raise InputError(f"{self.name}: observations must be vectors of numbers, got size {size}.")
        return size

    def _observations(self, states: Any) -> Array:
        """Observations (n, observation_size) of n states."""
        values = states.obs
        return jnp.asarray(
            values[self._observation_name] if isinstance(values, Mapping) else values, jnp.float32
        )

    def pose(self, state: TaskState) -> Array:
        """Joint positions (n, nq) of the model for drawing; (n, 0) if there is no model."""
        return super().pose(state) if self.model is None else jnp.asarray(self._positions(state.bodies))

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:  # noqa: ARG002
        states = jax.vmap(lambda key: self.env.reset(_raw_key(key)))(keys)
        return self.first_state(states, self._observations(states))

    def _step(self, state: TaskState, action: Array) -> TaskState:
        after = jax.vmap(self.env.step)(state.bodies, action)
        done = after.done > 0.5
        # wrappers may mark time limits; without such a mark, every end is a termination
        info = getattr(after, "info", None)
        marked = info.get("truncation") if isinstance(info, Mapping) else None
        truncated = jnp.zeros_like(done) if marked is None else (marked > 0.5) & done
        return self.next_state(
            state,
            after,
            observation=self._observations(after),
            reward=jnp.asarray(after.reward, jnp.float32),
            proxies=jax.vmap(self.measure)(after),
            terminated=done & ~truncated,
            truncated=truncated,
        )


def from_brax(
    env: Any,
    measure: Callable[[Any], Any],
    *,
    name: str,
    measure_names: Sequence[str],
    measure_ranges: Sequence[tuple[float, float]] | None = None,
    archive_shape: Sequence[int] | None = None,
    qd_offset: float = 0.0,
    episode_length: int = 1000,
    episode: Callable[[Array, Array], Array] | None = None,
    observation: str = "state",
) -> Environment:
    """An environment of Brax or MuJoCo Playground as a task; rollouts are compiled as one program.

    Example:
        >>> from mujoco_playground import registry  # doctest: +SKIP
        >>> swingup = registry.load("CartpoleSwingup")  # doctest: +SKIP
        >>> task = from_brax(
        ...     swingup, lambda state: state.data.qpos[:1], name="swingup", measure_names=["cart"],
        ...     measure_ranges=[(-1.8, 1.8)],
        ... )  # doctest: +SKIP

    Give the environment without wrappers that repeat actions, end episodes or restart them. Every end that is
    not marked as a time limit (`info["truncation"]`) is a termination; the time limit is `episode_length`.

    Args:
        env: has `reset(rng)` and `step(state, action)` for one body, and takes actions in [-1, 1].
        measure: function of a state of the environment after a step that returns its Markovian measure
            proxies (k,).
        name: name of the task in files.
        measure_names: names of the k measures, each the mean of its proxy over an episode.
        measure_ranges: lower and upper bound of each measure; [0, 1] by default.
        archive_shape: cells along each measure; 10 by default.
        qd_offset: subtracted from every objective in the QD-score.
        episode_length: control steps until an episode is truncated.
        episode: function of the proxies' sums (n, k) and the numbers of steps (n,) that returns the measures
            (n, k) of n episodes; the mean of each proxy by default.
        observation: name of the observation that policies get, if the environment has several.

    Raises:
        InputError: the environment or the measures do not fit.
    """
    for method in ("reset", "step", "observation_size", "action_size"):
        if not hasattr(env, method):
            raise InputError(f"{name}: {type(env).__name__} has no {method}, as environments of Brax have.")
    common = (
        name, "brax", measure_names, measure_ranges, archive_shape, qd_offset, episode_length, episode,
    )  # fmt: skip
    return BraxTask(
        env, measure, *common, observation=observation, control_dt=float(getattr(env, "dt", math.nan))
    )


def brax_feet(env: Any, links: Sequence[str | int]) -> Callable[[Any], Array]:
    """A measure function for robots of Brax: the contacts of feet, 0 or 1 each, as in the paper.

    Example:
        >>> env = envs.get_environment("walker2d", backend="spring")  # doctest: +SKIP
        >>> feet = brax_feet(env, ["foot", "foot_left"])  # doctest: +SKIP
        >>> task = from_brax(env, feet, name="brax", measure_names=["right", "left"])  # doctest: +SKIP

    Args:
        env: environment of Brax.
        links: the feet, by the names of their links, or by numbers where names are not unique, as in Brax'
            ant.

    Raises:
        InputError: an unknown link, or a name that several links have.
    """
    from brax import contact

    numbers = [_link(list(env.sys.link_names), link) for link in links]

    def measure(state: Any) -> Array:
        contacts = contact.get(env.sys, state.pipeline_state.x)
        touching = contacts.dist <= 0
        first, second = contacts.link_idx
        flags = [(touching & ((first == number) | (second == number))).any() for number in numbers]
        return jnp.stack(flags).astype(jnp.float32)

    return measure


def _link(names: list[str], link: str | int) -> int:
    """Number of a link, given by its number or by a name that no other link has."""
    if not isinstance(link, str) and 0 <= link < len(names):
        return int(link)
    if names.count(str(link)) == 1:
        return names.index(str(link))
    problem = "there is more than one link" if link in names else "unknown link"
    listed = ", ".join(f"{number} {name!r}" for number, name in enumerate(names))
    raise InputError(f"{problem} {link!r}. Give the number or the unique name of a link: {listed}.")


def _raw_key(key: Array) -> Array:
    """A random key in the older form that these packages use; states with such keys can be saved to files."""
    return jax.random.key_data(key)


def _model(env: Any) -> tuple[mujoco.MjModel | None, Callable[[Any], Array]]:
    """The MuJoCo model of an environment, if it has one, and a function that reads joint positions."""
    if isinstance(getattr(env, "mj_model", None), mujoco.MjModel):
        return env.mj_model, lambda state: state.data.qpos
    model = getattr(getattr(env, "sys", None), "mj_model", None)
    return (model if isinstance(model, mujoco.MjModel) else None), lambda state: state.pipeline_state.q
