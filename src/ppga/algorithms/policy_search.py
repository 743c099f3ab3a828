"""Reinforcement-learning tasks as a problem to search in: VPPO gives gradients and walks, episodes judge."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga import random
from ppga.algorithms.base import Cost, SearchConfig
from ppga.algorithms.policy_problem import NetworkConfig, PolicyProblem
from ppga.algorithms.problem import Effort
from ppga.learners.vppo import VPPO, Agent, PPOConfig, Report, Returns, Skill, Worlds
from ppga.physics import Array, select
from ppga.policies import Policy
from ppga.storage import NumpyArray
from ppga.tasks import Environment

NOISE_BOUNDS = (0.1, 1.0)
"""Least and most action noise (standard deviation) while the archive rules it."""
WILD_LOSS = 100.0
"""A value loss (of normalised returns) above this means that a critic has lost its way."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SearchState:
    """All that learning carries on.

    Attributes:
        policies: m search policies.
        skills: (m, k+2) critics with their Adam and learning rate: of the reward, of each measure, and of the
            walk.
        returns: m reward normalisers.
        worlds: all environments.
    """

    policies: Policy
    skills: Skill
    returns: Returns
    worlds: Worlds


class PolicySearch(PolicyProblem):
    """A task as a problem with gradients, by VPPO.

    Args:
        task: what the policies do.
        search: how they are judged and walked.
        ppo: how they learn.
        network: what they are.
        progress: called after every PPO update, for a display.
        gradients: how many objectives the Jacobian is of, the reward first; all by default.
    """

    learners = ("policies", "skills", "returns")

    def __init__(
        self,
        task: Environment,
        search: SearchConfig,
        ppo: PPOConfig,
        network: NetworkConfig,
        progress: Callable[[], None] = lambda: None,
        gradients: int | None = None,
    ) -> None:
        self.vppo = VPPO(task, network.actor, network.critic, ppo)
        super().__init__(task, search, self.vppo.actor, progress)
        self.ppo = ppo
        self.objectives = k1 = self.vppo.objectives
        self.gradients = k1 if gradients is None else gradients
        self.start_steps = ppo.environments * ppo.rollout_length
        self.fields |= {"returns_mean": (k1,), "returns_covariance": (k1, k1), "returns_count": ()}
        # one program, where every small step would be one of its own, to be compiled
        self._copies = jax.jit(self._make_copies)

    def start(self, key: Array) -> SearchState:
        """New policies, critics and environments; a first rollout fills the normalisers."""
        m, k1 = self.search.emitters, self.objectives
        policy_key, skill_key, world_key, rollout_key = jax.random.split(key, 4)
        # not in one program: two of LAPACK's factorisations at once may wait for each other for ever
        policies = jax.vmap(self.vppo.init_policy)(jax.random.split(policy_key, m))
        skills = jax.vmap(jax.vmap(self.vppo.init_skill))(jax.random.split(skill_key, (m, k1 + 1)))
        returns: Returns = jax.tree.map(lambda leaf: jnp.stack([leaf] * m), Returns.unknown(k1))
        keys = jax.random.split(rollout_key, m)
        agents = Agent(policies, returns, _of(skills, k1))
        worlds, seen = self.vppo.collect(agents, self.vppo.init_worlds(world_key), keys)
        agents = self.vppo.observe(agents, seen)
        return SearchState(agents.policy, skills, agents.returns, worlds)

    def cost(self, policies: int, updates: int) -> Cost:
        """What judging so many policies and so many updates take."""
        ppo, task = self.ppo, self.task
        steps = ppo.environments * ppo.rollout_length
        row = 2 * task.observation_size + 2 * task.action_size + 2 * self.objectives + 8
        networks = self.vppo.actor.parameters + self.vppo.critic.parameters
        return Cost(
            policies,
            learning_steps=updates * steps,
            multiplications=3 * networks * ppo.epochs * updates * steps,  # forwards, and twice backwards
            memory=4 * (steps * row + policies * self.solution_size),
        )

    def policies(self, state: SearchState) -> Policy:
        """The search policies."""
        return state.policies

    def solutions(self, state: SearchState) -> NumpyArray:
        """Parameters (m, d) of the search policies."""
        return np.asarray(state.policies.parameters)

    def kept(self, state: SearchState) -> dict[str, NumpyArray]:
        """Action noise and normalisers (m, ...)."""
        returns = state.returns
        return super().kept(state) | {
            "returns_mean": np.asarray(returns.mean),
            "returns_covariance": np.asarray(returns.covariance),
            "returns_count": np.asarray(returns.count),
        }

    def jacobian(self, state: SearchState, key: Array) -> tuple[SearchState, NumpyArray, Effort]:
        """How k+1 copies of each search policy change when each learns one objective: (m, k+1, d).

        They begin in the situations the search policy has got into, and leave them to it.
        """
        state = self._with_noise(state)
        agents, weights, keys = self._copies(state.policies, state.returns, state.skills, key)
        worlds = _copied(state.worlds)  # a rollout gives the memory of its worlds away
        learnt, _, report = self.vppo.train(
            agents, worlds, weights, self.search.jacobian_updates, keys, False, self.progress
        )
        m, k1 = self.search.emitters, self.gradients
        change = np.asarray(learnt.policy.parameters).reshape(m, k1, -1) - self.solutions(state)[:, None]
        effort = self._effort(report, self.search.jacobian_updates, ("reward", *self.measure_names)[:k1] * m)
        return replace(state, skills=_with_first(state.skills, learnt.skill)), change, effort

    def walk(
        self, state: SearchState, weights: NumpyArray, key: Array, updates: int | None = None
    ) -> tuple[SearchState, Effort]:
        """Let each search policy learn its weighted sum (m, k+1) of reward and measure proxies."""
        k1, updates = self.objectives, updates or self.search.walk_updates
        state = self._with_noise(state)
        mixed = weights * (scales(state.returns) if self.search.mix == "scaled" else 1.0)
        mixed[~mixed.any(axis=1), 0] = 1.0
        mixed /= np.linalg.norm(mixed, axis=1, keepdims=True)
        agents = Agent(state.policies, state.returns, _of(state.skills, k1))
        learnt, worlds, report = self.vppo.train(
            agents,
            state.worlds,
            jnp.asarray(mixed, jnp.float32),
            updates,
            jax.random.split(key, len(weights)),
            True,
            self.progress,
        )
        skills = _with_one(state.skills, learnt.skill, k1)
        state = SearchState(learnt.policy, skills, learnt.returns, worlds)
        return state, self._effort(report, updates, ("the walk",) * len(weights))

    def watch(
        self, state: SearchState, weights: NumpyArray, key: Array, first: bool
    ) -> tuple[SearchState, SearchState, NumpyArray, Effort]:
        """One update of the walk, step by step.

        Args:
            state: to go on from.
            weights: (m, k+1) of reward and measure proxies.
            key: of its randomness.
            first: whether an iteration's learning begins with it.

        Returns:
            The state before and after; the search policies after each minibatch step (m, steps, d), which see
            as they did before; and what it took.
        """
        k1, keys = self.objectives, jax.random.split(key, len(weights))
        state = self._with_noise(state) if first else state
        agents = Agent(state.policies, state.returns, _of(state.skills, k1))
        agents = self.vppo.forget(agents) if first and self.ppo.fresh_adam else agents
        collect_keys, update_keys = random.split_each(keys)
        worlds, seen = self.vppo.collect(agents, state.worlds, collect_keys)
        learnt, report, way = self.vppo.update_watched(
            agents, seen, jnp.asarray(weights, jnp.float32), update_keys
        )
        after = self.vppo.observe(learnt, seen)
        skills = _with_one(state.skills, after.skill, k1)
        effort = self._effort(report, 1, ("the walk",) * len(weights))
        return (
            replace(state, worlds=worlds),
            SearchState(after.policy, skills, after.returns, worlds),
            np.asarray(way),
            effort,
        )

    def stir(self, state: SearchState, factors: NumpyArray) -> SearchState:
        """Multiply the action noise, within bounds; only where the archive rules it."""
        if self.ppo.std != "archive":
            return state
        noise = state.policies.log_std + jnp.log(jnp.asarray(factors, jnp.float32))[:, None]
        noise = jnp.clip(noise, *np.log(NOISE_BOUNDS))
        return replace(state, policies=replace(state.policies, log_std=noise))

    def place(self, state: SearchState, solutions: NumpyArray, key: Array) -> tuple[SearchState, Effort]:
        """Put the search policies (m, d) elsewhere; a rollout there goes into their normalisers."""
        policies = replace(state.policies, parameters=jnp.asarray(solutions, jnp.float32))
        agents = Agent(policies, state.returns, _of(state.skills, self.objectives))
        worlds, seen = self.vppo.collect(agents, state.worlds, jax.random.split(key, len(solutions)))
        agents = self.vppo.observe(agents, seen)
        state = replace(state, policies=agents.policy, returns=agents.returns, worlds=worlds)
        return state, Effort(env_steps=self.ppo.environments * self.ppo.rollout_length)

    def move(self, state: SearchState, emitter: int, elite: dict[str, NumpyArray], key: Array) -> SearchState:
        """Put a search policy at an elite, with its action noise and normalisers, in new environments."""
        one = Policy.of_elite(elite)
        returns = Returns(
            jnp.asarray(elite["returns_mean"]),
            jnp.asarray(elite["returns_covariance"]),
            jnp.asarray(elite["returns_count"]),
        )
        policies, returns = _with_row((state.policies, state.returns), (one, returns), emitter)
        its_own = self.vppo.owners(self.search.emitters) == emitter
        worlds = select(jnp.asarray(its_own), self.vppo.init_worlds(key), state.worlds)
        return replace(state, policies=policies, returns=returns, worlds=worlds)

    def _make_copies(
        self, policies: Policy, returns: Returns, skills: Skill, key: Array
    ) -> tuple[Agent, Array, Array]:
        """As many agents of each search policy as there are gradients; their objectives and keys."""
        m, k1 = self.search.emitters, self.gradients

        def copies(leaf: Array) -> Array:
            return jnp.repeat(leaf, k1, axis=0)

        policies, returns = jax.tree.map(copies, (policies, returns))
        skills = jax.tree.map(lambda leaf: leaf[:, :k1].reshape(m * k1, *leaf.shape[2:]), skills)
        weights = jnp.tile(jnp.eye(k1, self.objectives), (m, 1))
        return Agent(policies, returns, skills), weights, jax.random.split(key, m * k1)

    def _with_noise(self, state: SearchState) -> SearchState:
        """The state that an iteration's learning begins with: its action noise, where that is reset."""
        if self.ppo.std != "reset":
            return state
        noise = jnp.full_like(state.policies.log_std, np.log(self.ppo.initial_std))
        return replace(state, policies=replace(state.policies, log_std=noise))

    def _effort(self, report: Report, updates: int, names: tuple[str, ...]) -> Effort:
        loss = np.asarray(report.value_loss)
        left_out = np.asarray(report.nonfinite + report.diverged).sum()  # of an update, in the mean
        return Effort(
            env_steps=updates * self.ppo.environments * self.ppo.rollout_length,
            nonfinite=round(updates * float(left_out)),
            metrics={
                name: np.asarray(getattr(report, name)).tolist()
                for name in (
                    "policy_loss",
                    "value_loss",
                    "kl",
                    "used",
                    "explained",
                    "entropy",
                    "nonfinite",
                    "diverged",
                    "rate",
                )
            },
            warnings=tuple(
                f"the critic of {name} is lost (value loss {value:.3g})"
                for name, value in zip(names, loss, strict=True)
                if not value < WILD_LOSS
            ),
        )


