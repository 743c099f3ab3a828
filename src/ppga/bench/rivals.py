"""Loops of other libraries on a task of ours: QDax' MAP-Elites and PGA-ME, pyribs' CMA-MAE.

They search the policies that our MAP-Elites and PGA-ME search, seen, judged and counted alike: what differs
is the loop. PGA-ME has the defaults of QDax; the other settings are chosen here, and none is tuned.
`docs/benchmarks.md` lists them.
"""

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ribs.archives import GridArchive
from ribs.emitters import EvolutionStrategyEmitter
from ribs.schedulers import Scheduler

from ppga.algorithms.map_elites import deterministic_actor
from ppga.algorithms.policy_problem import PolicyProblem
from ppga.archives import Archive
from ppga.errors import import_extra
from ppga.rollouts import Transitions
from ppga.runs import preset
from ppga.runs.loop import make_algorithm, to_archive
from ppga.storage import NumpyArray
from ppga.tasks import make_task

LOST = -1e6
"""Objective of a policy whose physics diverged; such ones are not counted."""


@dataclass(frozen=True)
class Sizes:
    """How large a rival's iterations are.

    Attributes:
        batch: policies that QDax' loops judge at once.
        critic_steps: of PGA-ME, an iteration.
        policy_steps: of PGA-ME, a policy.
        buffer: transitions that PGA-ME remembers.
        emitters: of CMA-MAE.
        emitted: policies that each of them judges at once.
    """

    batch: int = 100
    critic_steps: int = 300
    policy_steps: int = 100
    buffer: int = 1_000_000
    emitters: int = 5
    emitted: int = 36


SIZES = {"smoke": Sizes(batch=4, critic_steps=2, policy_steps=2, buffer=400, emitters=2, emitted=4)}
"""Preset -> sizes, where they are not the usual ones."""
Tell = Callable[[int, float, float], bool]
"""Called after every iteration with control steps so far, QD-score and coverage; says whether to go on."""


class Watched(PolicyProblem):
    """Policies that nobody learns in here; what they went through is for others to learn from."""

    remembers = True
    film: Transitions

    def remember(self, film: Transitions) -> None:
        """Keep the newest."""
        self.film = film


class Field:
    """The ground that rivals run on.

    Args:
        name: the task.
        settings: the preset, for network and simulation.
        tell: called after every iteration.
        watch: whether experience is needed.
    """

    def __init__(self, name: str, settings: str, tell: Tell, watch: bool = False) -> None:
        config, _ = preset(settings, name, "map-elites")
        self.task = make_task(name, **asdict(config.simulation))
        self.actor = deterministic_actor(self.task, config.network.actor)
        self.problem = (Watched if watch else PolicyProblem)(self.task, config.search, self.actor)
        self.sizes = SIZES.get(settings, Sizes())
        self._tell = tell
        self._algorithm = make_algorithm(self.problem, config)
        self._algorithm.start()
        self.steps, self._key = self._algorithm.env_steps, jax.random.key(1)

    def key(self) -> Any:
        """A new one."""
        self._key, one = jax.random.split(self._key)
        return one

    def score(self, solutions: Any) -> tuple[NumpyArray, NumpyArray]:
        """Objectives (n,) and measures (n, k) of policies (n, d)."""
        judged = self.problem.judge(self._algorithm.search, np.asarray(solutions)[None], self.key())
        self.steps += judged.env_steps
        return np.nan_to_num(judged.objective, nan=LOST), judged.measures

    def experience(self) -> Mapping[str, NumpyArray]:
        """What the policies went through that were scored last, as many rows whatever they lived.

        Where episodes were short, steps are repeated in turn.
        """
        assert isinstance(self.problem, Watched)
        film = self.problem.film
        rows = np.resize(np.flatnonzero(film.lived), film.lived.size)
        flat = {
            name: np.asarray(values).reshape(film.lived.size, *values.shape[2:])[rows]
            for name, values in vars(film).items()
        }
        see = self._algorithm.search.observation.normalise
        seen = {name: np.asarray(see(flat[name])) for name in ("observation", "next_observation")}
        return flat | seen

    def goes_on(self, objectives: NumpyArray) -> bool:
        """Tell of the elites' objectives (n,) after an iteration; whether there is time for another."""
        kept = np.asarray(objectives, np.float64)
        kept = kept[kept > LOST]
        score = float((kept - self.problem.qd_offset).sum())
        return self._tell(self.steps, score, len(kept) / math.prod(self.problem.archive_shape))

    def archive(self, solution: Any, objective: Any, measures: Any) -> Archive:
        """An archive of ours with these elites."""
        found = np.asarray(objective) > LOST
        rows = {"solution": solution, "objective": objective, "measures": measures}
        rows = {name: np.asarray(values, np.float32)[found] for name, values in rows.items()}
        seeing = self.problem.kept(self._algorithm.search)
        rows |= {name: np.repeat(values[:1], found.sum(), axis=0) for name, values in seeing.items()}
        return to_archive(self._algorithm).filled(rows)


