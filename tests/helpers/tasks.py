"""Tasks that several tests share."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from ppga.tasks import TASKS, Task, robot, sample

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
ARM, QUADRUPED = f"{EXAMPLES / 'arm.py'}:Arm", f"{EXAMPLES / 'quadruped.py'}:Quadruped"
"""Arguments that name the tasks of the examples."""
SLIDER = """
import jax.numpy as jnp
import ppga

class Slider(ppga.Task):
    name = "slider"
    substeps = 2
    usual_length = 20
    measure_names = ("place",)
    mjcf = '''<mujoco><worldbody><body><joint name="x" type="slide" axis="1 0 0"/>
    <geom name="box" size="0.1"/></body></worldbody>
    <actuator><motor joint="x" ctrlrange="-1 1"/></actuator></mujoco>'''

    def initial(self, key):
        return jnp.zeros(1), jnp.zeros(1)

    def observe(self, body):
        return jnp.concatenate([body.qpos, body.qvel])

    def reward(self, body, ctrl):
        return -jnp.square(ctrl).sum()

    def proxies(self, body):
        return body.qpos
"""
"""Code of a file with a small task."""
NAMES = ("halfcheetah", "walker2d", "hopper", "ant", "humanoid-full")


@cache
def shared_task(name: str, **options: Any) -> Task:
    return robot(name, **options)


@contextmanager
def registry_restored() -> Iterator[None]:
    """A context after which only those tasks are registered that were before."""
    registered = dict(TASKS)
    try:
        yield
    finally:
        TASKS.clear()
        TASKS.update(registered)
        sample.cache_clear()
