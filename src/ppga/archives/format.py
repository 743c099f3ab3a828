"""Contents of an archive's file, and checks of them: see `docs/file-formats.md` for every field."""

import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ppga.archives.statistics import statistics_shapes
from ppga.errors import InputError, error_text
from ppga.limits import LARGEST, LONGEST_EPISODE, LONGEST_NAME, MOST_AXES, MOST_CELLS
from ppga.policies.network import Network
from ppga.storage import parts

if TYPE_CHECKING:
    from ppga.archives.archive import Archive

FORMAT = "ppga archive"
SINGLE_PRECISION, HALF_PRECISION = 1, 2
"""Versions of the format, by the precision of the solutions; everything else is in single precision."""
OBSOLETE_FIELDS = ("judge",)
"""Header fields of archives that earlier versions of ppga wrote."""
MAIN_FIELDS = ("index", "solution", "objective", "measures")
POLICY_FIELDS = (
    "solution", "objective", "measures", "log_std", "observation_mean", "observation_variance",
    "observation_count",
)  # fmt: skip
"""Fields of an elite without which its policy cannot run."""
LEARNER_FIELDS = ("critics", "log_temperature", "hyper")
"""Fields of an elite that only learners need, and that are as large as the policy itself."""


def check_shape(shape: Sequence[int]) -> None:
    """Raise an InputError if an archive cannot have that many cells along each measure."""
    few = len(shape) <= MOST_AXES and max(shape) <= MOST_CELLS
    if not few or math.prod(shape) > MOST_CELLS:
        raise InputError(
            f"a grid has at most {MOST_AXES} measures, an archive at most {MOST_CELLS:,} cells; got "
            f"{reprlib.repr(tuple(shape))}."
        )


def check_format(description: Any, file: Path) -> None:
    """Raise an InputError if a header (JSON) is not that of an archive that this version of ppga reads."""
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InputError(f"{file} is not an archive.")
    versions = (SINGLE_PRECISION, HALF_PRECISION)
    if description.get("version") not in versions:
        raise InputError(
            f"{file} has archive format {description.get('version')!r}; this ppga reads "
            f"{' and '.join(map(str, versions))}."
        )
    if any(name in description for name in OBSOLETE_FIELDS):
        raise InputError(f"{file} was written by an earlier version of ppga and cannot be read.")


def check_archive(archive: "Archive", file: Path) -> None:
    """Raise an InputError for fields that are missing, or that do not fit each other or the description.

    Args:
        archive: the archive.
        file: named in the message.
    """
    elites, policies = archive.elites, archive.description.get("network") is not None
    missing = {*MAIN_FIELDS, *(POLICY_FIELDS if policies else ())} - {*elites}
    if missing:
        raise InputError(f"{file} is not a complete archive: it has no {', '.join(sorted(missing))}.")
    flat = [name for name, values in elites.items() if not values.ndim]
    if flat:
        raise InputError(f"{file}: {flat[0]} has no axis of elites.")
    index = elites["index"]
    n = len(index)
    for name, values in elites.items():
        if len(values) != n:
            raise InputError(f"{file}: {name} has {len(values)} rows where index has {n}.")
    try:
        _check_description(archive)
        columns = _columns(archive)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{file}: its description is not valid ({error_text(error)}).") from None
    wrong = [
        name
        for name, (kinds, shape) in columns.items()
        if name in elites and (elites[name].dtype.kind not in kinds or elites[name].shape != (n, *shape))
    ]
    if wrong:
        raise InputError(f"{file}: {', '.join(wrong)} do not fit its description.")
    if n and not (0 <= index[0] and index[-1] < archive.cells and (index[1:] > index[:-1]).all()):
        raise InputError(f"{file}: its cells are not distinct numbers below {archive.cells}, in order.")
    for name, values in elites.items():
        if values.dtype.kind == "f" and not all((np.abs(part) <= LARGEST).all() for part in parts(values)):
            raise InputError(f"{file}: {name} has values that are not finite in single precision.")
    for name, most in (
        ("episodes", 2**31 - 1),
        ("objective_std", LARGEST),
        ("measures_std", LARGEST),
        ("length", LONGEST_EPISODE),
        ("survival", 1.0),
        ("observation_variance", LARGEST),
        ("observation_count", LARGEST),
    ):
        if name in elites and not all(((part >= 0) & (part <= most)).all() for part in parts(elites[name])):
            raise InputError(f"{file}: {name} has values outside of [0, {most:g}].")