def pyribs_cma_mae(name: str, settings: str, tell: Tell) -> Archive:
    """CMA-MAE with separable CMA-ES, by pyribs' scheduler."""
    field = Field(name, settings, tell)
    problem, sizes = field.problem, field.sizes
    grid: dict[str, Any] = {
        "solution_dim": problem.solution_size, "dims": problem.archive_shape,
        "ranges": problem.measure_ranges, "dtype": np.float32,
    }  # fmt: skip
    soft = GridArchive(**grid, learning_rate=0.01, threshold_min=problem.qd_offset)
    result = GridArchive(**grid)
    emitters = [
        EvolutionStrategyEmitter(
            soft, x0=first, sigma0=0.02, ranker="imp", es="sep_cma_es", selection_rule="mu",
            restart_rule="basic", batch_size=sizes.emitted, seed=number,
        )
        for number, first in enumerate(problem.random(field.key(), sizes.emitters))
    ]  # fmt: skip
    scheduler = Scheduler(soft, emitters, result_archive=result)
    while True:
        scheduler.tell(*field.score(scheduler.ask()))
        if not field.goes_on(result.data("objective")):
            return field.archive(*(result.data(what) for what in ("solution", "objective", "measures")))


def qdax_map_elites(name: str, settings: str, tell: Tell) -> Archive:
    """MAP-Elites with iso+line variation, by QDax."""
    field = Field(name, settings, tell)
    standard = import_extra("qdax.core.emitters.standard_emitters", "qdax")
    emitter = standard.MixingEmitter(
        mutation_fn=None, variation_fn=_iso_line(), variation_percentage=1.0, batch_size=field.sizes.batch
    )
    return _qdax(field, emitter, dict)


def qdax_pga_me(name: str, settings: str, tell: Tell) -> Archive:
    """PGA-ME, by QDax."""
    field = Field(name, settings, tell, watch=True)
    _without_old_brax()
    pga_me = import_extra("qdax.core.emitters.pga_me_emitter", "qdax")
    buffers = import_extra("qdax.core.neuroevolution.buffers.buffer", "qdax")
    sizes = field.sizes
    config = pga_me.PGAMEConfig(
        env_batch_size=sizes.batch, num_critic_training_steps=sizes.critic_steps,
        num_pg_training_steps=sizes.policy_steps, replay_buffer_size=sizes.buffer,
    )  # fmt: skip

    def transitions() -> dict[str, Any]:
        lived = field.experience()
        return {
            "transitions": buffers.QDTransition(
                obs=lived["observation"], next_obs=lived["next_observation"], rewards=lived["reward"],
                dones=lived["terminated"].astype(np.float32), actions=lived["action"],
                truncations=np.zeros(len(lived["reward"]), np.float32),
                state_desc=lived["proxies"], next_state_desc=lived["proxies"],
            )
        }  # fmt: skip

    return _qdax(field, pga_me.PGAMEEmitter(config, _Flat(field), _Sizes(field), _iso_line()), transitions)


def _iso_line() -> Any:
    operators = import_extra("qdax.core.emitters.mutation_operators", "qdax")
    return partial(operators.isoline_variation, iso_sigma=0.005, line_sigma=0.05)


def _qdax(field: Field, emitter: Any, extra: Callable[[], dict[str, Any]]) -> Archive:
    """QDax' loop around an emitter, asked and told; what it computes itself is compiled."""
    map_elites = import_extra("qdax.core.map_elites", "qdax")
    containers = import_extra("qdax.core.containers.mapelites_repertoire", "qdax")
    loop = map_elites.MAPElites(None, emitter, lambda _: {})
    ask, tell = jax.jit(loop.ask), jax.jit(loop.tell, donate_argnames=("emitter_state",))
    low, high = np.array(field.problem.measure_ranges).T
    cells = containers.compute_euclidean_centroids(field.problem.archive_shape, list(low), list(high))

    def told(genotypes: Any) -> dict[str, Any]:
        objective, measures = field.score(genotypes)
        return {
            "genotypes": genotypes, "fitnesses": objective[:, None], "descriptors": measures,
            "extra_scores": extra(),
        }  # fmt: skip

    first = told(field.problem.random(field.key(), field.sizes.batch))
    repertoire, state, _ = loop.init_ask_tell(**first, centroids=cells, key=field.key())
    state = jax.tree.map(jnp.copy, state)  # or parts that are the same would be given away twice
    while field.goes_on(np.asarray(repertoire.fitnesses)[:, 0]):
        genotypes, info = ask(repertoire, state, field.key())
        repertoire, state, _ = tell(
            **told(genotypes), repertoire=repertoire, emitter_state=state, extra_info=info
        )
    return field.archive(repertoire.genotypes, repertoire.fitnesses[:, 0], repertoire.descriptors)


class _Flat:
    """Our network in the form that QDax calls: genotypes are flat vectors (d,)."""

    def __init__(self, field: Field) -> None:
        self.apply = field.actor


class _Sizes:
    """What QDax' emitter asks an environment for."""

    def __init__(self, field: Field) -> None:
        self.observation_size, self.action_size = field.task.observation_size, field.task.action_size
        self.state_descriptor_length = len(field.task.measure_names)


def _without_old_brax() -> None:
    """Let QDax' PGA-ME be imported beside a Brax without `brax.v1`, of which it wants the name of a type."""
    for name in ("qdax.tasks.brax.v1", "qdax.tasks.brax.v1.envs", "qdax.tasks.brax.v1.envs.base_env"):
        module: Any = sys.modules.setdefault(name, ModuleType(name))
        module.__dict__.setdefault("QDEnv", object)
