"""The archive of a run, and runs that start from the archive of another one."""

from typing import Any

import numpy as np

from ppga.algorithms import Algorithm
from ppga.archives import Archive
from ppga.errors import InputError
from ppga.policies.network import Network

COMPARABLE = ("episode_length", "integrator", "clip", "dimensions", "measure_names")
"""Properties of a task without which scores are not comparable; both engines give the same scores."""


def to_archive(algorithm: Algorithm) -> Archive:
    """The elites of a run, with all that is needed to use them."""
    elites = algorithm.elites.elites()
    elites["episodes"] = algorithm.elites.episodes[elites["index"]].astype(np.int32)
    return Archive(describe(algorithm), elites, algorithm.elites.centroids)


def objectives_only(algorithm: Algorithm) -> Archive:
    """The archive without its policies, for pictures."""
    elites = algorithm.elites
    cells = {"index": elites.occupied.astype(np.int32), "objective": elites.objectives}
    return Archive(describe(algorithm), cells, elites.centroids)


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """Header of the archive's file."""
    elites, problem, config = algorithm.elites, algorithm.problem, algorithm.config
    return {
        **problem.describe(),
        "kind": "grid" if elites.centroids is None else "cvt",
        "shape": list(elites.shape),
        "ranges": [list(bounds) for bounds in elites.ranges],
        "measure_names": list(problem.measure_names),
        "qd_offset": elites.qd_offset,
        "algorithm": config.algorithm,
        "actions": getattr(config.evaluation, "actions", "mean"),
        "seed": config.seed,
        **algorithm.counters(),
    }


def check_initial_archive(archive: Archive, algorithm: Algorithm) -> None:
    """Raise an InputError if a run cannot start from these elites."""
    theirs, ours = archive.description, algorithm.problem.describe()
    if theirs["task"]["name"] != ours["task"]["name"]:
        raise InputError(
            f"the initial archive is of {theirs['task']['name']}, and this run of {ours['task']['name']}."
        )
    for name, value in ours["task"].items():  # elites keep their scores
        missing = None if name == "clip" else value  # archives of earlier versions were not clipped
        if name in COMPARABLE and theirs["task"].get(name, missing) != value:
            raise InputError(
                f"the scores of the initial archive cannot be compared with this run's: its {name} is "
                f"{theirs['task'].get(name)!r}, and this run's {value!r}."
            )
    if not len(archive):
        raise InputError("the initial archive is empty.")
    if algorithm.config.evaluation.min_survival and archive.survivor_coverage is None:
        raise InputError(
            "--evaluation.min-survival needs to know how often the elites of the initial archive survive: "
            "start from the corrected archive that ppga evaluate writes."
        )
    shapes = {
        "solution": (algorithm.problem.solution_size,),
        "measures": (len(algorithm.problem.measure_names),),
        **algorithm.problem.fields,
    }
    networks = [part["network"] and Network.of(part["network"]) for part in (theirs, ours)]
    for name, shape in shapes.items():
        if name not in archive.elites:
            raise InputError(
                f"the initial archive has no {name!r}, which {algorithm.config.algorithm} needs."
            )
        given = archive.elites[name].shape[1:]
        if networks[0] != networks[1] or (given != shape and not name.startswith("returns_")):
            raise InputError(
                f"the initial archive's {name} does not fit: its network is {theirs['network']}, and this "
                f"run's {ours['network']}."
            )
        if given != shape:
            raise InputError(
                f"the initial archive's {name} does not fit: it has shape {given} for an elite, and this run "
                f"needs {shape}. Choose the --ppo.normalize of the run that made the archive."
            )
