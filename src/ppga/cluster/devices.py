"""Learning spread over devices: those of this machine (`jax.sharding`), or of several (`jax.distributed`).

Every device has an equal share of the environments, and in it every agent has its own: rollouts need no word
between devices. Each device takes gradients of what it has seen, and all follow the mean of them, so agents
stay the same everywhere. Of several processes, each does everything that is not spread, with the same
results; the first one writes down what came of it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ppga.algorithms import PolicyProblem, PolicySearch
from ppga.cluster.crew import Cluster
from ppga.cluster.shares import filled_up
from ppga.errors import InputError
from ppga.learners.vppo import VPPO, Agent, Report, Trajectory, Worlds, observe
from ppga.networks import Network
from ppga.physics import Array
from ppga.policies import Policy
from ppga.rollouts import Judge, Scores, Transitions
from ppga.storage import NumpyArray, whole
from ppga.tasks import Environment

AXIS = "device"
Layout: Any = PartitionSpec
SAME, APART, BY_AGENT = Layout(), Layout(AXIS), Layout(None, AXIS)
"""The same on all devices; shares along the first axis; along the second one, behind the agents'."""
ON_HOST = ("mujoco", "gymnasium")
"""Simulators that run on CPUs, outside JAX."""


def join(cluster: Cluster) -> None:
    """Become one of several processes, if there are to be any; before JAX looks for its devices."""
    cluster.check()
    given = (cluster.address, cluster.workers, cluster.rank)
    if given == (None, None, None) or jax.distributed.is_initialized():
        return
    several: dict[str, Any] = {}
    if cluster.address != "auto":  # SLURM, Open MPI and Kubernetes are found by JAX itself
        if None in given:
            raise InputError("several processes need --address HOST:PORT, which is where the first one is, "
                             "--workers, how many there are, and --rank, which one this is.")  # fmt: skip
        several = {
            "coordinator_address": cluster.address,
            "num_processes": cluster.workers,
            "process_id": cluster.rank,
        }
    try:
        jax.distributed.initialize(**several)
    except (RuntimeError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        raise InputError(f"cannot join the others at {cluster.address}: {said}") from None


def leads() -> bool:
    """Whether this process writes things down: the only one, or the first of several."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def agree(*wishes: bool) -> tuple[bool, ...]:
    """What any of the processes wishes."""
    if not jax.distributed.is_initialized():
        return wishes
    heard = np.asarray(multihost_utils.process_allgather(np.array(wishes))).reshape(-1, len(wishes))
    return tuple(bool(wished.any()) for wished in heard.T)


class Devices:
    """All devices there are, of all processes."""

    def __init__(self) -> None:
        self.count: int = jax.device_count()
        self.mesh = jax.make_mesh((self.count,), (AXIS,), axis_types=(AxisType.Auto,))

    def record(self) -> dict[str, int]:
        """Of an iteration: how many devices learn, in how many processes."""
        return {"devices": self.count, "processes": jax.process_count()}

    def placed(self, spec: PartitionSpec) -> NamedSharding:
        """Arrays laid out like this."""
        return NamedSharding(self.mesh, spec)

    def everywhere(self, tree: Any) -> Any:
        """The same arrays on all devices."""
        layout = self.placed(SAME)

        def put(leaf: Any) -> Array:
            leaf = jnp.asarray(leaf)
            copies = [jax.device_put(leaf, device) for device in self.mesh.local_devices]
            return jax.make_array_from_single_device_arrays(leaf.shape, layout, copies)

        return jax.tree.map(put, tree)

    def apart(self, tree: Any) -> Any:
        """Whole arrays (n, ...), cut along their first axis; those that are cut already as they are."""
        layout = self.placed(APART)

        def cut(leaf: Any) -> Array:
            if isinstance(leaf, jax.Array) and leaf.sharding == layout:
                return leaf
            values = np.asarray(leaf)
            return jax.make_array_from_callback(values.shape, layout, lambda rows: values[rows])

        return jax.tree.map(cut, tree)

    def spread(
        self, function: Callable[..., Any], takes: Any, gives: Any, donate: tuple[int, ...] = ()
    ) -> Any:
        """`function` on every device, of its share of what it takes."""
        one = jax.shard_map(function, mesh=self.mesh, in_specs=takes, out_specs=gives, check_vma=False)
        return jax.jit(one, donate_argnums=donate)


def ready(tree: Any) -> Any:
    """The same when it is there: devices that talk must not be asked for two things at once."""
    return jax.block_until_ready(tree)  # type: ignore[no-untyped-call]


def here(tree: Any) -> Any:
    """Arrays that are the same everywhere, as they are on the first device of this process."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), ready(tree))


def check(problem: PolicyProblem, count: int) -> None:
    """Raise an InputError if so many devices cannot share a problem."""
    if problem.task.physics_name in ON_HOST:
        raise InputError(
            f"--cluster jax spreads what runs on JAX's devices, and {problem.task.physics_name} does not: "
            "--simulation.physics mjx; or --cluster ray, for CPUs."
        )
    if problem.replay is not None and jax.process_count() > 1:
        raise InputError("learning off policy, from one memory, takes one process; leave --address out.")
    if not isinstance(problem, PolicySearch):
        return
    ppo, emitters = problem.ppo, problem.search.emitters
    agents = emitters * problem.gradients
    if ppo.environments % (agents * count):
        more = -(-ppo.environments // (agents * count)) * agents * count
        raise InputError(
            f"{ppo.environments} environments cannot be shared by {agents} agents on each of {count} devices;"
            f" --ppo.environments {more} can."
        )
    for some in (agents, emitters):
        rows = ppo.environments // (some * count) * ppo.rollout_length
        if rows % ppo.minibatches:
            raise InputError(
                f"the {rows} steps that an agent takes on each of {count} devices cannot be cut into "
                f"{ppo.minibatches} minibatches; change --ppo.environments or --ppo.rollout-length."
            )


def spread(problem: PolicyProblem, devices: Devices) -> None:
    """Let all devices make a problem's rollouts, and learn from them."""
    check(problem, devices.count)
    if devices.count == 1:
        return
    problem.make_judge = partial(SpreadJudge, devices)
    if isinstance(problem, PolicySearch):
        _spread_learning(problem.vppo, devices)


def _spread_learning(vppo: VPPO, devices: Devices) -> None:
    """Let all devices share what a learner does; agents come and go as arrays of one device."""
    vppo.axis, vppo.devices = AXIS, devices.count
    init_worlds = vppo.init_worlds

    def own_rollout(agents: Agent, worlds: Worlds, keys: Array) -> tuple[Worlds, Trajectory]:
        number = jax.lax.axis_index(AXIS)
        return vppo.rollout(agents, worlds, jax.vmap(lambda key: jax.random.fold_in(key, number))(keys))

    rollout = devices.spread(own_rollout, (SAME, APART, SAME), (APART, BY_AGENT), donate=(1,))
    updates = [
        devices.spread(partial(vppo.learn, watched=watched), (SAME, BY_AGENT, SAME, SAME), SAME)
        for watched in (False, True)
    ]
    # means over everything seen: XLA sees by itself who has to tell whom
    take_in = jax.jit(jax.vmap(observe), out_shardings=devices.placed(SAME))

    def collect(agents: Agent, worlds: Worlds, keys: Array) -> tuple[Worlds, Trajectory]:
        agents, keys = devices.everywhere((agents, keys))
        found: tuple[Worlds, Trajectory] = ready(rollout(agents, devices.apart(worlds), keys))
        return found

    def update(
        agents: Agent, seen: Trajectory, weights: Array, keys: Array, watched: bool = False
    ) -> tuple[Agent, Report, Array | None]:
        agents, weights, keys = devices.everywhere((agents, weights, keys))
        learnt: tuple[Agent, Report, Array | None] = here(updates[watched](agents, seen, weights, keys))
        return learnt

    vppo.init_worlds = lambda key: devices.apart(init_worlds(key))  # type: ignore[method-assign]
    vppo.collect = collect
    vppo.update, vppo.update_watched = update, partial(update, watched=True)
    vppo.observe = lambda agents, seen: here(take_in(devices.everywhere(agents), seen))


class SpreadJudge(Judge):
    """A `Judge` whose policies are shared by devices, each of which is done when its own are.

    Args:
        devices: that play.
        task, network, episodes, sample, watch: see `Judge`.
    """

    def __init__(
        self,
        devices: Devices,
        task: Environment,
        network: Network,
        episodes: int,
        sample: bool = False,
        watch: bool = False,
    ) -> None:
        super().__init__(task, network, episodes, sample, watch)
        self.devices = devices
        self.play = devices.spread(self._play_own, (APART, APART, APART), APART)

    def __call__(
        self, policies: Policy, key: Array, playing: NumpyArray | None = None
    ) -> tuple[Scores, Transitions | None]:
        """See `Judge`."""
        n, count = len(policies.parameters), self.devices.count
        everyone = filled_up(policies, key, self.episodes, playing, -(-n // count) * count)
        found = self.play(*self.devices.apart(everyone))
        scores: tuple[Scores, Transitions | None] = jax.tree.map(lambda leaf: whole(leaf)[:n], ready(found))
        return scores

    def _play_own(self, policies: Policy, keys: Array, playing: Array) -> tuple[Scores, Transitions | None]:
        return self.play_here(policies, jax.random.wrap_key_data(keys), playing)
