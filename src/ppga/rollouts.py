"""Rollouts: policies in environments, to judge by (`evaluate`, `Judge`) or to look at (`record`)."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga import random
from ppga.errors import at_least_one
from ppga.physics import Array
from ppga.policies import Network, Policy
from ppga.storage import NumpyArray
from ppga.tasks import Environment, TaskState

Act = Callable[[Array, Array, Array], Array]
"""(observations (n, o), random key or keys (n,), control steps lived (n,)) -> actions (n, a) in [-1, 1]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Scores:
    """What n whole episodes came to.

    Attributes:
        objective: (n,) return, the undiscounted sum of rewards.
        measures: (n, k) each proxy's mean over the steps the episode actually lived, unless the task says
            otherwise.
        steps: (n,) how many those were.
        diverged: (n,) bool, ended by diverging physics.
    """

    objective: Array
    measures: Array
    steps: Array
    diverged: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Recording:
    """Steps of n episodes, one after the other.

    Attributes:
        qpos: (n, t, nq) where the body was; nothing (n, t, 0) where there is none to draw.
        observation: (n, t, o) what the policy saw.
        action: (n, t, a) what it did.
        reward: (n, t) what it got; 0 after the end.
        proxies: (n, t, k) measure proxies; 0 after the end.
        alive: (n, t) bool, the step was lived.
    """

    qpos: Array
    observation: Array
    action: Array
    reward: Array
    proxies: Array
    alive: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transitions:
    """What n bodies went through in t steps, for learning off policy.

    Attributes:
        observation: (n, t, o) before the step.
        action: (n, t, a) what was done, within [-1, 1].
        reward: (n, t).
        proxies: (n, t, k) measure proxies.
        terminated: (n, t) bool, nothing follows; not so at the time limit.
        next_observation: (n, t, o) after the step.
        active: (n, t) bool, the episode had not ended before the step.
        lived: (n, t) bool, the step was taken; the rest means nothing where it was not.
    """

    observation: Array
    action: Array
    reward: Array
    proxies: Array
    terminated: Array
    next_observation: Array
    active: Array
    lived: Array


def evaluate(task: Environment, act: Act, key: Array, n: int, playing: Array | None = None) -> Scores:
    """Play n episodes at once until the last one has ended; see `play`."""
    return play(task, act, key, n, playing)[0]


