"""Episodes of elites, played on this machine for the viewer."""

import csv
import io
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from ppga.analysis.corrected import check_network
from ppga.archives import Archive
from ppga.errors import InputError
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts import Recording, record
from ppga.storage import NumpyArray
from ppga.tasks import Environment


@dataclass(frozen=True)
class Episode:
    """An episode of an elite, in t control steps.

    Attributes:
        archive: an archive with this elite alone.
        which: the archive that the elite is from: archived or corrected.
        cell: cell of the elite.
        start: number of the random start.
        archived: objective and measures of the elite in the archive.
        qpos: (t, nq) joint positions.
        position: (t, bodies, 3) position of every body.
        quaternion: (t, bodies, 4) orientation of every body.
        observation: (t, o)
        action: (t, a)
        reward: (t,)
        proxies: (t, k) measure proxies.
        measures: measures of this episode.
    """

    archive: Archive
    which: str
    cell: int
    start: int
    archived: tuple[float, list[float]]
    qpos: NumpyArray
    position: NumpyArray
    quaternion: NumpyArray
    observation: NumpyArray
    action: NumpyArray
    reward: NumpyArray
    proxies: NumpyArray
    measures: list[float]

    def __len__(self) -> int:
        """Number of control steps."""
        return len(self.reward)

    @property
    def objective(self) -> float:
        """Return of this episode."""
        return float(self.reward.sum())

    def to_csv(self, dt: float, measure_names: tuple[str, ...]) -> str:
        """A table with one row for each step: time, reward, proxies, action, joint positions, observation.

        Args:
            dt: seconds of a control step.
            measure_names: names of the k measures.
        """
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
    """Plays episodes of one task with policies of one network, compiled for the first episode.

    Args:
        task: the task.
        network: network of the policies.

    Raises:
        InputError: the network does not fit the task.
    """

    def __init__(self, task: Environment, network: Network) -> None:
        check_network(network, task)
        self.task, self.network = task, network

        def play(policy: Policy, key: Array) -> Recording:
            def act(observation: Array, key: Array, steps: Array) -> Array:  # noqa: ARG001
                return policy.mean_action(network, observation)

            return record(task, act, key, 1, task.episode_length)

        self._play: Any = jax.jit(play)

    def play(self, archive: Archive, cell: int, start: int = 0, which: str = "") -> Episode:
        """Play an episode of the elite in a cell.

        Args:
            archive: the archive.
            cell: cell of the elite.
            start: number of the random start.
            which: archived or corrected.
        """
        if Network.of(archive.description["network"]) != self.network:
            raise InputError("the policies of this archive have another network.")
        elite = archive.elite(cell)
        recording = self._play(Policy.of_elite(elite), jax.random.fold_in(jax.random.key(0), start))
        steps = max(1, int(np.asarray(recording.active[0]).sum()))
        arrays = {
            name: np.asarray(getattr(recording, name))[0, :steps]
            for name in ("qpos", "observation", "action", "reward", "proxies")
        }
        position, quaternion = self._poses(arrays["qpos"])
        archived = float(elite["objective"]), [float(value) for value in elite["measures"]]
        total = arrays["proxies"].sum(axis=0)[None]
        measures = [float(value) for value in self.task.measures(total, jnp.array([steps]))[0]]
        return Episode(
            archive.only(cell),
            which,
            cell,
            start,
            archived,
            position=position,
            quaternion=quaternion,
            measures=measures,
            **arrays,
        )

    def _poses(self, qpos: NumpyArray) -> tuple[NumpyArray, NumpyArray]:
        """Positions (t, bodies, 3) and quaternions (t, bodies, 4) of bodies at joint positions (t, nq)."""
        model = self.task.drawable()
        data = mujoco.MjData(model)  # not shared, because several threads may play at once
        position, quaternion = np.empty((len(qpos), model.nbody, 3)), np.empty((len(qpos), model.nbody, 4))
        for step, joints in enumerate(qpos):
            data.qpos[:] = joints
            mujoco.mj_kinematics(model, data)
            position[step], quaternion[step] = data.xpos, data.xquat
        return position, quaternion
