"""MAP-Elites, PGA-ME and DCRL-ME by QDax, and ASCII-ME as an emitter of QDax' loop, on a task of ppga."""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.archives import Archive
from ppga.errors import import_extra
from ppga.policies.network import Network

from benchmarks.ascii_me import ASCIIEmitter, returns
from benchmarks.library_task import LibraryTask, Report


def qdax_map_elites(task_name: str, preset: str, report: Report, seed: int) -> Archive:
    """MAP-Elites with iso+line variation, by QDax."""
    task = LibraryTask(task_name, preset, report, seed)
    return _run(task, _variation_emitter(task.sizes.batch))


def qdax_pga_me(task_name: str, preset: str, report: Report, seed: int) -> Archive:
    """PGA-ME, by QDax."""
    task = LibraryTask(task_name, preset, report, seed, record=True)
    _replace_old_brax()
    pga_me = import_extra("qdax.core.emitters.pga_me_emitter", "qdax")
    buffers = import_extra("qdax.core.neuroevolution.buffers.buffer", "qdax")
    sizes = task.sizes
    config = pga_me.PGAMEConfig(
        env_batch_size=sizes.batch, num_critic_training_steps=sizes.critic_steps,
        num_pg_training_steps=sizes.policy_steps, replay_buffer_size=sizes.buffer,
    )  # fmt: skip
    emitter = pga_me.PGAMEEmitter(config, policy_network(task.problem.actor), _Sizes(task), _iso_line())

    def extra_scores() -> dict[str, Any]:
        return {"transitions": buffers.QDTransition(**_qdax_transitions(task))}

    return _run(task, emitter, extra_scores)


def qdax_dcrl_me(task_name: str, preset: str, report: Report, seed: int) -> Archive:
    """DCRL-ME, by QDax, with the learning rate of its authors' policy gradients."""
    task = LibraryTask(task_name, preset, report, seed, record=True)
    _replace_old_brax()
    dcrl_me = import_extra("qdax.core.emitters.dcrl_me_emitter", "qdax")
    buffers = import_extra("qdax.core.neuroevolution.buffers.buffer", "qdax")
    networks = import_extra("qdax.core.neuroevolution.networks.networks", "qdax")
    sizes, actor = task.sizes, task.problem.actor
    variation, gradient, injection = sizes.dcrl_batches
    config = dcrl_me.DCRLMEConfig(
        ga_batch_size=variation, dcrl_batch_size=gradient, ai_batch_size=injection,
        num_critic_training_steps=sizes.dcrl_critic_steps, num_pg_training_steps=sizes.dcrl_policy_steps,
        replay_buffer_size=sizes.buffer, policy_learning_rate=5e-3,
    )  # fmt: skip
    conditioned = networks.MLPDC(actor.sizes[1:], activation=jnp.tanh, final_activation=jnp.tanh)
    emitter = dcrl_me.DCRLMEEmitter(config, policy_network(actor), conditioned, _Sizes(task), _iso_line())

    def extra_scores() -> dict[str, Any]:
        fields = _qdax_transitions(task)
        unknown = np.zeros_like(fields["state_desc"])  # the emitter replaces both by those of the policies
        return {"transitions": buffers.DCRLTransition(**fields, desc=unknown, desc_prime=unknown)}

    return _run(task, emitter, extra_scores)


def ascii_me(task_name: str, preset: str, report: Report, seed: int) -> Archive:
    """ASCII-ME: half of the policies by crossover with an action sequence, half by iso+line variation."""
    task = LibraryTask(task_name, preset, report, seed, record=True)
    multi = import_extra("qdax.core.emitters.multi_emitter", "qdax")
    varied = task.sizes.ascii_batch // 2
    crossover = ASCIIEmitter(
        policy_network(task.problem.actor).apply, task.sizes.ascii_batch - varied, task.sizes.ascii_steps
    )

    def extra_scores() -> dict[str, Any]:
        steps = task.trajectories()
        names = ("observation", "action", "taken")
        return {"trajectory": {name: steps[name] for name in names} | {"return": returns(steps["reward"])}}

    emitter = multi.MultiEmitter((crossover, _variation_emitter(varied)))
    return _run(task, emitter, extra_scores, stored=("trajectory",))


def policy_network(network: Network) -> Any:
    """The same network as a module of QDax, for parameters in the form of `to_tree`."""
    assert (network.activation, network.head) == ("tanh", "tanh")
    networks = import_extra("qdax.core.neuroevolution.networks.networks", "qdax")
    return networks.MLP(network.sizes[1:], activation=jnp.tanh, final_activation=jnp.tanh)