def _columns(archive: "Archive") -> dict[str, tuple[str, tuple[int, ...]]]:
    """Field -> kinds of numbers and shape of a row, of the fields that computations use."""
    columns: dict[str, tuple[str, tuple[int, ...]]] = {
        "index": ("iu", ()),
        "episodes": ("iu", ()),
        "objective": ("f", ()),
        "measures": ("f", (len(archive.ranges),)),
        **{name: ("f", shape) for name, shape in statistics_shapes(len(archive.ranges)).items()},
        "solution": ("f", archive.elites["solution"].shape[1:2]),
    }
    if archive.description.get("network") is not None:
        network = Network.of(archive.description["network"])
        inputs = network.sizes[0]
        columns |= {
            "solution": ("f", (network.parameters,)),
            "log_std": ("f", (network.outputs,)),
            "observation_mean": ("f", (inputs,)),
            "observation_variance": ("f", (inputs,)),
            "observation_count": ("f", ()),
        }
    return columns


def _check_description(archive: "Archive") -> None:
    """Raise a ValueError that names an entry that is not valid, or any other error of reading it."""
    description, shape, centroids = archive.description, archive.shape, archive.centroids
    for name in (description["task"]["name"], *archive.measure_names):
        if not (isinstance(name, str) and len(name) <= LONGEST_NAME):
            raise ValueError(f"a name is not a text of at most {LONGEST_NAME} characters")
    for key, kind in (("algorithm", str), ("seed", int), ("iteration", int)):
        if type(description.get(key)) not in (kind, type(None)):
            raise ValueError(key)
    if not abs(archive.qd_offset) <= LARGEST:
        raise ValueError("qd_offset")
    if not all(type(size) is int and size >= 1 for size in shape):
        raise ValueError("shape")
    if centroids is None and description.get("kind") == "cvt":
        raise ValueError("a CVT without centroids")
    k = len(archive.ranges)
    if not k or len(archive.measure_names) != k or len(shape) != (k if centroids is None else 1):
        raise ValueError(
            f"{k} ranges, {len(archive.measure_names)} measures, {len(shape)} sizes in its shape"
        )
    check_shape(shape)
    low, high = np.array(archive.ranges).T  # half of LARGEST, so that differences are finite, too
    if not (np.abs([low, high]) <= LARGEST / 2).all() or not (np.float32(low) < np.float32(high)).all():
        raise ValueError("ranges")
    if centroids is not None and (
        centroids.shape != (shape[0], k)
        or centroids.dtype.kind != "f"
        or not (np.abs(centroids) <= LARGEST / 2).all()
    ):
        raise ValueError("centroids")
    network = description.get("network")
    if network is None:
        return
    _check_simulation(description["task"])
    if not (
        len(network["sizes"]) >= 2
        and all(type(size) is int and size >= 1 for size in network["sizes"])
        and network.get("activation", "tanh") in ("tanh", "relu")
        and network.get("head", "linear") in ("linear", "tanh", "gaussian")
        and float(network["observation_clip"]) > 0
    ):
        raise ValueError("network")
    _check_controls(description["task"], Network.of(network).outputs)


def _check_simulation(task: Mapping[str, Any]) -> None:
    """Raise a ValueError that names a missing setting of the simulation."""
    for key, kind in (("physics", str), ("episode_length", int), ("integrator", str)):
        if type(task.get(key)) is not kind:
            raise ValueError(f"task: {key}")
    if task.get("clip") is not None and not 0 < float(task["clip"]) <= LARGEST:
        raise ValueError("task: clip")
    if not 1 <= task["episode_length"] <= LONGEST_EPISODE:
        raise ValueError(f"task: episode_length: {task['episode_length']}; at most {LONGEST_EPISODE:,}")


def _check_controls(task: Mapping[str, Any], actions: int) -> None:
    """Raise a ValueError if the range or the period of the controls is given and not valid."""
    if "control_range" in task:
        low, high = np.array(task["control_range"], float).reshape(actions, 2).T
        if not (np.abs([low, high]) <= LARGEST).all() or not (low <= high).all():
            raise ValueError("task: control_range")
    if task.get("control_dt") is not None and not 0 <= float(task["control_dt"]) <= LARGEST:
        raise ValueError("task: control_dt")
