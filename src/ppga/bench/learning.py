"""How fast policies learn and are judged, beside what the physics and the arithmetic alone would allow."""

import statistics
import tempfile
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
from ppga.rollouts import judge
from ppga.runs import Budget, Iteration, preset, train
from ppga.tasks import TASKS, Task, make_task

WORK = ("jacobian", "judge", "walk")
"""Phases of an iteration that simulate and learn; all else is overhead."""


def bench_vppo(
    name: str, settings: str, environments: int | None, steps: int, rounds: int, threads: int | None
) -> list[Result]:
    """Training and judging speed of one task, with the networks and batches of a preset.

    No episode ends early, and actions are as random as those the bare library gets, so that the bodies go
    through the same kind of motion.
    """
    config, _ = preset(settings, name)
    task = endless(name, steps, threads)
    ppo = replace(config.ppo, environments=environments or config.ppo.environments, target_kl=0.0)
    learner = VPPO(task, config.network.actor, config.network.critic, ppo)
    k1 = learner.objectives
    weights = jnp.eye(k1)
    keys = jax.random.split(jax.random.key(0), k1)
    policies = jax.vmap(learner.init_policy)(keys)
    critics = jax.vmap(learner.init_critic)(keys)
    returns: Returns = jax.tree.map(lambda leaf: jnp.stack([leaf] * k1), Returns.unknown(k1))
    agents = Agent(policies, critics, returns, jnp.full(k1, ppo.learning_rate))
    start = learner.init_worlds(jax.random.key(1))
    batch = ppo.environments * ppo.rollout_length

    def learn(rollouts: bool) -> Callable[[], int]:
        state: dict[str, Any] = {
            "worlds": jax.tree.map(jnp.copy, start),
            "optimiser": learner.fresh_optimiser(agents),
        }
        _, state["seen"] = learner.collect(agents, jax.tree.map(jnp.copy, start), keys)

        def work() -> int:
            if rollouts:
                state["worlds"], state["seen"] = learner.collect(agents, state["worlds"], keys)
            _, state["optimiser"], report = learner.update(
                agents, state["optimiser"], state["seen"], weights, keys
            )
            report.kl.block_until_ready()
            return batch

        return work

    n = config.search.branches * config.search.episodes
    measured = rates(
        {
            "mujoco.batch": bare(task, ppo.environments, steps, threads),
            "update": learn(rollouts=False),
            "vppo": learn(rollouts=True),
            "mujoco.batch for judging": bare(task, n, steps, threads),
            "evaluation": judging(task, learner, config.search.branches, config.search.episodes),
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
            measured["evaluation"] / measured["mujoco.batch for judging"],
            f"mujoco.batch with {n} bodies",
        ),
    ]


def judging(task: Task, learner: VPPO, policies: int, episodes: int) -> Callable[[], int]:
    """Many policies judged at once, with much action noise."""
    many: Policy = jax.vmap(learner.init_policy)(jax.random.split(jax.random.key(2), policies))
    run = jax.jit(lambda key: judge(task, learner.actor, many, key, episodes, sample=True).steps.sum())
    return lambda: int(run(jax.random.key(3)))


def endless(name: str, steps: int, threads: int | None) -> Task:
    """A task whose episodes end at the time limit only."""

    def never(self: Task, body: Bodies) -> Array:  # noqa: ARG001
        return jnp.zeros((), jnp.bool_)

    make_task(name)  # an unknown name is told here
    kind: Any = type(f"Endless{name}", (TASKS[name],), {"terminated": never})
    task: Task = kind(episode_length=steps, threads=threads)
    return task


def bench_iteration(name: str, settings: str, iterations: int, threads: int | None) -> list[Result]:
    """What an iteration of PPGA spends on anything but simulating and learning, in a real run with its
    files.
    """
    config, _ = preset(settings, name)
    config = replace(config, simulation=replace(config.simulation, threads=threads))
    times: list[dict[str, float]] = []

    def watch(iteration: Iteration) -> None:
        times.append(iteration.record["times"])

    with tempfile.TemporaryDirectory() as folder:
        budget = Budget(iterations=iterations + 1)
        train(name, config, budget=budget, output=Path(folder) / "run", callbacks=[watch])
    after_compiling = times[1:]
    shares = [1 - sum(spent.get(phase, 0.0) for phase in WORK) / spent["total"] for spent in after_compiling]
    seconds = statistics.median(spent["total"] for spent in after_compiling)
    parts = [
        Result(f"{phase}/{name}", statistics.median(spent.get(phase, 0.0) for spent in after_compiling), "s")
        for phase in WORK
    ]
    return [
        Result(f"iteration/{name}", seconds, "s"),
        *parts,
        Result(f"overhead/{name}", statistics.fmean(shares), "share of an iteration"),
    ]
