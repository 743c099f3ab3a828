"""How much memory full archives take, and writing them down."""

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from ppga import machine
from ppga.bench.harness import Result
from ppga.runs import preset
from ppga.runs.checkpoints import Checkpoint, save
from ppga.runs.estimate import archive_bytes
from ppga.runs.loop import make_algorithm, to_archive

AT_ONCE = 500
"""Policies that are offered at once."""


def bench_memory(name: str, settings: str, shape: tuple[int, ...] | None) -> list[Result]:
    """Fill the archives of a preset to the last cell with policies, and write them down."""
    config, _ = preset(settings, name)
    if shape is not None:
        config = replace(config, archive=replace(config.archive, shape=shape))
    config = replace(config, ppo=replace(config.ppo, environments=30))  # they do not matter here
    algorithm = make_algorithm(name, config)
    problem, archives = algorithm.problem, algorithm.archives
    algorithm.start()
    before = machine.used_memory()
    draws = np.random.default_rng(0)
    cells = int(np.prod(archives.shape))
    corners = np.stack(np.unravel_index(np.arange(cells), archives.shape), axis=1) + 0.5
    low, high = np.array(archives.ranges).T
    measures = (low + corners / archives.shape * (high - low)).astype(np.float32)
    kept = {field: values[:1] for field, values in problem.kept(algorithm.search).items()}
    for first in range(0, cells, AT_ONCE):
        some = measures[first : first + AT_ONCE]
        solutions = draws.standard_normal((len(some), problem.solution_size), np.float32)
        fields = {field: np.repeat(values, len(some), axis=0) for field, values in kept.items()}
        objective = np.full(len(some), 1e4, np.float32)
        archives.guide(solutions, objective, some, **fields)
        archives.keep(solutions, objective, some, 1, **fields)
    full = machine.used_memory()
    with tempfile.TemporaryDirectory() as place:
        to_archive(algorithm).save(Path(place) / "archive.safetensors")
        save(Path(place) / "checkpoints", Checkpoint(1, 0.0, algorithm.state()))
        written = sum(file.stat().st_size for file in Path(place).rglob("*") if file.is_file())
    peak = machine.peak_memory_gib() or float("nan")
    expected = archive_bytes(problem, cells, algorithm.soft)
    return [
        Result(f"elites/{name}", len(archives.result), f"of {cells:,} cells"),
        Result(
            f"archives/{name}", (full - before) / 2**30, "GiB", (full - before) / expected, "as estimated"
        ),
        Result(f"process/{name}", full / 2**30, "GiB"),
        Result(f"peak, with a checkpoint/{name}", peak, "GiB"),
        Result(f"on the disk, one checkpoint and the archive/{name}", written / 2**30, "GiB"),
    ]
