"""An off-policy problem whose learners can also maximize the novelty of what a step does."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from scipy.spatial import KDTree

from ppga.problems.off_policy import OffPolicyProblem
from ppga.storage import NumpyArray, check_arrays

REFERENCES = 256
"""Recorded steps that a step is compared with."""
SIZE, ACCEPTANCE, NEIGHBORS = 10_000, 0.1, 5
"""Entries of a novelty archive, least distance between them, and neighbors that a step is compared with."""
Novelty = Literal["steps", "archive"]
"""See `NoveltyProblem`."""


class NoveltyProblem(OffPolicyProblem):
    """Adds one number to every sampled transition: the novelty of its measure proxies.

    The published novelty, `archive`, is the mean squared distance to the nearest few entries of an archive of
    proxies. Where proxies are flags, such as foot contact, all combinations occur, and with all of them as
    entries every step is equally novel. The other one, `steps`, is the mean distance to a few recorded steps,
    which still tells rare steps from usual ones.

    Args:
        *args: see `OffPolicyProblem`.
        novelty: archive or steps.
    """

    def __init__(self, *args: Any, novelty: Novelty = "steps") -> None:
        super().__init__(*args)
        self.archive = NoveltyArchive(len(self.measure_names)) if novelty == "archive" else None

    def record(self, rows: NumpyArray) -> None:
        """Add transitions (n, width) to the replay buffer, and their proxies to the novelty archive."""
        super().record(rows)
        if self.archive is not None:
            self.archive.add(rows[:, -len(self.measure_names) :])

    def with_extra_gains(self, rows: NumpyArray, rng: np.random.Generator) -> NumpyArray:
        """Transitions (..., width) with their novelty (..., width + 1)."""
        k = len(self.measure_names)
        proxies = rows[..., -k:].reshape(-1, k)
        if self.archive is None:
            novelty = mean_distance(proxies, self.replay.sample(rng, (REFERENCES,))[:, -k:])
        else:
            novelty = self.archive.novelty(proxies)
        return np.concatenate([rows, novelty.reshape(*rows.shape[:-1], 1).astype(rows.dtype)], axis=-1)

    def external_state(self) -> dict[str, NumpyArray]:
        """Position of the replay buffer, and the novelty archive."""
        own = {} if self.archive is None else self.archive.state()
        return super().external_state() | {f"novelty_{name}": values for name, values in own.items()}

    def load_external_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore an `external_state()`."""
        own = {name: values for name, values in state.items() if name.startswith("novelty_")}
        super().load_external_state({name: values for name, values in state.items() if name not in own})
        fresh = {} if self.archive is None else self.archive.state()
        check_arrays(own, {f"novelty_{name}": (value.dtype, value.shape) for name, value in fresh.items()})
        if self.archive is not None:
            self.archive.load_state({name.removeprefix("novelty_"): values for name, values in own.items()})


class NoveltyArchive:
    """The last few points that were far from all entries when they were added.

    Args:
        size: numbers k of a point.

    Attributes:
        points: (SIZE, k) entries, in a ring.
        added: number of entries added so far.
    """

    def __init__(self, size: int) -> None:
        self.points = np.zeros((SIZE, size), np.float32)
        self.added = 0

    @property
    def entries(self) -> NumpyArray:
        """The entries (n, k)."""
        return self.points[: self.added]

    def add(self, points: NumpyArray) -> None:
        """Add those points (n, k) that are far from all entries and from each other, in their order."""
        points = _distinct(points)
        if self.added:
            distance, _ = KDTree(self.entries).query(points)
            points = points[distance > ACCEPTANCE]
        while len(points):
            self.points[self.added % SIZE] = points[0]
            self.added += 1
            points = points[np.linalg.norm(points - points[0], axis=1) > ACCEPTANCE]

    def novelty(self, points: NumpyArray) -> NumpyArray:
        """Mean squared distance (n,) of points (n, k) to their nearest entries, to all if these are few."""
        distinct, numbers = np.unique(points, axis=0, return_inverse=True)
        distance, _ = KDTree(self.entries).query(distinct, range(1, 1 + min(NEIGHBORS, len(self.entries))))
        return np.asarray(np.square(distance).mean(axis=1)[numbers.ravel()])

    def state(self) -> dict[str, NumpyArray]:
        """Arrays for a checkpoint."""
        return {"points": self.points, "added": np.array(self.added, np.int64)}

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`."""
        self.points = np.array(state["points"])
        self.added = int(state["added"])


def mean_distance(points: NumpyArray, references: NumpyArray) -> NumpyArray:
    """Mean distance (n,) of points (n, k) to references (m, k)."""
    distinct, counts = np.unique(references, axis=0, return_counts=True)  # a few, where proxies are flags
    total = np.zeros(len(points))
    for reference, count in zip(distinct, counts, strict=True):
        total += count / len(references) * np.linalg.norm(points - reference, axis=1)
    return total


def _distinct(points: NumpyArray) -> NumpyArray:
    """The points (n, k) without repetitions, in the order in which they first occur."""
    _, first = np.unique(points, axis=0, return_index=True)
    return points[np.sort(first)]
