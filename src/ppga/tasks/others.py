"""Other people's environments as tasks: those of Brax and MuJoCo Playground, and those of Gymnasium."""

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from jax.experimental import io_callback

from ppga.errors import InputError, at_least_one, choose
from ppga.limits import LONGEST_EPISODE
from ppga.physics import Array, select
from ppga.storage import NumpyArray
from ppga.tasks.environment import Environment, TaskState


class Foreign(Environment):
    """What all of them have in common: what is measured is said by whoever brings them in.

    Args:
        name: what the task is called in files.
        physics_name: who simulates it.
        measure_names: of the k measures.
        measure_ranges: lower and upper bound of each; [0, 1] by default.
        archive_shape: cells along each measure; 10 by default.
        qd_offset: subtracted from every objective before summing the QD-score.
        episode_length: control steps until an episode is truncated.
        episode: measures (n, k) from proxies' sums (n, k) and the steps (n,) lived; their mean by default.
    """

    integrator = ""

    def __init__(
        self,
        name: str,
        physics_name: str,
        measure_names: Sequence[str],
        measure_ranges: Sequence[tuple[float, float]] | None,
        archive_shape: Sequence[int] | None,
        qd_offset: float,
        episode_length: int,
        episode: Callable[[Array, Array], Array] | None,
    ) -> None:
        self.name, self.physics_name = name, physics_name
        self._names = tuple(measure_names)
        self._ranges = tuple(measure_ranges or [(0.0, 1.0)] * len(self._names))
        self._shape = tuple(archive_shape or (10,) * len(self._names))
        self._offset = float(qd_offset)
        self._episode = episode
        self.episode_length = at_least_one("episode_length", episode_length, LONGEST_EPISODE)

    def measures(self, total: Array, steps: Array) -> Array:
        """The mean, or what whoever brought it in makes of it."""
        return super().measures(total, steps) if self._episode is None else self._episode(total, steps)

    @property
    def measure_names(self) -> tuple[str, ...]:
        """As given."""
        return self._names

    @property
    def measure_ranges(self) -> tuple[tuple[float, float], ...]:
        """As given."""
        return self._ranges

    @property
    def archive_shape(self) -> tuple[int, ...]:
        """As given."""
        return self._shape

    @property
    def qd_offset(self) -> float:
        """As given."""
        return self._offset

    def check_sample(self, proxies: NumpyArray, n: int) -> None:
        """Raise an InputError unless the measure function gives numbers in their ranges in the beginning.

        Args:
            proxies: of n environments after a step or a start.
            n: how many.
        """
        wanted = (n, len(self._names))
        if proxies.shape != wanted:
            raise InputError(
                f"{self.name}: the measure function must return shape {wanted[1:]} for "
                f"{', '.join(self._names)} of each environment, got {proxies.shape} for {n}: "
                f"{proxies.tolist()}."
            )
        found = np.asarray(self.measures(jnp.asarray(proxies, jnp.float32), jnp.ones(n)))
        for one in found if found.ndim else [found]:
            self.check_measures(np.asarray(one), "in the beginning")


