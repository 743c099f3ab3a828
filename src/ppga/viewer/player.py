"""Rollouts to look at: an elite plays a whole episode on this machine."""

import csv
import io
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.archives import Archive
from ppga.errors import InputError
from ppga.networks import Network
from ppga.physics import Array
from ppga.policies import Policy
from ppga.rollouts import Recording, record
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@dataclass(frozen=True)
class Episode:
    """What an elite did, step by step, until its episode ended.

    Attributes:
        alone: an archive with no other elite.
        which: the archive it came from.
        cell: whose elite.
        start: number of the random start.
        archived: objective and measures it is in the archive with.
        qpos: (t, nq) positions.
        place: (t, bodies, 3) of every body.
        turn: (t, bodies, 4) its quaternion.
        observation: (t, o).
        action: (t, a).
        reward: (t,).
        proxies: (t, k).
        measures: (k,) as just seen.
    """

    alone: Archive
    which: str
    cell: int
    start: int
    archived: tuple[float, list[float]]
    qpos: NumpyArray
    place: NumpyArray
    turn: NumpyArray
    observation: NumpyArray
    action: NumpyArray
    reward: NumpyArray
    proxies: NumpyArray
    measures: list[float]

    def __len__(self) -> int:
        """Control steps."""
        return len(self.reward)

    @property
    def objective(self) -> float:
        """Return as just seen."""
        return float(self.reward.sum())

    def to_csv(self, dt: float, measure_names: tuple[str, ...]) -> str:
        """A row a step: time, reward, measure proxies, action, positions, observation."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        names = ["time", "reward", *measure_names]
        for name, values in (("action", self.action), ("qpos", self.qpos), ("observation", self.observation)):
            names += [f"{name} {number}" for number in range(values.shape[1])]
        writer.writerow(names)
        for step in range(len(self)):
            row = [step * dt, self.reward[step], *self.proxies[step], *self.action[step], *self.qpos[step]]
            writer.writerow([f"{float(value):.6g}" for value in (*row, *self.observation[step])])
        return text.getvalue()


class Player:
    """Plays episodes of one task with networks of one kind; compiled when first used.

    Args:
        task: what is played.
        network: of the policies.
    """

    def __init__(self, task: Environment, network: Network) -> None:
        if (task.observation_size, task.action_size) != (network.sizes[0], network.outputs):
            raise InputError(
                f"the policies see {network.sizes[0]} numbers and give {network.outputs}; {task.name} shows "
                f"{task.observation_size} and takes {task.action_size}."
            )
        self.task, self.network = task, network

        def play(policy: Policy, key: Array) -> Recording:
            def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
                return policy.mean_action(network, observation)

            return record(task, act, key, 1, task.episode_length)

        self._play: Any = jax.jit(play)

    def play(self, archive: Archive, cell: int, start: int = 0, which: str = "") -> Episode:
        """An episode of the elite in a cell, from the random start of that number.

        Args:
            archive: where it is.
            cell: whose elite.
            start: number of the random start.
            which: what the archive is called.
        """
        if Network.of(archive.description["network"]) != self.network:
            raise InputError("this archive's policies are of another kind.")
        elite = archive.elite(cell)
        seen = self._play(Policy.of_elite(elite), jax.random.fold_in(jax.random.key(0), start))
        lived = max(1, int(np.asarray(seen.alive[0]).sum()))
        parts = {
            name: np.asarray(getattr(seen, name))[0, :lived]
            for name in ("qpos", "observation", "action", "reward", "proxies")
        }
        place, turn = self._poses(parts["qpos"])
        archived = float(elite["objective"]), [float(value) for value in elite["measures"]]
        total = parts["proxies"].sum(axis=0)[None]
        measures = [float(value) for value in self.task.measures(total, jnp.array([lived]))[0]]
        return Episode(
            archive.only(cell),
            which,
            cell,
            start,
            archived,
            place=place,
            turn=turn,
            measures=measures,
            **parts,
        )

    def _poses(self, qpos: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Where all bodies (t, bodies, ...) are."""
        model = self.task.drawable()
        data = mujoco.MjData(model)  # its own: several may be played at once
        place, turn = np.empty((len(qpos), model.nbody, 3)), np.empty((len(qpos), model.nbody, 4))
        for step, positions in enumerate(qpos):
            data.qpos[:] = positions
            mujoco.mj_kinematics(model, data)
            place[step], turn[step] = data.xpos, data.xquat
        return place, turn
