"""A task of ppga as the loops of other libraries see it.

They search the policies that MAP-Elites and PGA-ME search here, with the same normalizer, evaluation and
cells, so only the loop differs. `docs/benchmarks.md` lists the loops' settings; none of them is tuned.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np

import ppga
from ppga.archives import Archive
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.problems import PolicyProblem
from ppga.rollouts import Evaluate, Evaluator, LocalExecutor, Scores, Transitions
from ppga.runs.build import make_algorithm, make_problem
from ppga.runs.results import to_archive
from ppga.storage import NumpyArray
from ppga.tasks import Environment, make_task

FAILED = -1e6
"""Objective of a policy whose physics diverged; such policies are not counted as elites."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the loops' iterations.

    Attributes:
        batch: policies that QDax' loops evaluate at once.
        critic_steps: gradient steps of PGA-ME's critics in an iteration.
        policy_steps: gradient steps of PGA-ME for a policy.
        buffer: transitions in PGA-ME's replay buffer.
        emitters: emitters of CMA-MAE.
        emitter_batch: policies that each emitter evaluates at once.
    """

    batch: int = 100
    critic_steps: int = 300
    policy_steps: int = 100
    buffer: int = 1_000_000
    emitters: int = 5
    emitter_batch: int = 36


SIZES = {"smoke": Sizes(batch=4, critic_steps=2, policy_steps=2, buffer=400, emitters=2, emitter_batch=4)}
"""Preset -> sizes, where they are not the default ones."""
Report = Callable[[int, float, float], bool]
"""Called after each iteration with control steps so far, QD-score and coverage; false ends the loop."""


class RecordingExecutor(LocalExecutor):
    """Keeps the transitions of the last evaluation, for learners of other libraries.

    Attributes:
        transitions: those of each policy's first episode, (n, t, ...).
    """

    transitions: Transitions | None = None

    def evaluator(
        self,
        task: Environment,
        network: Network,
        episodes: int,
        sample_actions: bool,
        store_transitions: bool,  # noqa: ARG002
    ) -> Evaluate:
        """See `Executor`."""
        evaluator = Evaluator(task, network, episodes, sample_actions, store_transitions=True)

        def evaluate(policies: Policy, key: Any, active: NumpyArray | None) -> tuple[Scores, None]:
            scores, self.transitions = evaluator(policies, key, active)
            return scores, None

        return evaluate


class LibraryTask:
    """Evaluation of solutions, random numbers, and reports for a loop of another library.

    Args:
        task: name of the task.
        preset: name of the preset of network and simulation.
        report: called after every iteration.
        record: whether the loop needs transitions.

    Attributes:
        task: the task.
        problem: the task as a problem.
        sizes: sizes of the loop's iterations.
        env_steps: control steps so far.
    """

    def __init__(self, task: str, preset: str, report: Report, record: bool = False) -> None:
        config, _ = ppga.preset(preset, task, "map-elites")
        self.executor = RecordingExecutor() if record else LocalExecutor()
        self.task = make_task(task, **asdict(config.simulation))
        problem = make_problem(self.task, config, self.executor)
        assert isinstance(problem, PolicyProblem)
        self.problem = problem
        self.sizes = SIZES.get(preset, Sizes())
        self._report = report
        self._algorithm = make_algorithm(problem, config)  # for the normalizer and the archive's description
        self._algorithm.start()
        self._episodes = config.evaluation.episodes
        self.env_steps, self._key = self._algorithm.env_steps, jax.random.key(1)

    def key(self) -> Any:
        """A new random key."""
        self._key, key = jax.random.split(self._key)
        return key

    def evaluate(self, solutions: Any) -> tuple[NumpyArray, NumpyArray]:
        """Objectives (n,) and measures (n, k) of policies (n, d)."""
        scores = self.problem.evaluate(
            self._algorithm.problem_state, np.asarray(solutions), self.key(), self._episodes
        )
        self.env_steps += scores.env_steps
        return np.nan_to_num(scores.objective, nan=FAILED), scores.measures

    def transitions(self) -> Mapping[str, NumpyArray]:
        """Transitions of the last evaluation, normalized; always the same number of rows.

        Where episodes were short, steps are repeated in turn.
        """
        assert isinstance(self.executor, RecordingExecutor)
        recorded = self.executor.transitions
        assert recorded is not None
        taken = np.asarray(recorded.taken)
        rows = np.resize(np.flatnonzero(taken), taken.size)
        flat = {
            name: np.asarray(values).reshape(taken.size, *values.shape[2:])[rows]
            for name, values in vars(recorded).items()
        }
        normalize = self._algorithm.problem_state.normalizer.normalize
        for name in ("observation", "next_observation"):
            flat[name] = np.asarray(normalize(flat[name]))
        return flat

    def report(self, objectives: Any) -> bool:
        """Report the elites' objectives (n,) after an iteration; returns whether to continue."""
        objectives = np.asarray(objectives, np.float64)
        objectives = objectives[objectives > FAILED]
        qd_score = float((objectives - self.problem.qd_offset).sum())
        coverage = len(objectives) / math.prod(self.problem.archive_shape)
        return self._report(self.env_steps, qd_score, coverage)

    def archive(self, solution: Any, objective: Any, measures: Any) -> Archive:
        """An archive of ppga with these elites (n, ...)."""
        elites = {"solution": solution, "objective": objective, "measures": measures}
        occupied = np.asarray(objective) > FAILED
        rows = {name: np.asarray(values, np.float32)[occupied] for name, values in elites.items()}
        shared = self.problem.stored_fields(self._algorithm.problem_state)
        count = int(occupied.sum())
        rows |= {name: np.repeat(values[None], count, axis=0) for name, values in shared.items()}
        return to_archive(self._algorithm).with_elites(rows)
