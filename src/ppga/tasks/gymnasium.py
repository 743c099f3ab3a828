"""Vector environments of Gymnasium as tasks, stepped by host callbacks from inside jitted code."""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback

from ppga.errors import InputError
from ppga.physics import Array, select
from ppga.tasks.environment import Environment, ExternalEnvironment, TaskState
from ppga.types import NumpyArray

SAMPLE_SIZE = 2
"""Number of environments with which a measure function is tested."""
MOST_POOLED = 3
"""Vector environments of the same size that are kept; more are never in use at the same time."""


class _VectorEnvs:
    """A pool of vector environments on the host; JAX carries handles of them.

    A vector environment cannot be copied: stepping a copy of its state also advances the original. Therefore
    each step gives it a new version, and a handle is a row (number, version). A handle with an old version,
    or one from another process, is *stale*: its episodes are truncated, and new ones start.
    """

    def __init__(self, make: Callable[[int], Any], measure: Callable[..., Any], k: int) -> None:
        self.make, self.measure, self.k = make, measure, k
        self._numbers = itertools.count(random.SystemRandom().randrange(2**30))
        self._envs: dict[int, Any] = {}  # the least recently used one first
        self._versions: dict[int, int] = {}
        self._finished: dict[int, NumpyArray] = {}  # (n,) bool, the episode has ended

    def start(self, seeds: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Handles and observations of n new episodes."""
        n = len(seeds)
        same_size = [number for number, env in self._envs.items() if env.num_envs == n]
        env = self._remove(same_size[0]) if len(same_size) >= MOST_POOLED else self.make(n)
        number = next(self._numbers)
        self._envs[number], self._versions[number], self._finished[number] = env, 0, np.zeros(n, bool)
        observation, _ = env.reset(seed=_seeds(seeds))
        return self._handles(number), _flat(observation)

    def restart(
        self, handles: NumpyArray, which: NumpyArray, seeds: NumpyArray
    ) -> tuple[NumpyArray, NumpyArray]:
        """Handles and observations after new episodes were started where `which` (n,) holds."""
        number, valid = self._find(handles, seeds)
        if not (valid | which).all():  # stale: no episode of this vector environment can be continued
            which = np.ones_like(which)
            self._versions[number] += 1
        observation, _ = self._envs[number].reset(seed=_seeds(seeds), options={"reset_mask": which})
        self._finished[number][which] = False
        return self._handles(number), _flat(observation)

    def step(self, handles: NumpyArray, action: NumpyArray, active: NumpyArray) -> tuple[NumpyArray, ...]:
        """Handles, observations, rewards, proxies, terminated, truncated, and which handles were stale."""
        number, valid = self._find(handles, np.arange(len(handles)))
        env = self._envs[number]
        stale = active & (~valid | self._finished[number])
        # a vector environment steps all of its environments: those whose episode has ended are reset first
        ended = stale | (~active & self._finished[number])
        if ended.any():
            env.reset(seed=_seeds(np.arange(len(handles))), options={"reset_mask": ended})
        observation, reward, terminated, truncated, info = env.step(action)
        proxies = np.asarray(self.measure(observation, action, info), np.float32)
        if proxies.shape != (len(handles), self.k):
            raise InputError(
                f"the measure function returned shape {proxies.shape} for {len(handles)} environments, "
                f"expected {(len(handles), self.k)}."
            )
        self._versions[number] += 1
        self._finished[number] = np.asarray(terminated | truncated, bool)
        return (
            self._handles(number), _flat(observation), np.asarray(reward, np.float32), proxies,
            np.asarray(terminated, bool), np.asarray(truncated, bool), stale,
        )  # fmt: skip

    def _find(self, handles: NumpyArray, seeds: NumpyArray) -> tuple[int, NumpyArray]:
        """Number of the vector environment of most handles, and which handles (n,) are valid for it."""
        numbers, counts = np.unique(handles[:, 0], return_counts=True)
        known = [(count, int(number)) for count, number in zip(counts, numbers, strict=True)
                 if number in self._envs]  # fmt: skip
        if not known:
            started, _ = self.start(seeds)
            return int(started[0, 0]), np.zeros(len(handles), bool)
        number = max(known)[1]
        self._envs[number] = self._envs.pop(number)  # the most recently used one is last
        return number, (handles == [number, self._versions[number]]).all(axis=1)

    def _remove(self, number: int) -> Any:
        """Remove a vector environment from the pool, and return it."""
        del self._versions[number], self._finished[number]
        return self._envs.pop(number)

    def _handles(self, number: int) -> NumpyArray:
        handle = np.array([number, self._versions[number]], np.int32)
        return np.tile(handle, (self._envs[number].num_envs, 1))


def _array_type(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]


def _seeds(values: NumpyArray) -> list[int]:
    return [int(value) for value in values]


def _flat(observation: Any) -> NumpyArray:
    """Observations (n, observation_size) from observations (n, ...)."""
    values = np.asarray(observation, np.float32)
    return values.reshape(len(values), -1)


class GymnasiumTask(ExternalEnvironment):
    """A vector environment of Gymnasium; see `from_gymnasium`.

    Args:
        make: makes a vector environment of n environments.
        measure: measure proxies (n, k) from observations, actions and infos.
        *common: arguments of `ExternalEnvironment`.
    """

    def __init__(self, make: Callable[[int], Any], measure: Callable[..., Any], *common: Any) -> None:
        from gymnasium.spaces import Box

        super().__init__(*common)
        sample = make(SAMPLE_SIZE)
        mode = str(sample.metadata.get("autoreset_mode"))
        if not mode.upper().endswith("DISABLED"):
            raise InputError(
                f"{self.name}: make its vector environments with autoreset_mode=AutoresetMode.DISABLED, not "
                f"{mode}: ppga restarts episodes itself."
            )
        observations, actions = sample.single_observation_space, sample.single_action_space
        if not isinstance(observations, Box) or not isinstance(actions, Box) or not actions.is_bounded():
            raise InputError(
                f"{self.name}: observations and actions must be Boxes, and actions bounded; got "
                f"{observations} and {actions}."
            )
        self.observation_size, self.action_size = math.prod(observations.shape), math.prod(actions.shape)
        low, high = actions.low.ravel(), actions.high.ravel()
        self.control_range = tuple((float(least), float(most)) for least, most in zip(low, high, strict=True))
        self.control_dt = float(getattr(getattr(sample, "unwrapped", sample), "dt", math.nan) or math.nan)
        if math.isnan(self.control_dt) and getattr(sample, "envs", None):
            self.control_dt = float(getattr(sample.envs[0].unwrapped, "dt", math.nan))
        self._low, self._range = low.astype(np.float32), (high - low).astype(np.float32)
        self._action_shape = actions.shape
        self._envs = _VectorEnvs(make, measure, len(self.measure_names))
        sample.reset(seed=0)
        action = self._controls(np.zeros((SAMPLE_SIZE, self.action_size), np.float32))
        observation, _, _, _, info = sample.step(action)
        self.check_sample(np.asarray(measure(observation, action, info), float), SAMPLE_SIZE)
        sample.close()

    def _controls(self, action: NumpyArray) -> NumpyArray:
        """Actions of the environment (n, ...) for actions (n, action_size) in [-1, 1]."""
        controls = self._low + (np.asarray(action) + 1) / 2 * self._range
        return np.asarray(controls.reshape(-1, *self._action_shape))

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        seeds = jax.vmap(lambda key: jax.random.bits(key) >> 1)(keys)
        n = len(keys)
        types = _array_type((n, 2), jnp.int32), _array_type((n, self.observation_size), jnp.float32)

        def start(seeds: Any) -> Any:
            return self._envs.start(np.asarray(seeds))

        def restart(handles: Any, which: Any, seeds: Any) -> Any:
            return self._envs.restart(np.asarray(handles), np.asarray(which), np.asarray(seeds))

        if before is None:
            handles, observation = io_callback(start, types, seeds)
        else:
            handles, observation = io_callback(restart, types, before.bodies, before.finished, seeds)
        return self.first_state(handles, observation)

    def _step(self, state: TaskState, action: Array) -> TaskState:
        n, k = len(state.steps), len(self.measure_names)
        flags, numbers = _array_type((n,), jnp.bool_), _array_type((n,), jnp.float32)
        types = (
            _array_type((n, 2), jnp.int32), _array_type((n, self.observation_size), jnp.float32), numbers,
            _array_type((n, k), jnp.float32), flags, flags, flags,
        )  # fmt: skip

        def step(handles: Any, action: Any, active: Any) -> Any:
            controls = self._controls(np.asarray(action))
            return self._envs.step(np.asarray(handles), controls, np.asarray(active))

        handles, observation, reward, proxies, terminated, truncated, stale = io_callback(
            step, types, state.bodies, action, ~state.finished
        )
        after = self.next_state(state, handles, observation, reward, proxies, terminated, truncated)
        cut_off = replace(
            state,
            bodies=handles,
            reward=jnp.zeros_like(reward),
            proxies=jnp.zeros_like(proxies),
            truncated=~state.terminated & (state.truncated | stale),
        )
        # all rows have the new handle of their vector environment, also those that were not stepped
        return replace(select(stale, cut_off, after), bodies=handles)


def from_gymnasium(
    make: str | Callable[[int], Any],
    measure: Callable[..., Any],
    *,
    measure_names: Sequence[str],
    name: str = "",
    measure_ranges: Sequence[tuple[float, float]] | None = None,
    archive_shape: Sequence[int] | None = None,
    qd_offset: float = 0.0,
    episode_length: int = 1000,
    episode: Callable[[Array, Array], Array] | None = None,
    **options: Any,
) -> Environment:
    """An environment of Gymnasium as a task. It is slower than a `Task`, because Python computes every step.

    Example:
        >>> def upright(observation, action, info):
        ...     return abs(observation[:, 1:2]) < 0.05
        >>> task = from_gymnasium("InvertedPendulum-v5", upright, measure_names=["upright"])
        >>> task.observation_size, task.control_range
        (4, ((-3.0, 3.0),))

    The environments cannot be copied or saved to files. A resumed run therefore starts new episodes, and is
    not bit-exact.

    Args:
        make: name of a registered environment, or a function that makes a vector environment of n, with
            autoreset_mode=DISABLED.
        measure: function of the observations (n, ...) after a step, the actions (n, ...) and the infos (a
            dictionary of arrays) that returns Markovian measure proxies (n, k).
        measure_names: names of the k measures, each the mean of its proxy over an episode.
        name: name of the task in files; that of the registered environment by default.
        measure_ranges: lower and upper bound of each measure; [0, 1] by default.
        archive_shape: cells along each measure; 10 by default.
        qd_offset: subtracted from every objective in the QD-score.
        episode_length: control steps until an episode is truncated, unless the environment does so earlier.
        episode: function of the proxies' sums (n, k) and the numbers of steps (n,) that returns the measures
            (n, k) of n episodes; the mean of each proxy by default.
        **options: options of `gymnasium.make_vec`, for a registered environment.

    Raises:
        InputError: the environment or the measures do not fit.
    """
    if isinstance(make, str):
        registered, name = make, name or make
        make = _vector_maker(registered, options)
    elif options:
        raise InputError(f"options are for registered environments only, got {', '.join(options)}.")
    if not name:
        raise InputError("the task needs a name: give name=...")
    common = (
        name, "gymnasium", measure_names, measure_ranges, archive_shape, qd_offset, episode_length, episode,
    )  # fmt: skip
    return GymnasiumTask(make, measure, *common)


def _vector_maker(registered: str, options: dict[str, Any]) -> Callable[[int], Any]:
    """A function that makes a vector environment of n registered environments."""
    import gymnasium
    from gymnasium.vector import AutoresetMode

    make_options = {"vectorization_mode": "sync"} | options
    vector_options = {"autoreset_mode": AutoresetMode.DISABLED} | make_options.pop("vector_kwargs", {})
    try:
        gymnasium.spec(registered)
    except gymnasium.error.Error as error:
        raise InputError(f"Gymnasium: {error}") from None
    return lambda n: gymnasium.make_vec(registered, n, vector_kwargs=dict(vector_options), **make_options)
