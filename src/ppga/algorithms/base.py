"""What all algorithms share: counters, phases of an iteration, a state that can be saved, and the
archives.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from ppga import random
from ppga.algorithms.problem import Effort, Judgement, Problem
from ppga.archives import ArchivePair, Guidance
from ppga.archives.pair import elites_of
from ppga.errors import InputError, at_least_one
from ppga.limits import MOST_POLICIES
from ppga.policies import Policy
from ppga.storage import Like, NumpyArray, check_arrays, like, whole
from ppga.tasks import Environment

AT_ONCE = 128
"""Episodes that are worth playing at once."""


@dataclass(frozen=True)
class SearchConfig:
    """How policies are branched, judged and walked.

    Attributes:
        branches: policies branched off each search policy in an iteration (lambda).
        episodes: episodes a policy is judged by.
        jacobian_updates: PPO updates that estimate the gradients (N1).
        walk_updates: PPO updates that move the search policy (N2).
        sigma0: xNES' step size at start and restart.
        mean: xNES' mean at start and restart: zero, or random (f in [0, 2], measures in [-2, 2]).
        clip_objective: never walk against the reward: a negative coefficient of f counts as 0.
        reward_share: f's coefficient in a walk is at least this times the length of the measures'; 0 has no
            effect.
        reward_first: iterations at the beginning whose walk follows the reward alone.
        first_updates: PPO updates of each of those walks; 0: as many as of the others.
        mix: how the walk adds up reward and measures: scaled (each by the spread of its returns) or raw.
        judge: act by the policy's mean, or sample.
        confirm: episodes by which a policy that would become an elite is judged once more, to be kept for
            what it is worth then; 0: the first judgement counts, and luck fills cells.
        steady: how far an elite's measures may spread over the confirming episodes (standard deviation, in
            units of their ranges): what differs from day to day belongs in no cell; 0: any distance.
        recheck: elites judged once more in each iteration, those first that were judged by the fewest
            episodes; each goes where it is by the mean of all its episodes. 0: none.
        leg: iterations after which a search policy is restarted even if it still finds something; 0: never,
            whatever `first_leg` says.
        first_leg: iterations of the first leg, which begins with nothing; 0: as many as of the others.
        reward_every: the second leg, and every N-th after it, begins at the best elite and follows the
            reward alone, with `first_updates`, as the beginning does; 0: none.
        reward_leg: iterations of such a leg; 0: as many as of the others.
        patience: iterations without a new elite after which a search policy is restarted; 0: only when none
            of its branches entered the soft archive, as in the paper.
        restart_at: a random elite, by preference one with empty cells around it (sparse), or one that is good
            besides (promising).
        emitters: search policies at once.
        strategy: what adapts the gradient coefficients: xnes, or cma-es as in CMA-MAEGA.
        step: how the search policy moves: by walking (PPO, N2), or by recombining the best branches.
        iso_sigma: variation by iso+line: noise of every parameter.
        line_sigma: and along the line between two parents.
        gradient_share: share of the new policies that are varied by gradients (pga-me, qdpg).
        es_samples: policies around the search policy, in mirrored pairs, that tell how measures change
            (cma-maega-td3-es).
        es_sigma: how far from it they are.
    """

    branches: int = 64
    episodes: int = 2
    jacobian_updates: int = 5
    walk_updates: int = 10
    sigma0: float = 2.0
    mean: Literal["zero", "random"] = "zero"
    clip_objective: bool = False
    reward_share: float = 0.0
    reward_first: int = 0
    first_updates: int = 0
    mix: Literal["scaled", "raw"] = "scaled"
    judge: Literal["mean", "sample"] = "mean"
    confirm: int = 0
    steady: float = 0.0
    recheck: int = 0
    leg: int = 0
    first_leg: int = 0
    reward_every: int = 0
    reward_leg: int = 0
    patience: int = 0
    restart_at: Literal["random", "sparse", "promising"] = "random"
    emitters: int = 1
    strategy: Annotated[Literal["xnes", "cma-es"], tyro.conf.arg(aliases=("--strategy",))] = "xnes"
    step: Annotated[Literal["walk", "recombination"], tyro.conf.arg(aliases=("--step",))] = "walk"
    iso_sigma: float = 0.005
    line_sigma: float = 0.05
    gradient_share: float = 0.5
    es_samples: int = 64
    es_sigma: float = 0.02

    def check(self) -> None:
        """Raise an InputError for settings that cannot work."""
        for name in ("branches", "episodes", "jacobian_updates", "walk_updates", "emitters"):
            at_least_one(name, getattr(self, name))
        if max(self.emitters * max(self.branches, self.es_samples), self.recheck) > MOST_POLICIES:
            raise InputError(
                f"an iteration evaluates at most {MOST_POLICIES:,} policies; emitters is {self.emitters:,}, "
                f"branches {self.branches:,}, es_samples {self.es_samples:,} and recheck {self.recheck:,}."
            )
        for name in ("reward_share", "reward_first", "first_updates", "confirm", "steady", "recheck",
                     "leg", "first_leg", "reward_every", "reward_leg", "patience"):  # fmt: skip
            if not 0 <= getattr(self, name) < np.inf:  # NaN is not
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)}.")
        if self.branches < 2:
            raise InputError(
                f"branches must be at least 2, so that xNES has something to rank; got {self.branches}."
            )
        if self.steady and not self.confirm:
            raise InputError("steady needs confirm: how much measures spread is seen in confirming episodes.")
        for name in ("sigma0", "es_sigma"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise InputError(f"{name} must be a positive number, got {getattr(self, name)!r}.")
        for name in ("iso_sigma", "line_sigma"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise InputError(f"{name} must be at least 0, got {getattr(self, name)!r}.")
        if not 0 <= self.gradient_share <= 1:
            raise InputError(f"gradient_share must lie in [0, 1], got {self.gradient_share!r}.")
        if self.es_samples < 2 or self.es_samples % 2:
            raise InputError(f"es_samples come in mirrored pairs: an even number, got {self.es_samples}.")


@dataclass(frozen=True)
class Cost:
    """What an iteration takes, roughly and at most.

    Attributes:
        policies: that are judged.
        learning_steps: control steps to learn from, besides judging.
        multiplications: of learning.
        memory: bytes that learning needs.
    """

    policies: int
    learning_steps: int = 0
    multiplications: int = 0
    memory: int = 0


class Algorithm:
    """Base class of all algorithms.

    Everything that must survive a restart is in `state`: arrays only. Randomness comes from the seed and the
    number of the iteration, so nothing of it needs keeping.

    Args:
        problem: what to search in.
        config: how.
        archives: where what is found goes.
        seed: of all randomness.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    sections: ClassVar[tuple[str, ...]] = ()
    """Of the settings, those of the learners it uses: ppo, td3, sac."""
    td3_steps: ClassVar[tuple[str, ...]] = ("td3.critic_steps",)
    """Of the settings, those that count steps of TD3, which come in multiples of its delay."""
    gradients: ClassVar[bool] = False
    """Whether it needs a problem that has them, with search points that walk."""
    soft: ClassVar[bool] = False
    """Whether a soft archive steers it."""
    alone: ClassVar[bool] = False
    """Whether there is no such thing as several emitters."""
    anywhere: ClassVar[bool] = True
    """Whether it can search in any problem, not only where policies learn from experience."""

    @classmethod
    def on(cls, task: Environment, config: Any, progress: Callable[[], None]) -> Problem:
        """The problem it makes of a task, under a run's settings."""
        raise NotImplementedError

    @classmethod
    def agents(cls, measures: int) -> int:  # noqa: ARG003
        """How many agents share the environments of a search policy, at most."""
        return 1

    def __init__(self, problem: Problem, config: SearchConfig, archives: ArchivePair, seed: int) -> None:
        config.check()
        self.problem, self.config, self.archives, self.seed = problem, config, archives, seed
        self.iteration = self.evaluations = self.episodes = self.env_steps = 0
        self.restarts = self.nonfinite = 0
        self.search: Any = None  # the problem's state, from `start` or `load_state`
        self.times: dict[str, float] = {}
        self.warnings: list[str] = []

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Begin a new run, with elites (n, ...) of another one if there are any."""
        self.search = self.problem.start(self.key("start"))
        self.env_steps += self.problem.start_steps
        if elites is not None:
            self.begin_at(elites)

    def begin_at(self, elites: Mapping[str, NumpyArray]) -> None:
        """Take elites (n, ...) in, see as the best one does, and put search policies at the best ones."""
        wanted = ("solution", "objective", "measures", *self.problem.fields)
        self.archives.add(**{name: elites[name] for name in wanted}, episodes=elites.get("episodes", 1))
        best = np.argsort(-elites["objective"], kind="stable")
        if hasattr(self.search, "observation"):  # what comes of these elites must see as they do
            seen = Policy.of_elite({name: elites[name][best[0]] for name in wanted}).observation
            self.search = replace(self.search, observation=seen)
        if not self.gradients:
            return
        problem: Any = self.problem
        for emitter in range(self.config.emitters):
            elite = {name: elites[name][best[emitter % len(best)]] for name in wanted}
            self.search = problem.move(self.search, emitter, elite, self.key(f"start at elite {emitter}"))

    def cost(self) -> Cost:
        """What an iteration takes."""
        return Cost(self.config.branches)

    def iterate(self) -> dict[str, Any]:
        """One iteration; what is worth recording of it."""
        raise NotImplementedError

    def step(self) -> dict[str, Any]:
        """One iteration with the record that all algorithms keep."""
        self.iteration += 1
        self.times, self.warnings = {}, []
        restarts = self.restarts
        record = self.iterate()
        if self.config.recheck:
            record["moved"] = self.recheck()
        self.mend()
        self.warnings += sorted(getattr(self.problem, "simulation_warnings", ()))
        return {
            "iteration": self.iteration,
            "evaluations": self.evaluations,
            "episodes": self.episodes,
            "env_steps": self.env_steps,
            "qd_offset": self.archives.qd_offset,
            **self.archives.figures(),
            "restarts": self.restarts,
            "restarted": self.restarts - restarts,
            "nonfinite": self.nonfinite,
            **record,
        }

    def mend(self) -> None:
        """Begin anew with learners that have learnt what is not finite."""
        mend = getattr(self.problem, "mend", None)
        if mend is None:  # nobody learns there
            return
        self.search, lost = mend(self.search, self.key("reinitialize"))
        self.env_steps += self.problem.start_steps if lost.any() else 0  # new ones have looked around
        for number in np.flatnonzero(lost):
            self.nonfinite += 1
            self.warnings.append(
                f"learner {number} is lost, what it has learnt is not finite: it begins anew"
            )
            self.restart(int(number))

    def restart(self, number: int) -> None:
        """Put a learner that begins anew where it should begin."""

    # For the algorithms.

    def key(self, stream: str) -> jax.Array:
        """Key of a named random stream in this iteration; each name is used once in an iteration."""
        return random.key(self.seed, self.iteration, stream)

    def generator(self, stream: str) -> np.random.Generator:
        """The same for NumPy."""
        return random.generator(self.seed, self.iteration, stream)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what happens inside."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.times[name] = self.times.get(name, 0.0) + time.perf_counter() - begin

    def count(self, spent: Effort | Judgement) -> None:
        """Add what a phase took."""
        self.env_steps += spent.env_steps
        if isinstance(spent, Judgement):
            self.evaluations += spent.policies
            self.episodes += spent.episodes
        else:
            self.nonfinite += spent.nonfinite
            self.warnings += spent.warnings

    def judge(self, solutions: NumpyArray, key: jax.Array) -> Judgement:
        """Judge solutions (m, n, d); the judgement is flat, (m n,)."""
        with self.phase("judge"):
            judged = self.problem.judge(self.search, solutions, key)
        self.count(judged)
        finite = np.isfinite(judged.objective) & np.isfinite(judged.measures).all(axis=1)
        self.nonfinite += int((~finite).sum())
        return judged

    def guide(self, solutions: NumpyArray, judged: Judgement, rows: NumpyArray) -> Guidance:
        """Offer judged solutions (m, n, d) to the soft archive, with what the problem keeps with them.

        Args:
            solutions: of m emitters.
            judged: a judgement that holds theirs.
            rows: (m, n) which rows of it they are.
        """
        m, n, d = solutions.shape
        return self.archives.guide(
            solutions.reshape(m * n, d),
            judged.objective[rows.ravel()],
            judged.measures[rows.ravel()],
            **self.fields(np.repeat(np.arange(m), n)),
        )

    def keep(
        self,
        solutions: NumpyArray,
        judged: Judgement,
        key: jax.Array,
        fields: Mapping[str, NumpyArray] | None = None,
    ) -> NumpyArray:
        """Offer judged solutions (m, n, d) to the elitist archive; how many elites each emitter (m,) gave it.

        With `confirm`, those that would become elites are judged again first. With them the archive keeps
        the given fields (m n, ...), or what the problem keeps of each emitter.
        """
        m, n, d = solutions.shape
        flat, emitter = solutions.reshape(m * n, d), np.repeat(np.arange(m), n)
        objective, measures = judged.objective, judged.measures
        if self.config.confirm:
            with self.phase("confirm"):
                chosen = self.archives.promising(objective, measures).reshape(m, n)
                objective, measures = self._confirm(solutions, chosen, key)
        with self.phase("archive"):
            fields = self.fields(emitter) if fields is None else fields
            by = self.config.confirm or self.config.episodes
            kept = self.archives.keep(flat, objective, measures, by, **fields)
        return np.bincount(emitter[kept], minlength=m)

    def _confirm(
        self, solutions: NumpyArray, chosen: NumpyArray, key: jax.Array
    ) -> tuple[NumpyArray, NumpyArray]:
        """What the chosen (m, n) solutions are worth, judged again; NaN for the others. Flat, (m n,)."""
        m, n, _ = solutions.shape
        objective = np.full((m, n), np.nan, np.float32)
        measures = np.full((m, n, len(self.problem.measure_names)), np.nan, np.float32)
        # each emitter's chosen ones, in groups of one size: as many episodes at once as in a judgement, or
        # as keep the machine busy
        together = max(n * self.config.episodes, AT_ONCE // m)
        size = min(n, max(1, together // self.config.confirm))
        order = np.argsort(~chosen, axis=1, kind="stable")
        for number, first in enumerate(range(0, int(chosen.sum(axis=1).max(initial=0)), size)):
            columns = order[:, np.minimum(np.arange(first, first + size), n - 1)]  # (m, size)
            playing = np.take_along_axis(chosen, columns, axis=1) & (np.arange(first, first + size) < n)
            group = np.take_along_axis(solutions, columns[..., None], axis=1)
            again = self.problem.judge(
                self.search, group, jax.random.fold_in(key, number), self.config.confirm, playing
            )
            self.count(again)
            emitters, places = np.nonzero(playing)
            found = columns[emitters, places]
            steady = self._steady(again.spread).reshape(playing.shape)
            values = np.where(steady, again.objective.reshape(playing.shape), np.nan)
            objective[emitters, found] = values[playing]
            measures[emitters, found] = again.measures.reshape(*playing.shape, -1)[playing]
        return objective.reshape(m * n), measures.reshape(m * n, -1)

    def recheck(self) -> int:
        """Judge again the elites that were judged least, and put them where they are; how many moved."""
        with self.phase("confirm"):
            episodes = self.config.confirm or self.config.episodes
            cells = self.archives.doubtful(self.config.recheck)
            if not len(cells):
                return 0
            # as many at once as in confirming, whose program is compiled already; the others do not play
            size = max(self.config.recheck, AT_ONCE // episodes)
            rows = np.minimum(np.arange(size), len(cells) - 1)
            elites = elites_of(self.archives.result, cells[rows])
            playing = np.arange(size) < len(cells)
            judged = self.problem.judge_elites(elites, self.key("re-evaluate"), episodes, playing)
            self.count(judged)
            found = slice(len(cells))
            moved = self.archives.correct(cells, judged.objective[found], judged.measures[found], episodes)
        return int(moved.sum())

    def _steady(self, spread: NumpyArray) -> NumpyArray:
        """Which (n,) solutions do the same in every episode, by the spread (n, k) of their measures."""
        low, high = np.array(self.problem.measure_ranges).T
        share = np.max(spread / (high - low), axis=1, initial=0.0)
        return np.asarray((share <= self.config.steady) | (self.config.steady == 0))

    def fields(self, emitter: NumpyArray) -> dict[str, NumpyArray]:
        """What the archive keeps with solutions of the given emitters."""
        return {name: values[emitter] for name, values in self.problem.kept(self.search).items()}

    # To go on later.

    def counters(self) -> dict[str, int]:
        """Whole numbers that go on."""
        names = ("iteration", "evaluations", "episodes", "env_steps", "restarts", "nonfinite")
        return {name: getattr(self, name) for name in names}

    def state(self) -> dict[str, NumpyArray]:
        """All that is needed to go on, as plain arrays."""
        leaves, _ = jax.tree.flatten(self.search)
        return {
            **{f"search/{number:03d}": whole(leaf) for number, leaf in enumerate(leaves)},
            **{f"archives/{name}": values for name, values in self.archives.state().items()},
            **{f"aside/{name}": values for name, values in self.problem.aside().items()},
            "counters": np.array(list(self.counters().values()), np.int64),
        }

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Go on from a `state()`, or raise an InputError that says why it cannot be one of this algorithm."""
        check_arrays(state, self.expected(state))
        if (state["counters"] < 0).any():
            raise InputError(f"counters must be at least 0, got {state['counters'].tolist()}.")
        leaves, structure = self._search_like
        found = [jnp.asarray(state[f"search/{number:03d}"]) for number in range(len(leaves))]
        self.search = jax.tree.unflatten(structure, found)
        self.archives.load_state(under("archives/", state))
        self.problem.load_aside(under("aside/", state))
        for name, value in zip(self.counters(), state["counters"], strict=True):
            setattr(self, name, int(value))

    def expected(self, state: Mapping[str, NumpyArray]) -> dict[str, Like]:
        """Kinds and shapes of all arrays of a `state()`.

        Args:
            state: the one to be loaded, whose arrays are taken as they are where they are checked by the part
                of the algorithm that loads them.
        """
        leaves, _ = self._search_like
        return {
            **{f"search/{number:03d}": like(leaf) for number, leaf in enumerate(leaves)},
            **as_found(state, "archives/", "aside/"),
            "counters": (np.dtype(np.int64), (len(self.counters()),)),
        }

    @cached_property
    def _search_like(self) -> tuple[list[jax.ShapeDtypeStruct], Any]:
        """Kinds and shapes of the arrays in the problem's state, and how they make it up."""
        return jax.tree.flatten(jax.eval_shape(self.problem.start, self.key("start")))


def as_found(state: Mapping[str, NumpyArray], *prefixes: str) -> dict[str, Like]:
    """Kinds and shapes of those arrays of a state whose names begin in one of these ways."""
    return {name: like(values) for name, values in state.items() if name.startswith(prefixes)}


def under(prefix: str, state: Mapping[str, NumpyArray]) -> dict[str, NumpyArray]:
    """The part of a state whose names begin so, without that."""
    return {name.removeprefix(prefix): state[name] for name in state if name.startswith(prefix)}