def scales(returns: Returns) -> NumpyArray:
    """What makes k+1 objectives comparable in a walk, (m, k+1): one over the spread of each one's returns.

    An objective that has hardly varied has no say: nothing is known of how to change it, and a small spread
    would blow up what is constant in it.
    """
    spread = np.sqrt(np.asarray(jnp.diagonal(returns.covariance, axis1=1, axis2=2)))
    varies = spread > np.maximum(1e-3, 0.01 * np.abs(np.asarray(returns.mean)))
    return np.where(varies, 1 / np.where(varies, spread, 1.0), 0.0)


@jax.jit
def _of(skills: Skill, objective: int) -> Skill:
    """The skills (m,) of one objective, of all (m, k+2)."""
    one: Skill = jax.tree.map(lambda leaf: leaf[:, objective], skills)
    return one


@jax.jit
def _with_one(skills: Skill, one: Skill, objective: int) -> Skill:
    """All skills (m, k+2), those (m,) of one objective anew."""
    every: Skill = jax.tree.map(lambda old, new: old.at[:, objective].set(new), skills, one)
    return every


@jax.jit
def _with_first(skills: Skill, first: Skill) -> Skill:
    """All skills (m, k+2), the first k+1 or fewer of each search policy anew, from (m (k+1),)."""

    def put(old: Array, new: Array) -> Array:
        new = new.reshape(len(old), -1, *old.shape[2:])
        return old.at[:, : new.shape[1]].set(new)

    every: Skill = jax.tree.map(put, skills, first)
    return every


@jax.jit
def _with_row(every: Any, one: Any, row: int) -> Any:
    """Arrays (m, ...) with one row anew."""
    return jax.tree.map(lambda old, new: old.at[row].set(new), every, one)


@jax.jit
def _copied(tree: Any) -> Any:
    return jax.tree.map(jnp.copy, tree)
