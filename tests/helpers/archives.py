"""A small archive for tests."""

from typing import Any

import numpy as np

from ppga.archives import Archive
from ppga.policies.network import Network
from ppga.policies.normalizer import CLIP

CONTROL_RANGE = [[-0.4, 0.4], [0.0, 3.0], [-2.0, -1.0]]


def archive(activation: Any = "tanh", head: Any = "linear", cells: tuple[int, ...] = (0, 3, 8)) -> Archive:
    """Random policies of a robot with five observations and three actions, on a grid of 3 x 3 cells."""
    rng = np.random.default_rng(0)
    network = Network((5, 7, 6, 6 if head == "gaussian" else 3), activation, head)
    n = len(cells)
    elites = {
        "index": np.array(cells, np.int32),
        "solution": rng.normal(size=(n, network.parameters)).astype(np.float32),
        "objective": np.arange(n, dtype=np.float32),
        "measures": rng.random((n, 2)).astype(np.float32),
        "log_std": np.zeros((n, 3), np.float32),
        "observation_mean": rng.normal(size=(n, 5)).astype(np.float32),
        "observation_variance": rng.uniform(0.1, 9, (n, 5)).astype(np.float32),
        "observation_count": np.ones(n, np.float32),
    }
    description = {
        "task": {
            "name": "mine", "physics": "mujoco", "episode_length": 100, "integrator": "fast",
            "control_range": CONTROL_RANGE, "control_dt": 0.02,
        },
        "network": {**network.describe(), "observation_clip": CLIP},
        "shape": [3, 3], "ranges": [[0.0, 1.0]] * 2, "measure_names": ["a", "b"], "qd_offset": 0.0,
    }  # fmt: skip
    return Archive(description, elites)