def to_tree(network: Network, flat: Any) -> dict[str, Any]:
    """Flat parameters (..., d) as those of QDax' modules."""
    layers = enumerate(network.layers(flat))
    return {"params": {f"Dense_{number}": {"kernel": w, "bias": b} for number, (w, b) in layers}}


def to_flat(network: Network, tree: dict[str, Any]) -> Any:
    """Parameters of QDax' modules as flat ones (..., d)."""
    layers = (tree["params"][f"Dense_{number}"] for number in range(len(network.sizes) - 1))
    return network.flatten([(np.asarray(layer["kernel"]), np.asarray(layer["bias"])) for layer in layers])


def _iso_line() -> Any:
    operators = import_extra("qdax.core.emitters.mutation_operators", "qdax")
    return partial(operators.isoline_variation, iso_sigma=0.005, line_sigma=0.05)


def _variation_emitter(batch: int) -> Any:
    standard = import_extra("qdax.core.emitters.standard_emitters", "qdax")
    return standard.MixingEmitter(
        mutation_fn=None, variation_fn=_iso_line(), variation_percentage=1.0, batch_size=batch
    )


def _qdax_transitions(task: LibraryTask) -> dict[str, Any]:
    """Fields (n, t, ...) of QDax' `QDTransition`: the steps of the last evaluation."""
    steps = task.transitions()
    return {
        "obs": steps["observation"], "next_obs": steps["next_observation"], "rewards": steps["reward"],
        "dones": steps["terminated"].astype(np.float32), "actions": steps["action"],
        "truncations": np.zeros_like(steps["reward"]),
        "state_desc": steps["proxies"], "next_state_desc": steps["proxies"],
    }  # fmt: skip


def _run(
    task: LibraryTask,
    emitter: Any,
    extra_scores: Callable[[], dict[str, Any]] = dict,
    stored: Sequence[str] = (),
) -> Archive:
    """QDax' loop with an emitter, by ask and tell; what QDax itself computes is compiled.

    Args:
        task: the task.
        emitter: the emitter.
        extra_scores: called after each evaluation for what else the emitter learns from.
        stored: names of those extra scores that are stored with each elite.
    """
    map_elites = import_extra("qdax.core.map_elites", "qdax")
    containers = import_extra("qdax.core.containers.mapelites_repertoire", "qdax")

    def new_repertoire(genotypes: Any, fitnesses: Any, descriptors: Any, cells: Any, extra: Any) -> Any:
        return containers.MapElitesRepertoire.init(
            genotypes, fitnesses, descriptors, cells, extra_scores=extra, keys_extra_scores=tuple(stored)
        )

    loop = map_elites.MAPElites(None, emitter, lambda _: {}, new_repertoire)
    ask, tell = jax.jit(loop.ask), jax.jit(loop.tell, donate_argnames=("emitter_state",))
    problem = task.problem
    low, high = np.array(problem.measure_ranges).T
    cells = containers.compute_euclidean_centroids(problem.archive_shape, list(low), list(high))

    def evaluate(genotypes: Any) -> dict[str, Any]:
        objective, measures = task.evaluate(to_flat(problem.actor, genotypes))
        return {
            "genotypes": genotypes, "fitnesses": objective[:, None], "descriptors": measures,
            "extra_scores": extra_scores(),
        }  # fmt: skip

    first = evaluate(to_tree(problem.actor, problem.random(task.key(), emitter.batch_size)))
    repertoire, state, _ = loop.init_ask_tell(**first, centroids=cells, key=task.key())
    state = jax.tree.map(jnp.copy, state)  # some arrays occur twice, and cannot be donated twice
    while task.report(repertoire.fitnesses[:, 0]):
        genotypes, info = ask(repertoire, state, task.key())
        scores = evaluate(genotypes)
        repertoire, state, _ = tell(**scores, repertoire=repertoire, emitter_state=state, extra_info=info)
    solutions = to_flat(problem.actor, repertoire.genotypes)
    return task.archive(solutions, repertoire.fitnesses[:, 0], repertoire.descriptors)


class _Sizes:
    """What QDax' emitters ask an environment for."""

    def __init__(self, task: LibraryTask) -> None:
        env = task.task
        self.observation_size, self.action_size = env.observation_size, env.action_size
        self.state_descriptor_length = self.descriptor_length = len(env.measure_names)
        self.descriptor_limits = np.array(env.measure_ranges, np.float32).T


def _replace_old_brax() -> None:
    """Provide the type that QDax' emitters import from `brax.v1`, which current versions of Brax lack."""
    for name in ("qdax.tasks.brax.v1", "qdax.tasks.brax.v1.envs", "qdax.tasks.brax.v1.envs.base_env"):
        module: Any = sys.modules.setdefault(name, ModuleType(name))
        module.__dict__.setdefault("QDEnv", object)
