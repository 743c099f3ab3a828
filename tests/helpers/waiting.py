"""A task whose steps wait inside compiled code while the folder $PPGA_WAIT contains a file `wait`."""

import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from ppga.physics import Array, Bodies
from ppga.storage import NumpyArray

from helpers.slider import Slider


def wait(values: NumpyArray) -> NumpyArray:
    folder = Path(os.environ["PPGA_WAIT"])
    while (folder / "wait").exists():
        (folder / "waiting").touch()
        time.sleep(0.02)
    return np.asarray(values)


class Waiting(Slider):
    name = "waiting"

    def reward(self, body: Bodies, ctrl: Array) -> Array:
        reward = super().reward(body, ctrl)
        return jnp.asarray(jax.pure_callback(wait, reward, reward, vmap_method="broadcast_all"))
