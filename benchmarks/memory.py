"""Memory of full archives, and of writing them to the disk."""

import tempfile
from pathlib import Path

import numpy as np

from ppga import machine
from ppga.algorithms.ppga import PPGA
from ppga.runs.build import archive_bytes, make_algorithm
from ppga.runs.checkpoints import Checkpoint, save
from ppga.runs.results import to_archive

from benchmarks.harness import Result
from benchmarks.settings import ppga_config

BATCH = 500
"""Policies that are added at once."""
ENVIRONMENTS = 30
"""Environments of the learner, which do not matter here."""


def bench_memory(task: str, preset: str, shape: tuple[int, ...] | None) -> list[Result]:
    """Fill every cell of the archives of a preset with random policies, and write them."""
    config = ppga_config(preset, task).replace(**{"ppo.environments": ENVIRONMENTS})
    if shape is not None:
        config = config.replace(**{"archive.shape": shape})
    algorithm = make_algorithm(task, config)
    assert isinstance(algorithm, PPGA)
    algorithm.start()
    before = machine.used_memory()
    fill(algorithm)
    full = machine.used_memory()
    with tempfile.TemporaryDirectory() as folder:
        to_archive(algorithm).save(Path(folder) / "archive.safetensors")
        save(Path(folder) / "checkpoints", Checkpoint(1, 0.0, algorithm.state()))
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    peak = machine.peak_memory_gib() or float("nan")
    cells = algorithm.elites.cells
    estimate = archive_bytes(algorithm.problem, config, cells)
    added = full - before
    return [
        Result(f"elites/{task}", len(algorithm.elites), f"of {cells:,} cells"),
        Result(f"archives/{task}", added / 2**30, "GiB", added / estimate, "the estimate"),
        Result(f"process/{task}", full / 2**30, "GiB"),
        Result(f"peak, with a checkpoint/{task}", peak, "GiB"),
        Result(f"on the disk, one checkpoint and the archive/{task}", written / 2**30, "GiB"),
    ]


def fill(algorithm: PPGA) -> None:
    """Add a random policy to every cell."""
    problem, elites = algorithm.problem, algorithm.elites
    draws = np.random.default_rng(0)
    places = np.stack(np.unravel_index(np.arange(elites.cells), elites.shape), axis=1)
    low, high = np.array(elites.ranges).T
    centers = (low + (places + 0.5) / elites.shape * (high - low)).astype(np.float32)
    shared = problem.stored_fields(algorithm.problem_state)
    for first in range(0, elites.cells, BATCH):
        measures = centers[first : first + BATCH]
        n = len(measures)
        solutions = draws.standard_normal((n, problem.solution_size), np.float32)
        objective = np.full(n, 1e4, np.float32)
        fields = {name: np.repeat(values[None], n, axis=0) for name, values in shared.items()}
        algorithm.soft.add(solutions, objective, measures, fields)
        elites.add(solutions, objective, measures, **fields)
