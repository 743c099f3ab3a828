"""Something to look at: a random and a scripted policy on the halfcheetah."""

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

from ppga.physics import Array
from ppga.rollouts import Act, Scores, evaluate, record
from ppga.tasks import Task, make_task

# An open-loop gait: every joint swings as a sine of the clock; found by a minute of cross-entropy search
PERIOD = 4.96  # control steps
PHASE = jnp.array([-1.52, 0.45, -1.64, 0.74, 0.96, -0.26])
AMPLITUDE = jnp.array([0.66, 0.96, 0.93, 0.66, 1.21, 1.1])
STRIP = 50  # control steps of the gait diagram


def scripted(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
    """Actions (n, 6) that depend on the clock only."""
    return AMPLITUDE * jnp.sin(2 * jnp.pi * steps[:, None] / PERIOD + PHASE)


def random(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
    """Actions (n, 6) drawn uniformly."""
    return jax.random.uniform(key, (len(steps), len(PHASE)), minval=-1.0)


def run(episodes: int, seed: int, threads: int | None, console: Console) -> None:
    """Play both policies; print a table and a gait diagram of each."""
    task = make_task("halfcheetah", threads=threads)
    policies: dict[str, Act] = {"random": random, "scripted": scripted}
    table = Table(title=f"{task.name}: mean and spread of {episodes} episodes")
    for heading in ("policy", "reward", "length", *(f"{foot} on floor" for foot in task.measure_names)):
        table.add_column(heading, justify="left" if heading == "policy" else "right")
    strips = []
    for name, act in policies.items():
        with console.status(f"{name} policy: {episodes} episodes of {task.episode_length} steps"):
            scores = jax.jit(lambda key, act=act: evaluate(task, act, key, episodes))(jax.random.key(seed))
            table.add_row(name, *_cells(scores))
            strips.append(_gait(task, name, act, seed))
    console.print(table)
    console.print(f"\nWhich foot touches the floor, {STRIP} control steps ({STRIP * task.control_dt:g} s):\n")
    for strip in strips:
        console.print(strip)


def _cells(scores: Scores) -> list[str]:
    def spread(values: Array, form: str) -> str:
        return f"{np.mean(values):{form}} ± {np.std(values):{form}}"

    feet = [spread(scores.measures[:, i], ".0%") for i in range(scores.measures.shape[1])]
    return [spread(scores.objective, ",.0f"), spread(scores.steps, ",.0f"), *feet]


def _gait(task: Task, name: str, act: Act, seed: int) -> str:
    """A line a foot: a block where it touches."""
    steps = 2 * STRIP  # the second half, once the robot has found its stride
    contacts = np.asarray(
        jax.jit(lambda key: record(task, act, key, 1, steps))(jax.random.key(seed)).proxies
    )[0]
    lines = [
        f"  {name:>8}  {foot:>10}  " + "".join("█" if touch else "·" for touch in contacts[STRIP:, i])
        for i, foot in enumerate(task.measure_names)
    ]
    return "\n".join(lines) + "\n"
