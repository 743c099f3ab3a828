"""How fast the engines step, called as training calls them, beside the bare library."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mujoco.batch import Batch

from ppga.bench.harness import Result, rates
from ppga.machine import installed, visible_cores
from ppga.physics import Array, Bodies
from ppga.physics.mujoco_engine import silent
from ppga.policies import apply_mlp, init_mlp
from ppga.tasks import Environment, Task, TaskState, from_gymnasium, robot

RUNNING, ALL = 16, 256
"""How many environments of how many run when the cost of finished ones is measured."""
BRAX_BACKENDS = ("spring", "generalized")
GYMNASIUM = {
    "halfcheetah": "HalfCheetah-v5", "walker2d": "Walker2d-v5", "hopper": "Hopper-v5", "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
}  # fmt: skip
"""Robots that Gymnasium and Brax have too."""
GYMNASIUM_STEPS = 20
"""Steps in a timed call of Gymnasium, at least; fewer would tell of the call more than of the steps."""


def bench_physics(
    name: str, environments: int, steps: int, rounds: int, threads: int | None = None, compare: bool = False
) -> list[Result]:
    """All figures of one task; those of other people's simulators only for comparison, they take minutes."""
    task = robot(name, threads=threads)
    candidates = {
        "mujoco.batch": bare(task, environments, steps, threads),
        "physics": through_jax(task, environments, steps),
        f"{RUNNING} alone": partly_finished(task, RUNNING, RUNNING, 4 * steps),
        "finished": partly_finished(task, ALL, RUNNING, 4 * steps),
    }
    if compare:
        candidates |= others(name, environments, max(1, steps // 25))  # they are slower on a CPU
    measured = rates(candidates, rounds)

    def result(what: str, against: str | None = None, called: str | None = None) -> Result:
        ratio = measured[what] / measured[against] if against else None
        return Result(f"{what}/{name}", measured[what], "steps/s", ratio, called or against)

    results = [
        result("mujoco.batch"),
        result("physics", "mujoco.batch"),
        result("finished", f"{RUNNING} alone", f"{RUNNING} alone, not of {ALL}"),
    ]
    strange = [what for what in measured if what == "mjx" or what.startswith(("brax", "gymnasium"))]
    return results + [result(what, "physics", f"physics/{name}") for what in strange]


def others(name: str, environments: int, steps: int) -> dict[str, Callable[[], int]]:
    """Other simulators that are installed and have the robot."""
    found = {}
    if installed("mujoco.mjx"):
        found["mjx"] = through_jax(robot(name, physics="mjx"), environments, steps)
    if name in GYMNASIUM:
        task = from_gymnasium(
            GYMNASIUM[name], lambda seen, *_: np.zeros((len(seen), 1)), measure_names=["none"]
        )
        found["gymnasium"] = through_jax(task, environments, max(GYMNASIUM_STEPS, steps), onwards=True)
        if installed("brax"):
            for backend in BRAX_BACKENDS:
                found[f"brax-{backend}"] = brax(name, backend, environments, steps)
    return found


def bare(
    task: Task,
    n: int,
    steps: int,
    threads: int | None = None,
    actions: Array | None = None,
    start: TaskState | None = None,
) -> Callable[[], int]:
    """`mujoco.batch` alone, under random controls, or those of given actions (steps, n, a) from a given
    start.
    """
    batch = Batch(task.model, n, threads or visible_cores())
    if start is None:
        start = jax.jit(lambda key: task.reset(key, n))(jax.random.key(0))
    initial = batch.state.copy()
    qpos, qvel, ctrl = batch.bind("qpos"), batch.bind("qvel"), batch.bind("ctrl")
    if actions is None:
        draws = np.random.default_rng(0).uniform(-1, 1, (steps, n, task.action_size))
        actions = jnp.asarray(draws, jnp.float32)
    controls = np.asarray(jax.vmap(task.controls)(actions))

    def work() -> int:
        batch.state[:] = initial
        qpos[:], qvel[:] = start.bodies.qpos, start.bodies.qvel
        for now in controls:
            ctrl[:] = now
            batch.step(nstep=task.substeps)
        return n * steps

    return work


def through_jax(task: Environment, n: int, steps: int, onwards: bool = False) -> Callable[[], int]:
    """The whole task from a jitted scan, a policy in the loop.

    The policy's actions are overlaid with noise as large as their range, and no episode ends, so that the
    bodies go through the same kind of motion as under random controls: only the way of calling differs.

    Args:
        task: what is stepped.
        n: environments.
        steps: in a call.
        onwards: every call goes on where the last one ended, and new episodes begin where some end; for
            environments that cannot be put back to where they were.
    """
    layers = init_mlp(jax.random.key(1), (task.observation_size, 128, 128, task.action_size), 0.01)

    def step(state: TaskState, key: Any) -> tuple[TaskState, None]:
        noise = jax.random.uniform(key, (n, task.action_size), minval=-1.0)
        after = task.step(state, apply_mlp(layers, state.observation) + noise)
        if onwards:
            return task.restart(after, key), None
        return replace(after, terminated=jnp.zeros(n, bool), truncated=jnp.zeros(n, bool)), None

    state = jax.jit(lambda key: task.reset(key, n))(jax.random.key(0))
    keys = jax.random.split(jax.random.key(2), steps)
    scan = jax.jit(lambda start: jax.lax.scan(step, start, keys)[0])

    def work() -> int:
        nonlocal state
        after: TaskState = scan(state)
        after.observation.block_until_ready()
        if onwards:
            state = after
        return n * steps

    return work


def partly_finished(task: Task, n: int, running: int, steps: int) -> Callable[[], int]:
    """The engine alone, where only the first `running` of n bodies have not finished."""
    active = jnp.arange(n) < running
    actions = jax.random.uniform(jax.random.key(2), (steps, 1, task.action_size), minval=-1.0)

    def step(bodies: Bodies, action: Array) -> tuple[Bodies, None]:
        ctrl = jnp.broadcast_to(task.controls(action), (n, task.action_size))
        return task.physics.step(bodies, ctrl, active), None

    start = jax.jit(lambda key: task.reset(key, n))(jax.random.key(0)).bodies
    scan = jax.jit(lambda start: jax.lax.scan(step, start, actions)[0].qpos)

    def work() -> int:
        scan(start).block_until_ready()
        return running * steps

    return work


def brax(name: str, backend: str, n: int, steps: int) -> Callable[[], int]:
    """Brax' robot of the same name, under random actions."""
    from brax import envs

    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is no longer maintained
        env = envs.create(name, backend=backend, batch_size=n, auto_reset=False, episode_length=steps + 1)

    def step(state: Any, key: Any) -> tuple[Any, None]:
        return env.step(state, jax.random.uniform(key, (n, env.action_size), minval=-1.0)), None

    start = jax.jit(env.reset)(jax.random.key(0))
    keys = jax.random.split(jax.random.key(2), steps)
    scan = jax.jit(lambda start: jax.lax.scan(step, start, keys)[0].obs)

    def work() -> int:
        scan(start).block_until_ready()
        return n * steps

    return work