def play(
    task: Environment, act: Act, key: Array, n: int, playing: Array | None = None, every: int = 0
) -> tuple[Scores, Transitions | None]:
    """Play n episodes at once until the last one has ended.

    Args:
        task: what is played.
        act: chooses the actions.
        key: one for all episodes, or (n,), one for each; `act` gets the like.
        n: how many.
        playing: (n,) bool, which of them are played at all; the others score 0 in 0 steps.
        every: return the transitions of the first episode, and of each that is so many after it; 0 for none.
    """
    start_key, act_key = random.split_each(key)
    state = task.reset(start_key, n)
    if playing is not None:
        state = replace(state, truncated=state.truncated | ~playing)

    def unfinished(carry: _Playing) -> Array:
        return ~carry[0].finished.all()

    def step(carry: _Playing) -> _Playing:
        state, time, objective, touched, film = carry
        action = act(state.observation, _at(act_key, time), state.steps)
        after = task.step(state, action)
        if film is not None:
            seen = _transition(state, action, after)
            film = jax.tree.map(lambda film, now: film.at[time].set(now[::every]), film, seen)
        return after, time + 1, objective + after.reward, touched + after.proxies, film

    film = None
    if every:
        shapes = jax.eval_shape(_transition, state, jnp.zeros((n, task.action_size)), state)
        film = jax.tree.map(
            lambda leaf: jnp.zeros((task.episode_length, -(-n // every), *leaf.shape[1:]), leaf.dtype), shapes
        )
    nothing = jnp.zeros_like(state.reward), jnp.zeros_like(state.proxies)
    state, _, objective, touched, film = jax.lax.while_loop(
        unfinished, step, (state, jnp.int32(0), *nothing, film)
    )
    measures = task.measures(touched, state.steps)
    return Scores(objective, measures, state.steps, state.diverged), _environments_first(film)


_Playing = tuple[TaskState, Array, Array, Array, Any]
"""State, time, objectives and measures so far, transitions so far (t, n, ...) or None."""


def _transition(state: TaskState, action: Array, after: TaskState) -> Transitions:
    """The step from one state to the next, arrays (n, ...)."""
    return Transitions(
        observation=state.observation,
        action=jnp.clip(action, -1.0, 1.0),
        reward=after.reward,
        proxies=after.proxies,
        terminated=after.terminated,
        next_observation=after.observation,
        active=~state.finished,
        lived=after.steps > state.steps,
    )


def _environments_first(steps: Any) -> Any:
    """Arrays (t, n, ...) as (n, t, ...)."""
    return jax.tree.map(lambda values: jnp.swapaxes(values, 0, 1), steps)


def explore(
    task: Environment, act: Act, state: TaskState, key: Array, steps: int
) -> tuple[TaskState, Transitions]:
    """Go on for some steps in environments that begin anew when an episode ends."""

    def step(state: TaskState, time: Array) -> tuple[TaskState, Transitions]:
        act_key, restart_key = jax.random.split(jax.random.fold_in(key, time))
        action = act(state.observation, act_key, state.steps)
        after = task.step(state, action)
        return task.restart(after, restart_key), _transition(state, action, after)

    state, film = jax.lax.scan(step, state, jnp.arange(steps))
    return state, _environments_first(film)


def _at(key: Array, time: Array) -> Array:
    """A step's own key, or keys."""
    return jax.vmap(jax.random.fold_in, (0, None))(key, time) if key.ndim else jax.random.fold_in(key, time)


@partial(jax.jit, static_argnums=(1, 2))
def episode_keys(key: Array, policies: int, episodes: int) -> Array:
    """Keys (policies, episodes) that do not depend on how the policies are grouped."""
    return jax.vmap(lambda key: jax.random.split(key, episodes))(jax.random.split(key, policies))


class Judge:
    """Plays several episodes with each of many policies, all at once.

    Where the engine can serve several callers, the policies are shared among threads that go through their
    episodes side by side: on CPUs, no thread then waits for the slowest at every step, and each goes round
    fewer networks, which its cache can hold. Scores do not depend on how many threads there are.

    Args:
        task: what they do.
        network: their actor.
        episodes: of each policy.
        sample: act with noise; by the mean action otherwise.
        watch: keep the transitions of the first episode of each.
    """

    def __init__(
        self, task: Environment, network: Network, episodes: int, sample: bool = False, watch: bool = False
    ) -> None:
        self.task, self.network, self.episodes, self.sample = task, network, episodes, sample
        self.watch = watch
        self._compiled: dict[tuple[int, int], Any] = {}

    def __call__(
        self, policies: Policy, key: Array, playing: NumpyArray | None = None
    ) -> tuple[Scores, Transitions | None]:
        """Scores (n, episodes, ...) of n policies and, if watched, their transitions (n, t, ...), for NumPy.

        Args:
            policies: n of them.
            key: of starts and action noise.
            playing: (n,) bool, which of them play at all; for a number that varies, without compiling anew.
        """
        n = len(policies.parameters)
        playing = np.ones(n, bool) if playing is None else playing
        workers = min(n, self.task.callers(n * self.episodes))  # however many of them play
        # dealt out in turn; the last one fills up, without playing, where n cannot be shared evenly
        dealt = np.arange(workers * -(-n // workers)).reshape(-1, workers).T
        rows = np.minimum(dealt, n - 1)
        data = np.asarray(jax.random.key_data(episode_keys(key, n, self.episodes)))
        everything = jax.tree.map(np.asarray, (policies, data, playing))
        shares = [jax.tree.map(lambda leaf, some=some: leaf[some], everything) for some in rows]
        shares = [(*one, who & (some < n)) for (*one, who), some in zip(shares, dealt, strict=True)]
        play = self._compiled.get(rows.shape) or self._compile(rows.shape, *shares[0])
        pool = ThreadPoolExecutor(workers)
        try:
            played = list(pool.map(lambda share: jax.tree.map(np.asarray, play(*share)), shares))
        finally:  # an interrupt does not wait for the threads; otherwise they are done
            pool.shutdown(wait=False, cancel_futures=True)
        order = np.argsort(dealt.ravel())[:n]
        whole: tuple[Scores, Transitions | None] = jax.tree.map(
            lambda *parts: np.concatenate(parts)[order], *played
        )
        return whole

    def play_here(self, policies: Policy, keys: Array, playing: Array) -> tuple[Scores, Transitions | None]:
        """The same inside jitted code, all in one loop, by keys (n, episodes)."""
        return self._play(self.task, policies, keys, playing)

    def _compile(
        self, shape: tuple[int, int], policies: Policy, data: NumpyArray, playing: NumpyArray
    ) -> Any:
        task = self.task.for_callers(shape[0])

        def play(policies: Policy, data: Array, playing: Array) -> tuple[Scores, Transitions | None]:
            return self._play(task, policies, jax.random.wrap_key_data(data), playing)

        compiled = self._compiled[shape] = jax.jit(play).lower(policies, data, playing).compile()
        return compiled

    def _play(
        self, task: Environment, policies: Policy, keys: Array, playing: Array
    ) -> tuple[Scores, Transitions | None]:
        n, episodes = len(policies.parameters), self.episodes

        def act(observation: Array, keys: Array, steps: Array) -> Array:  # noqa: ARG001
            seen = observation.reshape(n, episodes, -1)
            action = jax.vmap(lambda policy, seen: policy.mean_action(self.network, seen))(policies, seen)
            action = jnp.asarray(action.reshape(n * episodes, -1))
            if self.sample:
                noise = jax.vmap(lambda key: jax.random.normal(key, action.shape[1:]))(keys)
                action += jnp.exp(jnp.repeat(policies.log_std, episodes, axis=0)) * noise
            return action

        every = keys.reshape(n * episodes)
        everyone = jnp.repeat(playing, episodes)
        scores, film = play(task, act, every, n * episodes, everyone, episodes if self.watch else 0)
        apart: Scores = jax.tree.map(lambda rows: rows.reshape(n, episodes, *rows.shape[1:]), scores)
        return apart, film


def record(task: Environment, act: Act, key: Array, n: int, steps: int) -> Recording:
    """The first `steps` steps of n episodes, as `evaluate` plays them."""
    at_least_one("steps", steps)
    start_key, act_key = random.split_each(key)

    def step(state: TaskState, time: Array) -> tuple[TaskState, Recording]:
        action = act(state.observation, _at(act_key, time), state.steps)
        after = task.step(state, action)
        lived = after.steps > state.steps
        return after, Recording(
            task.pose(state), state.observation, action, after.reward, after.proxies, lived
        )

    _, recording = jax.lax.scan(step, task.reset(start_key, n), jnp.arange(steps))
    whole: Recording = _environments_first(recording)
    return whole
