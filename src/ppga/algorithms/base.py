"""Base of all algorithms: settings, counters, evaluation, the archive, and a state that can be saved."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from ppga import random
from ppga.archives import ArchiveConfig, EliteArchive, SoftAddition, SoftArchive, SoftArchiveConfig
from ppga.archives.statistics import STATISTICS
from ppga.config import (
    LoggingConfig,
    SimulationConfig,
    check_whole,
    common,
    from_json,
    replace_nested,
    to_json,
)  # fmt: skip
from ppga.errors import InputError
from ppga.limits import MOST_POLICIES
from ppga.problems import Cost, Evaluation, LearningReport, PolicyNetworkConfig, Problem
from ppga.rollouts import Executor
from ppga.search import Confirmation, ConfirmationConfig, EvaluationConfig
from ppga.storage import NumpyArray, check_arrays, like, whole
from ppga.tasks import Environment


@dataclass(frozen=True)
class AlgorithmConfig:
    """Settings that every algorithm has; each config adds its own. A section that is None is absent.

    Attributes:
        algorithm: name in the registry.
        seed: seed of all randomness.
        evaluation: first evaluation of candidates.
        confirm: second evaluation of candidates that would become elites.
        archive: cells of the archive.
        network: hidden layers of the networks.
        simulation: how the task is simulated.
        log: what a run writes.
        cluster: where rollouts run: none (this process, one device), ray (worker processes on the CPUs of one
            or more machines) or jax (all devices of JAX, which also share the gradient steps).
        init_from: run, archive, policy or pretrained:NAME whose elites the run starts with.
        label: name of the run in reports; the algorithm's name by default.
    """

    algorithm: ClassVar[str]

    seed: int = common(0)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    confirm: ConfirmationConfig | None = field(default_factory=ConfirmationConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    network: PolicyNetworkConfig = field(default_factory=PolicyNetworkConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    log: LoggingConfig = field(default_factory=LoggingConfig)
    cluster: Literal["none", "ray", "jax"] = "none"
    init_from: str | None = None
    label: str | None = None

    def replace(self, **changes: Any) -> Self:
        """The settings with changes, by dotted names: `config.replace(**{"ppo.gamma": 0.98})`.

        Raises:
            InputError: there is no such setting; the closest one is suggested.
        """
        return replace_nested(self, changes)

    def check(self, measures: int) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures."""
        from_json(type(self), to_json(self))  # types, and names of choices
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must lie in [0, 2^32), got {self.seed}.")
        for part in dataclasses.fields(self):
            section = getattr(self, part.name)
            if dataclasses.is_dataclass(section) and part.name != "archive":
                section.check()  # type: ignore[union-attr]  # every section has it
        self.archive.check(measures)


def check_policies(name: str, value: int, least: int = 1) -> None:
    """Raise an InputError unless an iteration can evaluate that many policies, and rank at least `least`."""
    check_whole(name, value, least, MOST_POLICIES)


def most_episodes(config: AlgorithmConfig, policies: int, batches: int = 1) -> int:
    """Most episodes that evaluating policies, and adding them to the archive in some batches, takes."""
    first, confirm = policies * config.evaluation.episodes, config.confirm
    return first if confirm is None else first + (policies + batches * confirm.recheck) * confirm.episodes


