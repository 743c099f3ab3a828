"""MAP-Elites and PGA-ME by QDax on a task of ppga."""

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ppga.archives import Archive
from ppga.errors import import_extra

from benchmarks.library_task import LibraryTask, Report


def qdax_map_elites(task_name: str, preset: str, report: Report) -> Archive:
    """MAP-Elites with iso+line variation, by QDax."""
    task = LibraryTask(task_name, preset, report)
    standard = import_extra("qdax.core.emitters.standard_emitters", "qdax")
    emitter = standard.MixingEmitter(
        mutation_fn=None, variation_fn=_iso_line(), variation_percentage=1.0, batch_size=task.sizes.batch
    )
    return _run(task, emitter, dict)


def qdax_pga_me(task_name: str, preset: str, report: Report) -> Archive:
    """PGA-ME, by QDax."""
    task = LibraryTask(task_name, preset, report, record=True)
    _replace_old_brax()
    pga_me = import_extra("qdax.core.emitters.pga_me_emitter", "qdax")
    buffers = import_extra("qdax.core.neuroevolution.buffers.buffer", "qdax")
    sizes = task.sizes
    config = pga_me.PGAMEConfig(
        env_batch_size=sizes.batch, num_critic_training_steps=sizes.critic_steps,
        num_pg_training_steps=sizes.policy_steps, replay_buffer_size=sizes.buffer,
    )  # fmt: skip

    def transitions() -> dict[str, Any]:
        steps = task.transitions()
        return {
            "transitions": buffers.QDTransition(
                obs=steps["observation"], next_obs=steps["next_observation"], rewards=steps["reward"],
                dones=steps["terminated"].astype(np.float32), actions=steps["action"],
                truncations=np.zeros(len(steps["reward"]), np.float32),
                state_desc=steps["proxies"], next_state_desc=steps["proxies"],
            )
        }  # fmt: skip

    emitter = pga_me.PGAMEEmitter(config, _FlatNetwork(task), _EnvironmentSizes(task), _iso_line())
    return _run(task, emitter, transitions)


def _iso_line() -> Any:
    operators = import_extra("qdax.core.emitters.mutation_operators", "qdax")
    return partial(operators.isoline_variation, iso_sigma=0.005, line_sigma=0.05)


def _run(task: LibraryTask, emitter: Any, extra_scores: Callable[[], dict[str, Any]]) -> Archive:
    """QDax' loop with an emitter, by ask and tell; what QDax itself computes is compiled."""
    map_elites = import_extra("qdax.core.map_elites", "qdax")
    containers = import_extra("qdax.core.containers.mapelites_repertoire", "qdax")
    loop = map_elites.MAPElites(None, emitter, lambda _: {})
    ask, tell = jax.jit(loop.ask), jax.jit(loop.tell, donate_argnames=("emitter_state",))
    problem = task.problem
    low, high = np.array(problem.measure_ranges).T
    cells = containers.compute_euclidean_centroids(problem.archive_shape, list(low), list(high))

    def evaluate(genotypes: Any) -> dict[str, Any]:
        objective, measures = task.evaluate(genotypes)
        return {
            "genotypes": genotypes, "fitnesses": objective[:, None], "descriptors": measures,
            "extra_scores": extra_scores(),
        }  # fmt: skip

    first = evaluate(problem.random(task.key(), task.sizes.batch))
    repertoire, state, _ = loop.init_ask_tell(**first, centroids=cells, key=task.key())
    state = jax.tree.map(jnp.copy, state)  # some arrays occur twice, and cannot be donated twice
    while task.report(repertoire.fitnesses[:, 0]):
        genotypes, info = ask(repertoire, state, task.key())
        scores = evaluate(genotypes)
        repertoire, state, _ = tell(**scores, repertoire=repertoire, emitter_state=state, extra_info=info)
    return task.archive(repertoire.genotypes, repertoire.fitnesses[:, 0], repertoire.descriptors)


class _FlatNetwork:
    """The network in the form that QDax calls; genotypes are flat vectors (d,)."""

    def __init__(self, task: LibraryTask) -> None:
        self.apply = task.problem.actor


class _EnvironmentSizes:
    """What QDax' emitter asks an environment for."""

    def __init__(self, task: LibraryTask) -> None:
        env = task.task
        self.observation_size, self.action_size = env.observation_size, env.action_size
        self.state_descriptor_length = len(env.measure_names)


def _replace_old_brax() -> None:
    """Provide the type that QDax' PGA-ME imports from `brax.v1`, which current versions of Brax lack."""
    for name in ("qdax.tasks.brax.v1", "qdax.tasks.brax.v1.envs", "qdax.tasks.brax.v1.envs.base_env"):
        module: Any = sys.modules.setdefault(name, ModuleType(name))
        module.__dict__.setdefault("QDEnv", object)
