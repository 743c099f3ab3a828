"""Control steps/s of the engines, called as in training, beside the bare library and other simulators."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from mujoco.batch import Batch

from ppga.machine import installed, visible_cores
from ppga.physics import Array, Bodies
from ppga.physics.mujoco_engine import silent
from ppga.policies.network import apply_mlp
from ppga.policies.policy import init_mlp
from ppga.tasks import Environment, Task, TaskState, from_gymnasium, robot

from benchmarks.harness import Result, rates

ACTIVE, ALL = 16, 256
"""Active environments, and all environments, when the cost of finished ones is measured."""
BRAX_BACKENDS = ("spring", "generalized")
GYMNASIUM = {
    "halfcheetah": "HalfCheetah-v5", "walker2d": "Walker2d-v5", "hopper": "Hopper-v5", "ant": "Ant-v5",
    "humanoid": "Humanoid-v5",
}  # fmt: skip
"""Tasks whose robot Gymnasium and Brax have too."""
GYMNASIUM_STEPS = 20
"""Least number of steps in a timed call of Gymnasium; fewer would measure the call more than the steps."""


def bench_physics(
    task: str, environments: int, steps: int, rounds: int, threads: int | None = None, compare: bool = False
) -> list[Result]:
    """All figures of a task.

    Args:
        task: name of the task.
        environments: number of environments that run at once.
        steps: control steps in one timed call.
        rounds: how often each figure is timed.
        threads: threads of MuJoCo; all visible cores by default.
        compare: also measure other simulators, which takes minutes.
    """
    simulation = robot(task, threads=threads)
    candidates = {
        "mujoco.batch": bare_batch(simulation, environments, steps, threads),
        "physics": through_jax(simulation, environments, steps),
        f"{ACTIVE} alone": partly_finished(simulation, ACTIVE, ACTIVE, 4 * steps),
        "finished": partly_finished(simulation, ALL, ACTIVE, 4 * steps),
    }
    fewer_steps = max(1, steps // 25)  # the other simulators are slower on CPUs
    simulators = other_simulators(task, environments, fewer_steps) if compare else {}
    measured = rates({**candidates, **simulators}, rounds)

    def result(name: str, reference: str | None = None, against: str | None = None) -> Result:
        ratio = measured[name] / measured[reference] if reference else None
        return Result(f"{name}/{task}", measured[name], "steps/s", ratio, against or reference)

    return [
        result("mujoco.batch"),
        result("physics", "mujoco.batch"),
        result("finished", f"{ACTIVE} alone", f"{ACTIVE} alone, not of {ALL}"),
        *(result(name, "physics", f"physics/{task}") for name in simulators),
    ]


def other_simulators(task: str, environments: int, steps: int) -> dict[str, Callable[[], int]]:
    """Installed simulators that have the robot of a task: name -> work."""
    works = {}
    if installed("mujoco.mjx"):
        works["mjx"] = through_jax(robot(task, physics="mjx"), environments, steps)
    if task in GYMNASIUM:
        gymnasium = from_gymnasium(
            GYMNASIUM[task], lambda observation, *_: np.zeros((len(observation), 1)), measure_names=["none"]
        )
        steps_of_gymnasium = max(GYMNASIUM_STEPS, steps)
        works["gymnasium"] = through_jax(gymnasium, environments, steps_of_gymnasium, continued=True)
        if installed("brax"):
            for backend in BRAX_BACKENDS:
                works[f"brax-{backend}"] = brax(task, backend, environments, steps)
    return works


def bare_batch(
    task: Task,
    n: int,
    steps: int,
    threads: int | None = None,
    actions: Array | None = None,
    start: TaskState | None = None,
) -> Callable[[], int]:
    """`mujoco.batch` alone.

    Args:
        task: has the model.
        n: number of environments.
        steps: control steps in one call.
        threads: threads of MuJoCo; all visible cores by default.
        actions: (steps, n, a); random ones by default.
        start: initial state of the n environments; a random one by default.
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
        for values in controls:
            ctrl[:] = values
            batch.step(nstep=task.substeps)
        return n * steps

    return work


def through_jax(task: Environment, n: int, steps: int, continued: bool = False) -> Callable[[], int]:
    """A task with observations and rewards in a jitted scan, with a policy in the loop.

    Noise as large as the range of the actions is added to them, and no episode ends. So the bodies move as
    under random controls, and only the way of calling the simulator differs.

    Args:
        task: the task.
        n: number of environments.
        steps: control steps in one call.
        continued: every call continues from the last one, and finished episodes restart. This is for
            environments whose state cannot be set.
    """
    layers = init_mlp(jax.random.key(1), (task.observation_size, 128, 128, task.action_size), 0.01)

    def step(state: TaskState, key: Any) -> tuple[TaskState, None]:
        noise = jax.random.uniform(key, (n, task.action_size), minval=-1.0)
        after = task.step(state, apply_mlp(layers, state.observation) + noise)
        if continued:
            return task.restart(after, key), None
        return replace(after, terminated=jnp.zeros(n, bool), truncated=jnp.zeros(n, bool)), None

    state = jax.jit(lambda key: task.reset(key, n))(jax.random.key(0))
    state.observation.block_until_ready()
    keys = jax.random.split(jax.random.key(2), steps)
    scan = jax.jit(lambda start: jax.lax.scan(step, start, keys)[0])

    def work() -> int:
        nonlocal state
        after: TaskState = scan(state)
        after.observation.block_until_ready()
        if continued:
            state = after
        return n * steps

    return work


def partly_finished(task: Task, n: int, active: int, steps: int) -> Callable[[], int]:
    """The engine alone, where all but the first `active` of n bodies have finished."""
    mask = jnp.arange(n) < active
    actions = jax.random.uniform(jax.random.key(2), (steps, 1, task.action_size), minval=-1.0)

    def step(bodies: Bodies, action: Array) -> tuple[Bodies, None]:
        ctrl = jnp.broadcast_to(task.controls(action), (n, task.action_size))
        return task.physics.step(bodies, ctrl, mask), None

    start = jax.jit(lambda key: task.reset(key, n))(jax.random.key(0)).bodies
    scan = jax.jit(lambda start: jax.lax.scan(step, start, actions)[0].qpos)

    def work() -> int:
        scan(start).block_until_ready()
        return active * steps

    return work


def brax(task: str, backend: str, n: int, steps: int) -> Callable[[], int]:
    """Brax' robot of the same name, under random actions."""
    from brax import envs

    with silent(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Brax says that it is no longer maintained
        env = envs.create(task, backend=backend, batch_size=n, auto_reset=False, episode_length=steps + 1)

    def step(state: Any, key: Any) -> tuple[Any, None]:
        return env.step(state, jax.random.uniform(key, (n, env.action_size), minval=-1.0)), None

    start = jax.jit(env.reset)(jax.random.key(0))
    keys = jax.random.split(jax.random.key(2), steps)
    scan = jax.jit(lambda start: jax.lax.scan(step, start, keys)[0].obs)

    def work() -> int:
        scan(start).block_until_ready()
        return n * steps

    return work
