"""`ppga doctor`: what this machine has, whether the engines agree, and how fast they are."""

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from rich.console import Console
from rich.table import Table

from ppga import machine
from ppga.physics import MujocoPhysics
from ppga.physics.host import HostArray
from ppga.tasks import Task, find, robot

PARITY_STEPS, PARITY_BODIES = 5, 12
# MJX computes in float32: after five control steps joints agree to a tenth of this, relative where above 1
MJX_TOLERANCE = 1e-3


def run(name: str, environments: int, threads: int | None, console: Console) -> bool:
    """Print the report.

    Args:
        name: task to check and time with: its name, or FILE.py:NAME.
        environments: number of environments that are timed at once.
        threads: threads of the mujoco engine; all visible cores by default.
        console: where the report is printed.

    Returns:
        Whether every check passed.
    """
    name = find(name)
    task = robot(name, threads=threads)
    facts = machine.describe()
    console.print(_facts_table(facts))
    checks = Table(title=f"checks ({name})")
    for heading in ("check", "result"):
        checks.add_column(heading)
    speeds = Table(title=f"speed ({name}, {environments} environments)")
    for heading in ("engine", "device", "control steps/s", "memory"):
        speeds.add_column(heading, justify="left" if heading in ("engine", "device") else "right")

    with console.status("checking the mujoco engine"):
        exact = matches_plain_loop(task)
        checks.add_row("mujoco engine against a plain mj_step loop", "identical" if exact else "DIFFERS")
        reference, speed = play(task, environments)
        speeds.add_row("mujoco", f"cpu, {_threads(task)} threads", f"{speed:,.0f}", _process_memory())

    agrees = True
    if facts["extras"]["mjx"]:
        for device in jax.local_devices():
            device_name = f"{device.platform}:{device.id}"
            compared = f"mjx on {device_name} against mujoco, {PARITY_STEPS} control steps"
            status = console.status(f"checking mjx on {device_name} (compiling takes a while)")
            try:
                with status, jax.default_device(device):
                    joints, speed = play(robot(name, physics="mjx"), environments)
            except Exception as failure:  # any error belongs in the report
                checks.add_row(compared, f"FAILED: {type(failure).__name__}: {str(failure)[:300]}")
                agrees = False
                continue
            expected = reference[:PARITY_BODIES]
            relative = np.abs(joints[:PARITY_BODIES] - expected) / np.maximum(1.0, np.abs(expected))
            error = float(np.max(relative))
            agrees &= error <= MJX_TOLERANCE
            verdict = "agree" if error <= MJX_TOLERANCE else "DIFFER"
            checks.add_row(
                compared,
                f"{verdict}: {error:.1e} (at most {MJX_TOLERANCE:g})",
            )
            speeds.add_row("mjx", device_name, f"{speed:,.0f}", _device_memory(device))
    else:
        checks.add_row("mjx against mujoco", "skipped: pip install 'ppga[mjx]'")
    console.print(checks)
    console.print(speeds)
    return exact and agrees


def play(task: Task, n: int) -> tuple[HostArray, float]:
    """Joint positions and velocities (n, nq + nv) after PARITY_STEPS control steps, and control steps/s."""
    start = jax.jit(lambda key: task.reset(key, n))(jax.random.key(0))
    step = jax.jit(task.step)
    actions = jax.random.uniform(jax.random.key(1), (PARITY_STEPS, n, task.action_size), minval=-1.0)

    def joints() -> HostArray:
        state = start
        for action in actions:
            state = step(state, action)
        return np.concatenate([state.bodies.qpos, state.bodies.qvel], axis=1)

    reached = joints()  # compiles
    return reached, n * PARITY_STEPS / median_seconds(joints)


def median_seconds(function: Callable[[], object], rounds: int = 3) -> float:
    """Median duration of a function's calls."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def matches_plain_loop(task: Task, steps: int = 20) -> bool:
    """Whether the mujoco engine is bit-identical to one MjData that is stepped by `mj_step`."""
    physics = task.physics
    assert isinstance(physics, MujocoPhysics)
    state = task.reset(jax.random.key(0), 3)
    actions = jax.random.uniform(jax.random.key(1), (steps, 3, task.action_size), minval=-1.0)
    data = mujoco.MjData(task.model)
    data.qpos, data.qvel = np.asarray(state.bodies.qpos[1]), np.asarray(state.bodies.qvel[1])
    mujoco.mj_forward(task.model, data)
    step = jax.jit(task.step)
    for action in actions:
        state = replace(step(state, action), terminated=jnp.zeros(3, bool))
        data.ctrl = np.asarray(task.controls(action)[1])
        for _ in range(task.substeps):
            mujoco.mj_step(task.model, data)
    engine, plain = physics.unpack(state.bodies.state["rows"]), physics.unpack(physics.pack([data]))
    return bool((engine[1] == plain[0]).all())


def _facts_table(facts: dict[str, Any]) -> Table:
    table = Table(title="this machine", show_header=False)
    extras = [
        f"{extra}: {'installed' if present else f'''not installed (pip install 'ppga[{extra}]')'''}"
        for extra, present in facts["extras"].items()
    ]
    versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    cores, usable = facts["cores"], facts["usable_cores"]
    quota = f", CPU quota of {usable}" if usable < cores else ""
    for label, value in (
        ("processor", f"{facts['cpu']}, {cores} cores visible{quota}"),
        ("memory", f"{facts['memory_gib']} GiB"),
        ("system", f"{facts['system']}, Python {facts['python']}"),
        ("JAX devices", ", ".join(facts["devices"])),
        ("versions", versions),
        ("extras", ", ".join(extras)),
    ):
        table.add_row(label, value)
    return table


def _threads(task: Task) -> int:
    assert isinstance(task.physics, MujocoPhysics)
    return task.physics.threads


def _process_memory() -> str:
    peak = machine.peak_memory_gib()
    return "unknown" if peak is None else f"{peak} GiB (process, peak)"


def _device_memory(device: Any) -> str:
    stats = device.memory_stats() or {}
    if "peak_bytes_in_use" not in stats:
        return _process_memory()
    return f"{stats['peak_bytes_in_use'] / 2**30:.2f} GiB (device, peak)"
