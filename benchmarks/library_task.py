"""A task of ppga as the loops of other libraries see it.

They search the policies that MAP-Elites and PGA-ME search here, with the same normalizer, evaluation and
cells, so only the loop differs. `docs/benchmarks.md` lists the loops' settings: those of their papers, which
are not tuned for our tasks.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

import ppga
from ppga.archives import Archive
from ppga.policies.network import Network
from ppga.policies.policy import Policy
from ppga.problems import PolicyProblem
from ppga.rollouts import Evaluate, Evaluator, EvaluatorSettings, LocalExecutor, Scores, Transitions
from ppga.runs.build import make_algorithm, make_problem
from ppga.runs.results import to_archive
from ppga.storage import NumpyArray
from ppga.tasks import Environment, make_task

FAILED = -1e6
"""Objective of a policy whose physics diverged; such policies are not counted as elites."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the loops' iterations; the defaults are those of the papers.

    Attributes:
        batch: policies that QDax' MAP-Elites and PGA-ME evaluate at once.
        critic_steps: gradient steps of PGA-ME's critics in an iteration.
        policy_steps: gradient steps of PGA-ME for a policy.
        buffer: transitions in the replay buffers of PGA-ME and DCRL-ME.
        dcrl_batches: policies that DCRL-ME makes at once: by variation, by policy gradient, and of its actor.
        dcrl_critic_steps: gradient steps of DCRL-ME's critics in an iteration.
        dcrl_policy_steps: gradient steps of DCRL-ME for a policy.
        ascii_batch: policies that ASCII-ME evaluates at once.
        ascii_steps: gradient steps of ASCII-ME for a policy.
        emitters: emitters of CMA-MAE.
        emitter_batch: policies that each emitter evaluates at once.
        samples: policies by which OpenAI-ES estimates the gradients of CMA-MAEGA, in mirrored pairs.
        branches: policies of CMA-MAEGA along its gradients.
    """

    batch: int = 100
    critic_steps: int = 300
    policy_steps: int = 100
    buffer: int = 1_000_000
    dcrl_batches: tuple[int, int, int] = (128, 64, 64)
    dcrl_critic_steps: int = 3000
    dcrl_policy_steps: int = 150
    ascii_batch: int = 256
    ascii_steps: int = 32
    emitters: int = 5
    emitter_batch: int = 40
    samples: int = 100
    branches: int = 99


SMOKE = Sizes(
    batch=4, critic_steps=2, policy_steps=2, buffer=400, dcrl_batches=(2, 2, 2), dcrl_critic_steps=2,
    dcrl_policy_steps=2, ascii_batch=4, ascii_steps=2, emitters=2, emitter_batch=4, samples=4, branches=4,
)  # fmt: skip
SIZES = {"smoke": SMOKE}
"""Preset -> sizes, where they are not the default ones."""
Report = Callable[[int, float, float], bool]
"""Called after each iteration with control steps so far, QD-score and coverage; false ends the loop."""


class RecordingExecutor(LocalExecutor):
    """Keeps the transitions of the last evaluation, for learners of other libraries.

    Attributes:
        transitions: (n, episodes, t, ...).
    """

    transitions: Transitions | None = None

    def evaluator(self, task: Environment, network: Network, settings: EvaluatorSettings) -> Evaluate:
        """See `Executor`."""
        evaluator = Evaluator(task, network, replace(settings, store_transitions=True))

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
        seed: random seed.
        record: whether the loop needs the steps of episodes.

    Attributes:
        task: the task.
        problem: the task as a problem.
        sizes: sizes of the loop's iterations.
        env_steps: control steps so far.
    """

    def __init__(self, task: str, preset: str, report: Report, seed: int, record: bool = False) -> None:
        config, _ = ppga.preset(preset, task, "map-elites")
        config = config.replace(seed=seed)
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
        self.env_steps, self._key = self._algorithm.env_steps, jax.random.key(seed)

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

    def trajectories(self) -> dict[str, NumpyArray]:
        """Steps of each policy's first episode in the last evaluation, with normalized observations.

        Returns:
            The fields (n, t, ...) of `Transitions`; 0 in steps that were not taken.
        """
        assert isinstance(self.executor, RecordingExecutor)
        recorded = self.executor.transitions
        assert recorded is not None
        fields = {name: np.array(values[:, 0]) for name, values in vars(recorded).items()}
        normalize = self._algorithm.problem_state.normalizer.normalize
        for name in ("observation", "next_observation"):
            fields[name] = np.array(normalize(fields[name]))
        for values in fields.values():
            values[~np.asarray(recorded.taken[:, 0])] = 0
        return fields

    def transitions(self) -> dict[str, NumpyArray]:
        """Transitions (n, t, ...) of the last evaluation, with normalized observations.

        The steps of a short episode are repeated in turn, as if its policy had played it again; QDax' own
        environments restart when an episode ends.
        """
        fields = self.trajectories()
        n, most = fields["taken"].shape
        lengths = np.maximum(fields["taken"].sum(axis=1), 1)
        steps = np.arange(most) % lengths[:, None]
        return {name: values[np.arange(n)[:, None], steps] for name, values in fields.items()}

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