class BraxTask(Foreign):
    """An environment with `reset(rng)` and `step(state, action)` of Brax or MuJoCo Playground."""

    def __init__(
        self, env: Any, measure: Callable[[Any], Any], *common: Any, observation: str, control_dt: float
    ) -> None:
        super().__init__(*common)
        self.env, self._observation = env, observation
        # lists become arrays before they are mapped, and not a list of the environments' arrays
        self.measure: Callable[[Any], Array] = lambda state: jnp.asarray(measure(state), jnp.float32)
        self.observation_size, self.action_size = self._seen_size(), int(env.action_size)
        self.control_dt = control_dt
        self.control_range = ((-1.0, 1.0),) * self.action_size
        self.model, self._positions = _drawn(env)

        def first(key: Array) -> Array:
            return self.measure(env.reset(_old(key)))

        self.check_sample(np.asarray(jax.jit(first)(jax.random.key(0)))[None], 1)

    def _seen_size(self) -> int:
        """How many numbers a policy sees; of several observations, those of the chosen one."""
        size = self.env.observation_size
        if isinstance(size, Mapping):
            size = size[choose("observation", self._observation, size)]
        if isinstance(size, tuple) and len(size) == 1:
            size = size[0]
        if not isinstance(size, int):
            raise InputError(f"{self.name}: policies here see a vector of numbers, and it shows {size}.")
        return size

    def _seen(self, states: Any) -> Array:
        """Observations (n, o)."""
        seen = states.obs
        return jnp.asarray(seen[self._observation] if isinstance(seen, Mapping) else seen, jnp.float32)

    def pose(self, state: TaskState) -> Array:
        """Joint positions, if the environment shows them."""
        return super().pose(state) if self.model is None else jnp.asarray(self._positions(state.bodies))

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:  # noqa: ARG002
        states = jax.vmap(lambda key: self.env.reset(_old(key)))(keys)
        return self.started(states, self._seen(states))

    def _step(self, state: TaskState, action: Array) -> TaskState:
        after = jax.vmap(self.env.step)(state.bodies, action)
        done = after.done > 0.5
        # a wrapper may say which ends are time limits; without one, every end is the task's own
        info = getattr(after, "info", None)
        marked = info.get("truncation") if isinstance(info, Mapping) else None
        cut = jnp.zeros_like(done) if marked is None else (marked > 0.5) & done
        return self.moved(
            state, after, self._seen(after), jnp.asarray(after.reward, jnp.float32),
            jax.vmap(self.measure)(after), done & ~cut, cut,
        )  # fmt: skip


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
    """An environment of Brax or MuJoCo Playground as a task; rollouts are compiled whole.

    Example:
        >>> from mujoco_playground import registry  # doctest: +SKIP
        >>> swingup = registry.load("CartpoleSwingup")  # doctest: +SKIP
        >>> task = from_brax(
        ...     swingup, lambda state: state.data.qpos[:1], name="swingup", measure_names=["cart"],
        ...     measure_ranges=[(-1.8, 1.8)],
        ... )  # doctest: +SKIP

    The environment should be a bare one, without wrappers that repeat it, end its episodes or start them
    again: ends that are not marked as time limits (`info["truncation"]`) count as ends for good, and the time
    limit is `episode_length`.

    Args:
        env: has `reset(rng)` and `step(state, action)` for one body, and takes actions in [-1, 1].
        measure: Markovian measure proxies (k,) of a state of the environment after a step.
        name: what the task is called in files.
        measure_names: of the k measures, each the mean of its proxy over an episode.
        measure_ranges: lower and upper bound of each; [0, 1] by default.
        archive_shape: cells along each measure; 10 by default.
        qd_offset: subtracted from every objective before summing the QD-score.
        episode_length: control steps until an episode is truncated.
        episode: measures (n, k) from proxies' sums (n, k) and the steps (n,) lived; their mean by default.
        observation: which one the policies see, of an environment that shows several by name.
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
    """A measure function for robots of Brax: does a link touch anything, 0 or 1; the measures of the paper.

    Example:
        >>> env = envs.get_environment("walker2d", backend="spring")  # doctest: +SKIP
        >>> feet = brax_feet(env, ["foot", "foot_left"])  # doctest: +SKIP
        >>> task = from_brax(env, feet, name="brax", measure_names=["right", "left"])  # doctest: +SKIP

    Args:
        env: of Brax.
        links: of the feet, by name, or by number where no name is theirs alone, as in Brax' ant.
    """
    from brax import contact

    numbers = [_link(list(env.sys.link_names), link) for link in links]

    def measure(state: Any) -> Array:
        found = contact.get(env.sys, state.pipeline_state.x)
        touching = found.dist <= 0
        theirs = [(found.link_idx[0] == number) | (found.link_idx[1] == number) for number in numbers]
        return jnp.stack([(touching & own).any() for own in theirs]).astype(jnp.float32)

    return measure


def _link(names: list[str], link: str | int) -> int:
    """A link's number, from that or from a name that no other has."""
    if not isinstance(link, str) and 0 <= link < len(names):
        return int(link)
    if names.count(str(link)) == 1:
        return names.index(str(link))
    wrong = "there is more than one link" if link in names else "unknown link"
    listed = ", ".join(f"{number} {name!r}" for number, name in enumerate(names))
    raise InputError(f"{wrong} {link!r}. Give the number or the name of one: {listed}.")


