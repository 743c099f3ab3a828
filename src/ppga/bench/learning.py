"""How fast policies learn and are judged, beside what the physics and the arithmetic alone would allow."""

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from ppga.bench.harness import Result, rates
from ppga.bench.physics import bare
from ppga.learners.vppo import VPPO, Agent, Returns
from ppga.physics import Array, Bodies
from ppga.policies import Policy
from ppga.rollouts import Judge, episode_keys, record
from ppga.runs import Budget, Iteration, KeepingConfig, preset, train
from ppga.runs.folder import RunFolder
from ppga.runs.loop import WRITING_SHARE, Writer
from ppga.tasks import Task, robot

WORK = ("jacobian", "judge", "confirm", "walk")
"""Phases of an iteration that simulate and learn; all else is overhead."""
UNIFORM_STD = 3**-0.5
"""Of actions in [-1, 1] at random, which the bare library gets."""


def bench_vppo(
    name: str, settings: str, environments: int | None, steps: int, rounds: int, threads: int | None
) -> list[Result]:
    """Training and judging speed of one task, with the networks and batches of a preset.

    No episode ends early, and actions are as random as those the bare library gets, so that the bodies go
    through the same kind of motion.
    """
    config, _ = preset(settings, name)
    task = endless(name, steps, threads)
    many = environments or config.ppo.environments
    ppo = replace(config.ppo, environments=many, target_kl=0.0, initial_std=UNIFORM_STD)
    replace(config, ppo=ppo).check(len(task.measure_names))
    learner = VPPO(task, config.network.actor, config.network.critic, ppo)
    k1 = learner.objectives
    weights = jnp.eye(k1)
    keys = jax.random.split(jax.random.key(0), k1)
    policies = jax.vmap(learner.init_policy)(keys)
    skills = jax.vmap(learner.init_skill)(keys)
    returns: Returns = jax.tree.map(lambda leaf: jnp.stack([leaf] * k1), Returns.unknown(k1))
    agents = Agent(policies, returns, skills)
    start = learner.init_worlds(jax.random.key(1))
    batch = ppo.environments * ppo.rollout_length

    def learn(rollouts: bool) -> Callable[[], int]:
        state: dict[str, Any] = {"worlds": jax.tree.map(jnp.copy, start)}
        _, state["seen"] = learner.collect(agents, jax.tree.map(jnp.copy, start), keys)

        def work() -> int:
            if rollouts:
                state["worlds"], state["seen"] = learner.collect(agents, state["worlds"], keys)
            _, report, _ = learner.update(agents, state["seen"], weights, keys)
            report.kl.block_until_ready()
            return batch

        return work

    n = config.search.branches * config.search.episodes
    evaluation, replay = judging(
        task, learner, config.search.branches, config.search.episodes, steps, threads
    )
    measured = rates(
        {
            "mujoco.batch": bare(task, ppo.environments, steps, threads),
            "update": learn(rollouts=False),
            "vppo": learn(rollouts=True),
            "replay": replay,
            "evaluation": evaluation,
        },
        rounds,
    )
    limit = 1 / (1 / measured["mujoco.batch"] + 1 / measured["update"])
    return [
        Result(f"mujoco.batch/{name}", measured["mujoco.batch"], "steps/s"),
        Result(f"update/{name}", measured["update"], "steps/s"),
        Result(
            f"vppo/{name}",
            measured["vppo"],
            "steps/s",
            measured["vppo"] / limit,
            "1/(1/mujoco.batch + 1/update)",
        ),
        Result(
            f"evaluation/{name}",
            measured["evaluation"],
            "steps/s",
            measured["evaluation"] / measured["replay"],
            f"mujoco.batch, {n} bodies, same actions",
        ),
    ]


def judging(
    task: Task, learner: VPPO, policies: int, episodes: int, steps: int, threads: int | None
) -> tuple[Callable[[], int], Callable[[], int]]:
    """Many policies that move about judged at once; and the bare library under the very actions they
    chose.
    """
    many: Policy = jax.vmap(learner.init_policy)(jax.random.split(jax.random.key(2), policies))
    stirred = 0.2 * jax.random.normal(jax.random.key(3), many.parameters.shape)
    many = replace(many, parameters=many.parameters + stirred)
    judge = Judge(task, learner.actor, episodes)
    key, n = jax.random.key(4), policies * episodes

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        seen = observation.reshape(policies, episodes, -1)
        action = jax.vmap(lambda policy, seen: policy.mean_action(learner.actor, seen))(many, seen)
        return jnp.asarray(action.reshape(n, -1))

    keys = episode_keys(key, policies, episodes).reshape(n)
    seen = jax.jit(lambda keys: record(task, act, keys, n, steps))(keys)
    start = jax.jit(lambda keys: task.reset(jax.vmap(jax.random.split)(keys)[:, 0], n))(keys)
    actions = jnp.swapaxes(seen.action, 0, 1)
    return lambda: int(judge(many, key)[0].steps.sum()), bare(task, n, steps, threads, actions, start)


def endless(name: str, steps: int, threads: int | None) -> Task:
    """A task whose episodes end at the time limit only."""

    def never(self: Task, body: Bodies) -> Array:  # noqa: ARG001
        return jnp.zeros((), jnp.bool_)

    kind: Any = type(f"Endless{name}", (type(robot(name)),), {"terminated": never})
    task: Task = kind(episode_length=steps, threads=threads)
    return task


def bench_iteration(name: str, settings: str, iterations: int, threads: int | None) -> list[Result]:
    """What an iteration of PPGA spends on anything but simulating and learning, in a real run with its files.

    The usual kind: long walks for the reward, which some begin with, are left out.

    Checkpoints come twice a minute at most, so they are timed apart, and their share of the time is added.
    """
    config, _ = preset(settings, name)
    config = replace(
        config,
        search=replace(config.search, reward_first=0),
        simulation=replace(config.simulation, threads=threads),
        keeping=replace(config.keeping, checkpoint_seconds=1e9),
    )
    often = KeepingConfig().checkpoint_seconds
    times: list[dict[str, float]] = []
    saving: list[float] = []

    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        budget = Budget(iterations=iterations + 1)

        def watch(iteration: Iteration) -> None:
            times.append(iteration.record["times"])
            if iteration.stop:
                writer = Writer(folder, name, config, budget, iteration.algorithm, print)
                for _ in range(3):
                    began = time.perf_counter()
                    writer.save(0.0)
                    saving.append(time.perf_counter() - began)
                writer.close()

        train(name, config, budget=budget, output=folder.path, callbacks=[watch])
    after_compiling = times[1:]
    seconds = statistics.median(spent["total"] for spent in after_compiling)
    took = statistics.median(saving)
    outside = [1 - sum(spent.get(phase, 0.0) for phase in WORK) / spent["total"] for spent in after_compiling]
    share = statistics.fmean(outside) + took / (took + max(often, WRITING_SHARE * took))
    phases = {
        phase: statistics.median(spent.get(phase, 0.0) for spent in after_compiling)
        for phase in (*WORK, "archive", "keeping")
    }
    return [
        Result(f"iteration/{name}", seconds, "s"),
        *(Result(f"{phase}/{name}", spent, "s") for phase, spent in phases.items()),
        Result(f"checkpoint/{name}", took, "s"),
        Result(f"overhead/{name}", share, "share of an iteration"),
    ]