class Component(Protocol):
    """A part of an algorithm that has a state of its own."""

    def state(self) -> dict[str, NumpyArray]:
        """Named arrays for checkpoints."""
        ...

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`, or raise an InputError if it cannot be one."""
        ...


class Algorithm:
    """Base class of all algorithms.

    An algorithm's state consists of arrays: the problem's state (`problem_state`), the archive, the counters
    and the states of its components. Random numbers depend on the seed and the iteration only, so there is no
    generator to save.

    Args:
        problem: what is searched.
        config: settings.
        elites: archive of the results.
    """

    summary: ClassVar[str]
    """One line for `ppga algorithms`."""
    supports_analytic_problems: ClassVar[bool] = False
    """Whether it also searches problems without rollouts, such as the sphere."""
    soft_archive: ClassVar[type[SoftArchive]] = SoftArchive
    """Class of its soft archive."""
    soft: SoftArchive | None = None
    """Its soft archive, if the config has settings of one."""

    def __init__(self, problem: Any, config: Any, elites: EliteArchive) -> None:
        self.problem, self.config, self.elites = problem, config, elites
        if isinstance(config.archive, SoftArchiveConfig):
            self.soft = self.soft_archive(elites, config.archive)
        self.iteration = self.evaluations = self.episodes = self.env_steps = 0
        self.restarts = self.nonfinite = 0
        self.problem_state: Any = None  # from `start` or `load_state`
        self.times: dict[str, float] = {}
        self.warnings: list[str] = []
        self.confirmation: Confirmation | None = None
        if config.confirm is not None:
            self.confirmation = Confirmation(
                config.confirm, config.evaluation.episodes, problem, elites, self.count
            )

    @classmethod
    def make_problem(
        cls, task: Environment, config: Any, executor: Executor | None, progress: Callable[[], None]
    ) -> Problem:
        """The problem that this algorithm makes of a task.

        Args:
            task: the task.
            config: settings of this algorithm.
            executor: where rollouts and updates run; this process if None.
            progress: called now and then, for a display.
        """
        raise NotImplementedError

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Initialize a new run, from elites (n, ...) of another run if there are any."""
        self.problem_state = self.problem.init(self.key("start"))
        self.env_steps += self.problem.warmup_steps
        if elites is not None:
            self.add_initial_elites(elites)

    def add_initial_elites(self, elites: Mapping[str, NumpyArray]) -> None:
        """Add elites (n, ...) of another run to the archives and continue from the best one."""
        names = ("solution", "objective", "measures", *STATISTICS, *self.problem.fields)
        fields = {name: elites[name] for name in names if name in elites}
        added = self.elites.add(**fields, episodes=elites.get("episodes", 1))
        if not added.any():
            raise InputError("no elite of the initial archive survives --evaluation.min-survival.")
        if self.soft is not None:
            rows = {name: values[added] for name, values in fields.items()}
            self.soft.add(rows["solution"], rows["objective"], rows["measures"], rows)
        best, key = self.elites.best(), self.key("start at elite")
        self.problem_state = self.problem.start_at(self.problem_state, best, key)

    def cost(self) -> Cost:
        """Cost of an iteration."""
        raise NotImplementedError

    def iterate(self) -> dict[str, Any]:
        """Run one iteration and return its metrics."""
        raise NotImplementedError

    def step(self) -> dict[str, Any]:
        """Run one iteration and return its metrics together with those that all algorithms have."""
        self.iteration += 1
        self.times, self.warnings = {}, []
        restarts = self.restarts
        record = self.iterate()
        if self.confirmation is not None and self.confirmation.config.recheck:
            record["moved"], self.confirmation.moved = self.confirmation.moved, 0
        self.reset_nonfinite_learners()
        self.warnings += sorted(self.problem.simulation_warnings)
        return {
            "iteration": self.iteration,
            "evaluations": self.evaluations,
            "episodes": self.episodes,
            "env_steps": self.env_steps,
            "qd_offset": self.elites.qd_offset,
            **self.elites.metrics(),
            "restarts": self.restarts,
            "restarted": self.restarts - restarts,
            "nonfinite": self.nonfinite,
            **record,
        }

    def reset_nonfinite_learners(self) -> None:
        """Reinitialize learners whose parameters are not finite."""
        self.problem_state, reset = self.problem.reset_nonfinite(self.problem_state, self.key("reinitialize"))
        if reset.any():
            self.env_steps += self.problem.warmup_steps
        for number in np.flatnonzero(reset):
            self.nonfinite += 1
            self.warnings.append(f"learner {number} has parameters that are not finite; it was reinitialized")
            self.restart()

    def restart(self) -> None:
        """Restart the search policy, if there is one; also called for every reinitialized learner."""

    # For the algorithms.

    def key(self, stream: str) -> jax.Array:
        """Key of a named random stream in this iteration; each name is used once in an iteration."""
        return random.key(self.config.seed, self.iteration, stream)

    def generator(self, stream: str) -> np.random.Generator:
        """NumPy's generator of a named random stream in this iteration."""
        return random.generator(self.config.seed, self.iteration, stream)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the duration of the block to this iteration's times."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - begin

    def count(self, report: LearningReport | Evaluation) -> None:
        """Add the cost of a learning phase or of an evaluation to the counters."""
        self.env_steps += report.env_steps
        if isinstance(report, Evaluation):
            self.evaluations += report.policies
            self.episodes += report.episodes
        else:
            self.nonfinite += report.nonfinite
            self.warnings += report.warnings

    def evaluate(self, solutions: NumpyArray, stream: str = "evaluate") -> Evaluation:
        """First evaluation of solutions (n, d)."""
        with self.timed("evaluate"):
            episodes = self.config.evaluation.episodes
            scores: Evaluation = self.problem.evaluate(
                self.problem_state, solutions, self.key(stream), episodes
            )
        self.count(scores)
        finite = np.isfinite(scores.objective) & np.isfinite(scores.measures).all(axis=1)
        self.nonfinite += int((~finite).sum())
        return scores

    def add_elites(
        self,
        solutions: NumpyArray,
        scores: Evaluation,
        stream: str = "confirm",
        fields: Mapping[str, NumpyArray] | None = None,
    ) -> int:
        """Add evaluated solutions (n, d) to the archive, after confirmation if that is configured.

        Args:
            solutions: (n, d).
            scores: their first evaluation.
            stream: name of the random stream of the confirmation.
            fields: (n, ...) what the archive stores with them; what the problem stores by default.

        Returns:
            The number of new elites.
        """
        if fields is None:
            shared = self.problem.stored_fields(self.problem_state)
            fields = {
                name: np.broadcast_to(values, (len(solutions), *values.shape))
                for name, values in shared.items()
            }
        candidates = {"solution": solutions, **fields}
        final, episodes = scores.arrays(), self.config.evaluation.episodes
        if self.confirmation is not None:
            with self.timed("confirm"):
                episodes = self.confirmation.config.episodes
                final = self.confirmation.confirm(candidates, scores, self.key(stream))
        with self.timed("archive"):
            return int(self.elites.add(**candidates, **final, episodes=episodes).sum())

    def add_entries(self, solutions: NumpyArray, scores: Evaluation) -> SoftAddition:
        """Add evaluated solutions (n, d) to the soft archive, with what restarts at them need."""
        assert self.soft is not None
        fields = self.problem.stored_fields(self.problem_state) if self.soft.entries else None
        return self.soft.add(solutions, scores.objective, scores.measures, fields)

    # Checkpoints.

    def counters(self) -> dict[str, int]:
        """Counters since the start of the run."""
        names = ("iteration", "evaluations", "episodes", "env_steps", "restarts", "nonfinite")
        return {name: getattr(self, name) for name in names}

    def components(self) -> dict[str, Component]:
        """Parts with a state of their own, by the prefix of their arrays."""
        return {"archive": self.elites}

    def state(self) -> dict[str, NumpyArray]:
        """Named arrays from which the run can be resumed; the problem's by their paths in its state."""
        return {
            **{name: whole(leaf) for name, leaf in _named_leaves(self.problem_state)},
            **{f"external/{name}": values for name, values in self.problem.external_state().items()},
            **{
                f"{prefix}/{name}": values
                for prefix, part in self.components().items()
                for name, values in part.state().items()
            },
            "counters": np.array(list(self.counters().values()), np.int64),
        }

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`.

        Raises:
            InputError: it cannot be a state of this algorithm; the message says why.
        """
        leaves, structure = self._problem_state_specs
        parts = self.components()
        prefixes = tuple(f"{prefix}/" for prefix in ("external", *parts))
        components = {name: like(values) for name, values in state.items() if name.startswith(prefixes)}
        counters = {"counters": (np.dtype(np.int64), (len(self.counters()),))}
        check_arrays(state, {**{name: like(leaf) for name, leaf in leaves}, **components, **counters})
        if (state["counters"] < 0).any():
            raise InputError(f"counters must be at least 0, got {state['counters'].tolist()}.")
        arrays = [jnp.asarray(state[name]) for name, _ in leaves]
        self.problem_state = jax.tree.unflatten(structure, arrays)
        self.problem.load_external_state(_under("external/", state))
        for prefix, part in parts.items():
            try:
                part.load_state(_under(f"{prefix}/", state))
            except InputError as error:
                raise InputError(f"{prefix}: {error}") from None
        for name, value in zip(self.counters(), state["counters"], strict=True):
            setattr(self, name, int(value))

    @cached_property
    def _problem_state_specs(self) -> tuple[list[tuple[str, jax.ShapeDtypeStruct]], Any]:
        """Names, types and shapes of the arrays in the problem's state, and its structure."""
        specs = jax.eval_shape(self.problem.init, self.key("start"))
        return _named_leaves(specs), jax.tree.structure(specs)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Arrays of the problem's state with their names, such as problem/policy/parameters."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    paths = (jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves)
    return [(f"problem/{path}".rstrip("/"), leaf) for path, (_, leaf) in zip(paths, leaves, strict=True)]


def _under(prefix: str, state: Mapping[str, NumpyArray]) -> dict[str, NumpyArray]:
    """Arrays of a state whose names start with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