def _old(key: Array) -> Array:
    """A key as these packages know them; states with such keys can be written to files."""
    return jax.random.key_data(key)


def _drawn(env: Any) -> tuple[mujoco.MjModel | None, Callable[[Any], Array]]:
    """The model of an environment and where its positions are, if it has one."""
    if isinstance(getattr(env, "mj_model", None), mujoco.MjModel):
        return env.mj_model, lambda state: state.data.qpos
    model = getattr(getattr(env, "sys", None), "mj_model", None)
    return (model if isinstance(model, mujoco.MjModel) else None), lambda state: state.pipeline_state.q


TRIED = 2
"""Environments that a measure function is tried on."""
KEPT = 3
"""Vector environments of one size that are kept; more are never used at once."""


class _Worlds:
    """Vector environments, which live outside of JAX; states hold handles of them.

    Such an environment cannot be copied: who steps a copy of a state moves the original on. A state that has
    been left behind that way (or that comes from a file) is *lost*: its episodes are cut off, and new ones
    begun. A handle is a row (world, ticket); it is good while the world's ticket is that one.
    """

    def __init__(self, make: Callable[[int], Any], measure: Callable[..., Any], k: int) -> None:
        self.make, self.measure, self.k = make, measure, k
        self._numbers = itertools.count(random.SystemRandom().randrange(2**30))
        self._worlds: dict[int, Any] = {}  # the least recently used first
        self._tickets: dict[int, int] = {}
        self._over: dict[int, NumpyArray] = {}  # episodes that have ended

    def open(self, seeds: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Handles and observations of n new episodes."""
        n = len(seeds)
        same = [number for number, world in self._worlds.items() if world.num_envs == n]
        world = self._forget(same[0]) if len(same) >= KEPT else self.make(n)
        number = next(self._numbers)
        self._worlds[number], self._tickets[number], self._over[number] = world, 0, np.zeros(n, bool)
        observation, _ = world.reset(seed=_seeds(seeds))
        return self._handles(number), _flat(observation)

    def again(
        self, handles: NumpyArray, where: NumpyArray, seeds: NumpyArray
    ) -> tuple[NumpyArray, NumpyArray]:
        """New episodes where they are asked for."""
        number, good = self._of(handles, seeds)
        if not (good | where).all():  # left behind: whatever it was in the middle of is over
            where = np.ones_like(where)
            self._tickets[number] += 1
        observation, _ = self._worlds[number].reset(seed=_seeds(seeds), options={"reset_mask": where})
        self._over[number][where] = False
        return self._handles(number), _flat(observation)

    def step(self, handles: NumpyArray, action: NumpyArray, active: NumpyArray) -> tuple[NumpyArray, ...]:
        """Handles, observations, rewards, proxies, terminated, truncated, and which were lost."""
        number, good = self._of(handles, np.arange(len(handles)))
        world = self._worlds[number]
        lost = active & (~good | self._over[number])
        # these begin anew, so that they can be stepped along with the others
        idle = lost | (~active & self._over[number])
        if idle.any():
            world.reset(seed=_seeds(np.arange(len(handles))), options={"reset_mask": idle})
        observation, reward, terminated, truncated, info = world.step(action)
        proxies = np.asarray(self.measure(observation, action, info), np.float32)
        if proxies.shape != (len(handles), self.k):
            raise InputError(
                f"the measure function gave {proxies.shape} for {len(handles)} environments, not "
                f"{(len(handles), self.k)}."
            )
        self._tickets[number] += 1
        self._over[number] = np.asarray(terminated | truncated, bool)
        return (
            self._handles(number), _flat(observation), np.asarray(reward, np.float32), proxies,
            np.asarray(terminated, bool), np.asarray(truncated, bool), lost,
        )  # fmt: skip

    def _of(self, handles: NumpyArray, seeds: NumpyArray) -> tuple[int, NumpyArray]:
        """The world that most rows belong to, and for which rows that is still true."""
        numbers, counts = np.unique(handles[:, 0], return_counts=True)
        known = [(count, int(number)) for count, number in zip(counts, numbers, strict=True)
                 if number in self._worlds]  # fmt: skip
        if not known:
            fresh, _ = self.open(seeds)
            return int(fresh[0, 0]), np.zeros(len(handles), bool)
        number = max(known)[1]
        self._worlds[number] = self._worlds.pop(number)  # the most recently used is the last
        return number, (handles == [number, self._tickets[number]]).all(axis=1)

    def _forget(self, number: int) -> Any:
        """The vector environment of a world that nobody steps any more."""
        del self._tickets[number], self._over[number]
        return self._worlds.pop(number)

    def _handles(self, number: int) -> NumpyArray:
        row = np.array([number, self._tickets[number]], np.int32)
        return np.tile(row, (self._worlds[number].num_envs, 1))


def _shape(shape: tuple[int, ...], kind: Any) -> Any:
    return jax.ShapeDtypeStruct(shape, kind)  # type: ignore[no-untyped-call]


def _seeds(values: NumpyArray) -> list[int]:
    return [int(value) for value in values]


def _flat(observation: Any) -> NumpyArray:
    values = np.asarray(observation, np.float32)
    return values.reshape(len(values), -1)


class GymnasiumTask(Foreign):
    """Vector environments of Gymnasium, stepped from inside of jitted code."""

    def __init__(self, make: Callable[[int], Any], measure: Callable[..., Any], *common: Any) -> None:
        super().__init__(*common)
        sample = make(TRIED)
        mode = str(sample.metadata.get("autoreset_mode"))
        if not mode.upper().endswith("DISABLED"):
            raise InputError(
                f"{self.name}: make its vector environments with autoreset_mode=AutoresetMode.DISABLED, not "
                f"{mode}: episodes are begun again by whoever steps them."
            )
        from gymnasium.spaces import Box

        sees, acts = sample.single_observation_space, sample.single_action_space
        if not isinstance(sees, Box) or not isinstance(acts, Box) or not acts.is_bounded():
            raise InputError(
                f"{self.name}: observations and actions must be Boxes, and actions bounded; got {sees} and "
                f"{acts}."
            )
        self.observation_size, self.action_size = math.prod(sees.shape), math.prod(acts.shape)
        low, high = acts.low.ravel(), acts.high.ravel()
        self.control_range = tuple((float(least), float(most)) for least, most in zip(low, high, strict=True))
        self.control_dt = float(getattr(getattr(sample, "unwrapped", sample), "dt", math.nan) or math.nan)
        if math.isnan(self.control_dt) and getattr(sample, "envs", None):
            self.control_dt = float(getattr(sample.envs[0].unwrapped, "dt", math.nan))
        self._low, self._span = low.astype(np.float32), (high - low).astype(np.float32)
        self._form = acts.shape
        self._worlds = _Worlds(make, measure, len(self.measure_names))
        sample.reset(seed=0)
        action = self._controls(np.zeros((TRIED, self.action_size), np.float32))
        seen, _, _, _, info = sample.step(action)
        self.check_sample(np.asarray(measure(seen, action, info), float), TRIED)
        sample.close()

    def _controls(self, action: NumpyArray) -> NumpyArray:
        controls = self._low + (np.asarray(action) + 1) / 2 * self._span
        return np.asarray(controls.reshape(-1, *self._form))

    def _place(self, keys: Array, before: TaskState | None) -> TaskState:
        seeds = jax.vmap(lambda key: jax.random.bits(key) >> 1)(keys)
        n = len(keys)
        shapes = (
            _shape((n, 2), jnp.int32),
            _shape((n, self.observation_size), jnp.float32),
        )

        def begin(seeds: Any) -> Any:
            return self._worlds.open(np.asarray(seeds))

        def again(handles: Any, where: Any, seeds: Any) -> Any:
            return self._worlds.again(np.asarray(handles), np.asarray(where), np.asarray(seeds))

        if before is None:
            handles, observation = io_callback(begin, shapes, seeds)
        else:
            handles, observation = io_callback(again, shapes, before.bodies, before.finished, seeds)
        return self.started(handles, observation)

    def _step(self, state: TaskState, action: Array) -> TaskState:
        n, k = len(state.steps), len(self.measure_names)
        flag, number = _shape((n,), jnp.bool_), _shape((n,), jnp.float32)
        shapes = (
            _shape((n, 2), jnp.int32),
            _shape((n, self.observation_size), jnp.float32),
            number, _shape((n, k), jnp.float32), flag, flag, flag,
        )  # fmt: skip

        def step(handles: Any, action: Any, active: Any) -> Any:
            controls = self._controls(np.asarray(action))
            return self._worlds.step(np.asarray(handles), controls, np.asarray(active))

        handles, observation, reward, proxies, terminated, truncated, lost = io_callback(
            step, shapes, state.bodies, action, ~state.finished
        )
        after = self.moved(state, handles, observation, reward, proxies, terminated, truncated)
        cut = replace(
            state,
            bodies=handles,
            reward=jnp.zeros_like(reward),
            proxies=jnp.zeros_like(proxies),
            truncated=~state.terminated & (state.truncated | lost),
        )
        # all rows share the handle of their world, also those that were not stepped
        return replace(select(lost, cut, after), bodies=handles)


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
    """An environment of Gymnasium as a task. Slower than a `Task` of ours: every step is one of Python's.

    Example:
        >>> def upright(observation, action, info):
        ...     return abs(observation[:, 1:2]) < 0.05
        >>> task = from_gymnasium("InvertedPendulum-v5", upright, measure_names=["upright"])
        >>> task.observation_size, task.control_range
        (4, ((-3.0, 3.0),))

    Its environments cannot be copied or written to files: a resumed run begins new episodes, and is not
    exactly what it would have been.

    Args:
        make: name of a registered environment, or a function that makes a vector environment of n, with
            autoreset_mode=DISABLED.
        measure: Markovian measure proxies (n, k) of a step, from the observations (n, ...) after it, the
            actions (n, ...) and the infos (a dictionary of arrays).
        measure_names: of the k measures, each the mean of its proxy over an episode.
        name: what the task is called in files; that of the registered environment by default.
        measure_ranges: lower and upper bound of each; [0, 1] by default.
        archive_shape: cells along each measure; 10 by default.
        qd_offset: subtracted from every objective before summing the QD-score.
        episode_length: control steps until an episode is truncated, unless the environment does so earlier.
        episode: measures (n, k) from proxies' sums (n, k) and the steps (n,) lived; their mean by default.
        **options: for `gymnasium.make_vec`, with a registered environment.
    """
    if isinstance(make, str):
        registered, name = make, name or make
        make = _maker(registered, options)
    elif options:
        raise InputError(f"options are for registered environments, got {', '.join(options)}.")
    if not name:
        raise InputError("what is the task called? name=...")
    common = (
        name, "gymnasium", measure_names, measure_ranges, archive_shape, qd_offset, episode_length, episode,
    )  # fmt: skip
    return GymnasiumTask(make, measure, *common)


def _maker(registered: str, options: dict[str, Any]) -> Callable[[int], Any]:
    import gymnasium
    from gymnasium.vector import AutoresetMode

    mode = {"vectorization_mode": "sync"} | options
    kept = {"autoreset_mode": AutoresetMode.DISABLED} | mode.pop("vector_kwargs", {})
    try:
        gymnasium.spec(registered)
    except gymnasium.error.Error as error:
        raise InputError(f"Gymnasium: {error}") from None
    return lambda n: gymnasium.make_vec(registered, n, vector_kwargs=dict(kept), **mode)
