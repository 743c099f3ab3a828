"""Rollouts and updates on all JAX devices, of this machine or of several processes.

Every device has an equal share of each agent's environments, so a rollout needs no communication. Each device
computes gradients of its own data, and all devices apply their mean, so agents are the same on all of them.
Of several processes, each computes everything else too, with the same results, and the first one writes the
files.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from ppga.distributed.cluster import Cluster
from ppga.distributed.shares import pad_policies
from ppga.errors import InputError
from ppga.physics import Array
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.rollouts import Evaluator, EvaluatorSettings, Scores, Transitions
from ppga.rollouts.executor import Evaluate, LearnerFunctions, LocalExecutor, Work
from ppga.storage import NumpyArray, whole
from ppga.tasks import Environment

AXIS = "device"
Layout: Any = PartitionSpec
REPLICATED, SHARDED, BY_AGENT = Layout(), Layout(AXIS), Layout(None, AXIS)
"""Layouts of arrays: the same on all devices; cut along the first axis; cut along the second axis, behind the
axis of agents."""
ON_HOST = ("mujoco", "gymnasium")
"""Simulators that run on CPUs, outside JAX."""


def join(cluster: Cluster) -> None:
    """Connect this process to the other processes of a run, if there are several.

    Call it before JAX initializes its devices.

    Raises:
        InputError: incomplete options, or the processes cannot be reached.
    """
    cluster.check()
    options = (cluster.address, cluster.workers, cluster.rank)
    if options == (None, None, None) or jax.distributed.is_initialized():
        return
    arguments: dict[str, Any] = {}
    if cluster.address != "auto":  # JAX itself detects SLURM, Open MPI and Kubernetes
        if None in options:
            raise InputError("several processes need --address HOST:PORT, the address of the first one, "
                             "--workers, their number, and --rank, the number of this one.")  # fmt: skip
        arguments = {
            "coordinator_address": cluster.address,
            "num_processes": cluster.workers,
            "process_id": cluster.rank,
        }
    try:
        jax.distributed.initialize(**arguments)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"cannot connect to the other processes at {cluster.address}: {reason}") from None


def is_primary() -> bool:
    """Whether this process writes the files: the only process, or the first of several."""
    return not jax.distributed.is_initialized() or jax.process_index() == 0


def any_process(*flags: bool) -> tuple[bool, ...]:
    """For each flag, whether it is set in any process; all processes must call this."""
    if not jax.distributed.is_initialized():
        return flags
    gathered = np.asarray(multihost_utils.process_allgather(np.array(flags))).reshape(-1, len(flags))
    return tuple(bool(column.any()) for column in gathered.T)


class DeviceExecutor:
    """Runs rollouts and updates on all devices of all processes. See `Executor`.

    With a single device it does the same as a `LocalExecutor`.
    """

    def __init__(self) -> None:
        self.devices: int = jax.device_count()
        self.axis = AXIS if self.devices > 1 else ""
        self.mesh = jax.make_mesh((self.devices,), (AXIS,), axis_types=(AxisType.Auto,))

    def evaluator(self, task: Environment, network: Network, settings: EvaluatorSettings) -> Evaluate:
        """See `Executor`."""
        check_physics(task.physics_name)
        if self.devices == 1:
            return Evaluator(task, network, settings)
        return DeviceEvaluator(self, task, network, settings)

    def compile(self, functions: LearnerFunctions, task: Environment, agent_envs: int) -> LearnerFunctions:
        """See `Executor`. Agents enter and leave the programs as arrays on a single device."""
        check_physics(task.physics_name)
        local = LocalExecutor().compile(functions, task, agent_envs)
        if self.devices == 1:
            return local

        def collect_shard(agents: Any, envs: Any, keys: Array) -> Any:
            number = jax.lax.axis_index(AXIS)
            return functions.collect(
                agents, envs, jax.vmap(lambda key: jax.random.fold_in(key, number))(keys)
            )

        collect_sharded = self.sharded(
            collect_shard, (REPLICATED, SHARDED, REPLICATED), (SHARDED, BY_AGENT), donate=(1,)
        )
        # sums over all environments: XLA inserts the communication between the devices
        update_normalizers = jax.jit(
            functions.update_normalizers, out_shardings=NamedSharding(self.mesh, REPLICATED)
        )

        def init_envs(key: Array) -> Any:
            return self.cut(local.init_envs(key))

        def collect(agents: Any, envs: Any, keys: Array) -> Any:
            agents, keys = self.replicate((agents, keys))
            return wait(collect_sharded(agents, self.cut(envs), keys))

        def on_all(update: Callable[..., Any]) -> Callable[..., Any]:
            sharded = self.sharded(update, (REPLICATED, BY_AGENT, REPLICATED, REPLICATED), REPLICATED)

            def run(agents: Any, trajectory: Any, weights: Array, keys: Array) -> Any:
                agents, weights, keys = self.replicate((agents, weights, keys))
                return first_copy(sharded(agents, trajectory, weights, keys))

            return run

        return LearnerFunctions(
            init_envs=init_envs,
            collect=collect,
            update=on_all(functions.update),
            update_recorded=on_all(functions.update_recorded),
            update_normalizers=lambda agents, trajectory: first_copy(
                update_normalizers(self.replicate(agents), trajectory)
            ),
        )

    def open(self, work: Work, say: Callable[[str], None]) -> AbstractContextManager[None]:
        """Check that the devices can share a run, and show their number. See `Executor`."""
        check_physics(work.physics)
        if work.replay and jax.process_count() > 1:
            raise InputError(
                "off-policy learning from one replay buffer needs a single process; leave out --address."
            )
        say(f"{self.devices} devices, of {jax.process_count()} processes")
        return nullcontext()

    def metrics(self) -> dict[str, Any]:
        """Numbers of devices and of processes."""
        return {"devices": self.devices, "processes": jax.process_count()}

    def replicate(self, tree: Any) -> Any:
        """The same arrays on all devices."""
        layout = NamedSharding(self.mesh, REPLICATED)

        def put(leaf: Any) -> Array:
            leaf = jnp.asarray(leaf)
            copies = [jax.device_put(leaf, device) for device in self.mesh.local_devices]
            return jax.make_array_from_single_device_arrays(leaf.shape, layout, copies)

        return jax.tree.map(put, tree)

    def cut(self, tree: Any) -> Any:
        """Arrays (n, ...) cut along their first axis, a part on each device; arrays already cut stay."""
        layout = NamedSharding(self.mesh, SHARDED)

        def cut(leaf: Any) -> Array:
            if isinstance(leaf, jax.Array) and leaf.sharding == layout:
                return leaf
            values = np.asarray(leaf)
            return jax.make_array_from_callback(values.shape, layout, lambda rows: values[rows])

        return jax.tree.map(cut, tree)

    def sharded(
        self, function: Callable[..., Any], inputs: Any, outputs: Any, donate: tuple[int, ...] = ()
    ) -> Any:
        """A compiled program that calls `function` on every device, with its parts of the arguments.

        Args:
            function: what to call.
            inputs: layout of each argument.
            outputs: layout of the results.
            donate: numbers of the arguments whose memory the program may reuse.
        """
        program = jax.shard_map(function, mesh=self.mesh, in_specs=inputs, out_specs=outputs, check_vma=False)
        return jax.jit(program, donate_argnums=donate)


class DeviceEvaluator(Evaluator):
    """An `Evaluator` whose policies are shared by all devices, each of which stops after its own episodes.

    Args:
        executor: the devices.
        task, network, settings: see `Evaluator`.
    """

    def __init__(
        self, executor: DeviceExecutor, task: Environment, network: Network, settings: EvaluatorSettings
    ) -> None:
        super().__init__(task, network, settings)
        self.executor = executor
        self.program = executor.sharded(self._evaluate_shard, (SHARDED, SHARDED, SHARDED), SHARDED)

    def __call__(
        self, policies: Policy, key: Array, active: NumpyArray | None = None
    ) -> tuple[Scores, Transitions | None]:
        """See `Evaluator`."""
        n, devices = len(policies.parameters), self.executor.devices
        padded = pad_policies(policies, key, self.episodes, active, -(-n // devices) * devices)
        results = wait(self.program(*self.executor.cut(padded)))
        scores: tuple[Scores, Transitions | None] = jax.tree.map(lambda leaf: whole(leaf)[:n], results)
        return scores

    def _evaluate_shard(
        self, policies: Policy, key_data: Array, active: Array
    ) -> tuple[Scores, Transitions | None]:
        return self.evaluate_traced(policies, jax.random.wrap_key_data(key_data), active)


def check_physics(physics: str) -> None:
    """Raise an InputError for a simulator that does not run on JAX's devices."""
    if physics in ON_HOST:
        raise InputError(
            f"--cluster jax runs simulations on JAX's devices, and {physics} does not run there: choose "
            "--simulation.physics mjx; or --cluster ray, for CPUs."
        )


def wait(tree: Any) -> Any:
    """The arrays when they are computed: two programs that communicate must not run at the same time."""
    return jax.block_until_ready(tree)  # type: ignore[no-untyped-call]


def first_copy(tree: Any) -> Any:
    """Arrays that are the same on all devices, as arrays on the first device of this process."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), wait(tree))
