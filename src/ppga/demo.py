"""Something to look at: train an archive for a few minutes, and see how different its elites walk."""

from dataclasses import replace
from datetime import datetime
from pathlib import Path

import jax
import numpy as np
from rich.console import Console

from ppga.archives import Archive
from ppga.physics import Array
from ppga.policies import Network, Policy
from ppga.rollouts import record
from ppga.runs import Budget, Outcome, preset, train
from ppga.runs.display import Display
from ppga.tasks import Task, make_task

STRIP = 60
"""Control steps of a gait diagram."""
SETTLED = 100
"""Control steps before it, in which the robot finds its stride."""


def run(task: str, minutes: float, seed: int, display: Display) -> Outcome:
    """Train with the laptop preset."""
    config, _ = preset("laptop", task)
    output = Path("runs") / f"demo-{task}-{datetime.now():%Y%m%d-%H%M%S}"
    return train(
        task, replace(config, seed=seed), budget=Budget(minutes=minutes), output=output, display=display
    )


def show_gaits(archive: Archive, console: Console) -> None:
    """Gait diagrams of the best elite, and of those nearest to where each foot touches least."""
    task = make_task(archive.description["task"]["name"])
    names = archive.measure_names
    wanted = {"the best": archive.best()}
    for number, name in enumerate(names):
        corner = [0.1 if number == at else 0.6 for at in range(len(names))]
        wanted[f"little {name}"] = archive.nearest(corner)
    console.print(f"Which foot touches the floor, {STRIP} control steps ({STRIP * task.control_dt:g} s):\n")
    for title, cell in wanted.items():
        elite = archive.elite(cell)
        measures = ", ".join(f"{value:.0%}" for value in elite["measures"])
        console.print(f"  {title}: reward {elite['objective']:,.0f}, feet down {measures}", highlight=False)
        console.print(gait(task, archive, cell), highlight=False)


def gait(task: Task, archive: Archive, cell: int) -> str:
    """A line a foot: a block where it touches."""
    network = Network(tuple(archive.description["network"]["sizes"]))
    policy = Policy.of_elite(archive.elite(cell))

    def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
        return policy.mean_action(network, observation)

    seen = jax.jit(lambda key: record(task, act, key, 1, SETTLED + STRIP).proxies)(jax.random.key(0))
    contacts = np.asarray(seen)[0, SETTLED:]
    return "".join(
        f"  {foot:>14}  " + "".join("█" if touch else "·" for touch in contacts[:, number]) + "\n"
        for number, foot in enumerate(task.measure_names)
    )
