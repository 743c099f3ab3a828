"""When the search policy is restarted, and where, against a slow version that keeps the history of a leg."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppga
from ppga import InputError
from ppga.archives import ArchiveConfig, EliteArchive
from ppga.archives.statistics import statistics_shapes
from ppga.problems import LearningReport, Sphere
from ppga.runs.build import make_algorithm
from ppga.search import LegConfig, LegSchedule, RestartRule, RewardPhaseConfig
from ppga.storage import NumpyArray

NO_PHASES = RewardPhaseConfig(first_iterations=0, every=0)


@dataclass(frozen=True)
class Result:
    """Result of an iteration.

    Attributes:
        entered: whether any branch entered the soft archive.
        new_elites: number of new elites.
        degenerated: whether the search distribution has degenerated, which also restarts the search policy.
    """

    entered: bool = True
    new_elites: int = 1
    degenerated: bool = False


@dataclass(frozen=True)
class Decision:
    """What the rule decides in an iteration."""

    reward_only: bool
    updates: int
    walks: bool
    restarted: bool
    resets_strategy: bool


def decide(rule: RestartRule, results: list[Result], first: int = 1) -> list[Decision]:
    """Decisions of a rule, used as PPGA uses it, from the iteration `first` on."""
    decisions = []
    for iteration, result in enumerate(results, first):
        rule.update(iteration, result.entered, result.new_elites)
        reward_only, updates = rule.reward_only(iteration), rule.walk_updates(iteration, 5)
        due = rule.due(iteration) or result.degenerated
        walks, resets = rule.should_walk(iteration), rule.resets_strategy(iteration)
        decisions.append(Decision(reward_only, updates, walks, due, resets))
        if due:
            rule.restarted()
    return decisions


@dataclass
class SlowSchedule:
    """The rules of `LegConfig` and `RewardPhaseConfig`, from the history of the current leg."""

    legs: LegConfig
    phases: RewardPhaseConfig
    number: int = 1
    history: list[tuple[int, Result]] = field(default_factory=list)

    def follows_reward(self) -> bool:
        """Whether this leg follows the reward: the second one, and every so many after it."""
        every = self.phases.every
        return every > 0 and self.number in range(2, 1000, every)

    def length(self) -> int:
        """Iterations of this leg, without the first reward phase; 0 for no limit."""
        if self.follows_reward():
            return self.phases.iterations or self.legs.iterations
        first = self.legs.first_iterations if self.number == 1 and self.legs.iterations else 0
        return first or self.legs.iterations

    def decide(self, iteration: int, result: Result) -> Decision:
        self.history.append((iteration, result))
        in_first_phase = iteration <= self.phases.first_iterations
        counted = [earlier for number, earlier in self.history if number > self.phases.first_iterations]
        idle = 0
        for earlier in reversed(counted):
            if earlier.new_elites:
                break
            idle += 1
        reward = self.follows_reward()
        stuck = not result.entered and not reward and not in_first_phase
        due = bool(self.length()) and len(counted) >= self.length()
        if not reward:
            due |= stuck or (bool(self.legs.patience) and idle >= self.legs.patience)
        if due or result.degenerated:
            self.number, self.history = self.number + 1, []
        reward_only = reward or in_first_phase
        updates = self.phases.updates if reward_only else 5
        resets = iteration == self.phases.first_iterations
        return Decision(reward_only, updates, not stuck, due or result.degenerated, resets)


RESULTS = st.lists(
    st.builds(
        Result,
        entered=st.sampled_from([True] * 9 + [False]),
        new_elites=st.sampled_from([0, 0, 1, 3]),
        degenerated=st.sampled_from([False] * 19 + [True]),
    ),
    min_size=12,
    max_size=40,
)
LEGS = st.builds(
    LegConfig, iterations=st.integers(0, 6), first_iterations=st.integers(0, 9), patience=st.integers(0, 4)
)
PHASES = st.builds(
    RewardPhaseConfig,
    first_iterations=st.integers(0, 4),
    updates=st.integers(6, 9),
    every=st.integers(0, 4),
    iterations=st.integers(0, 5),
)


@settings(max_examples=200)
@given(LEGS, PHASES, RESULTS)
def test_a_schedule_equals_its_rules(
    legs: LegConfig, phases: RewardPhaseConfig, results: list[Result]
) -> None:
    slow = SlowSchedule(legs, phases)
    expected = [slow.decide(iteration, result) for iteration, result in enumerate(results, 1)]
    assert decide(LegSchedule(legs, phases), results) == expected


@given(RESULTS)
def test_the_rule_of_the_paper_restarts_when_no_branch_has_entered(results: list[Result]) -> None:
    expected = [
        Decision(False, 5, result.entered, not result.entered or result.degenerated, False)
        for result in results
    ]
    assert decide(RestartRule(), results) == expected
    # a schedule without legs and phases is that rule
    assert decide(LegSchedule(None, None), results) == expected


@given(LEGS, PHASES, RESULTS, st.integers(0, 40))
def test_a_restored_state_continues_exactly(
    legs: LegConfig, phases: RewardPhaseConfig, results: list[Result], cut: int
) -> None:
    original = LegSchedule(legs, phases)
    before = decide(original, results[:cut])
    restored = LegSchedule(legs, phases)
    restored.load_state(original.state())
    first = len(before) + 1
    assert decide(restored, results[cut:], first) == decide(original, results[cut:], first)
    for name, values in original.state().items():
        np.testing.assert_array_equal(restored.state()[name], values)


def test_the_state_consists_of_named_arrays() -> None:
    state = LegSchedule(LegConfig(iterations=5, first_iterations=8), NO_PHASES).state()
    assert {name: (values.dtype.kind, values.shape) for name, values in state.items()} == {
        "restarts": ("i", ()), "age": ("i", ()), "idle": ("i", ()),
    }  # fmt: skip
    assert RestartRule().state() == {}
    RestartRule().load_state({})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"age": None}, "the array 'age' is missing"),
        ({"elite": np.zeros(3)}, "the array 'elite' is not expected"),
        ({"age": np.array(1.0)}, r"the array 'age' is float64\(\), expected int64"),
        ({"idle": np.zeros(2, np.int64)}, r"the array 'idle' is int64\(2,\), expected int64\(\)"),
        ({"restarts": np.array(True)}, "the array 'restarts' is bool"),
        ({"restarts": np.array(-1)}, "restarts must be at least 0, got -1"),
        ({"age": np.array(-4)}, "age must be at least 0, got -4"),
        ({"idle": np.array(-1)}, "idle must be at least 0, got -1"),
    ],
)
def test_bad_states(changes: dict[str, Any], message: str) -> None:
    schedule = LegSchedule(LegConfig(iterations=5, first_iterations=8), NO_PHASES)
    before = schedule.state()
    bad = {name: values for name, values in {**before, **changes}.items() if values is not None}
    with pytest.raises(InputError, match=message):
        schedule.load_state(bad)
    assert schedule.state() == before
    with pytest.raises(InputError, match="'age' is not expected"):
        RestartRule().load_state(before)


@pytest.mark.parametrize("name", ["iterations", "first_iterations", "patience"])
def test_bad_legs(name: str) -> None:
    LegConfig().check()
    changes: dict[str, Any] = {name: -1}
    with pytest.raises(
        InputError, match=rf"--legs\.{name.replace('_', '-')} must be an integer of at least 0, got -1"
    ):
        replace(LegConfig(), **changes).check()


# Where.


def archive() -> EliteArchive:
    """Three elites in a row of ten cells: in cells 0 and 1, and in cell 5, where both neighbors are empty."""
    elites = EliteArchive(1, (10,), ((0.0, 10.0),), {}, 0.0, ArchiveConfig())
    measures = np.array([[0.5], [1.5], [5.5]], np.float32)
    objective = np.array([3.0, 1.0, 2.0], np.float32)
    elites.add(np.arange(3, dtype=np.float32)[:, None], objective, measures)
    return elites


def shares(rule: RestartRule) -> list[float]:
    """How often each elite is chosen."""
    elites, rng = archive(), np.random.default_rng(0)
    chosen = [int(rule.elite(elites, rng)["solution"][0]) for _ in range(6000)]
    return [chosen.count(number) / len(chosen) for number in range(3)]


EMPTY_NEIGHBORS = np.array([0.0, 1.0, 2.0]) + 1e-3
RANKS = np.array([3.0, 1.0, 2.0]) / 3


@pytest.mark.parametrize(
    ("rule", "weights"),
    [
        (RestartRule(), np.ones(3)),
        (LegSchedule(None, RewardPhaseConfig()), np.ones(3)),
        (LegSchedule(LegConfig(elite="random"), None), np.ones(3)),
        (LegSchedule(LegConfig(elite="sparse"), None), EMPTY_NEIGHBORS),
        (LegSchedule(LegConfig(elite="promising"), None), EMPTY_NEIGHBORS * RANKS**4),
    ],
    ids=["paper", "no legs", "random", "sparse", "promising"],
)
def test_the_elite_of_a_restart_is_drawn_by_its_weights(rule: RestartRule, weights: Any) -> None:
    np.testing.assert_allclose(shares(rule), weights / weights.sum(), atol=0.03)


def test_a_leg_that_follows_the_reward_starts_at_the_best_elite() -> None:
    schedule = LegSchedule(LegConfig(elite="sparse"), RewardPhaseConfig(every=2))
    for follows in (True, False, True):
        schedule.restarted()
        assert schedule.reward_only(100) == follows
        assert (shares(schedule) == [1.0, 0.0, 0.0]) == follows


def test_an_elite_comes_with_all_its_fields() -> None:
    elites = EliteArchive(1, (10,), ((0.0, 10.0),), {"log_std": (2,)}, 0.0, ArchiveConfig())
    one = np.ones((1, 1), np.float32)
    elites.add(one, one[0], one, log_std=np.array([[0.25, 0.5]], np.float32))
    for rule in (RestartRule(), LegSchedule(LegConfig(), None)):
        elite = rule.elite(elites, np.random.default_rng(0))
        assert {name: np.shape(values) for name, values in elite.items()} == {
            "solution": (1,), "objective": (), "measures": (1,), "log_std": (2,), "index": (),
            **statistics_shapes(1),
        }  # fmt: skip
        np.testing.assert_array_equal(elite["log_std"], [0.25, 0.5])


# Reward phases.


def test_the_first_iterations_follow_the_reward_and_then_the_strategy_is_reset() -> None:
    schedule = LegSchedule(None, RewardPhaseConfig(first_iterations=3, updates=60, every=0))
    assert [schedule.reward_only(iteration) for iteration in range(1, 6)] == [True] * 3 + [False] * 2
    assert [schedule.walk_updates(iteration, 5) for iteration in range(1, 6)] == [60] * 3 + [5] * 2
    assert [schedule.resets_strategy(iteration) for iteration in range(1, 6)] == [False, False, True] + [
        False
    ] * 2


def test_the_first_leg_begins_after_the_first_phase() -> None:
    schedule = LegSchedule(LegConfig(iterations=4, first_iterations=2), RewardPhaseConfig(3, every=0))
    for iteration in range(1, 14):
        schedule.update(iteration, entered=True, new_elites=1)
        due = schedule.due(iteration)
        assert due == (iteration in (5, 9, 13)), iteration
        if due:
            schedule.restarted()


def test_some_legs_follow_the_reward() -> None:
    """The second leg and every third one after it, for two iterations; the others have four."""
    phases = RewardPhaseConfig(first_iterations=0, updates=60, every=3, iterations=2)
    schedule = LegSchedule(LegConfig(iterations=4, first_iterations=0), phases)
    legs: list[tuple[bool, int]] = []
    for iteration in range(1, 27):
        schedule.update(iteration, entered=True, new_elites=1)
        if schedule.due(iteration):
            legs.append((schedule.reward_only(iteration), schedule.age))
            schedule.restarted()
    assert legs == [
        (False, 4),
        (True, 2),
        (False, 4),
        (False, 4),
        (True, 2),
        (False, 4),
        (False, 4),
        (True, 2),
    ]


def test_a_leg_that_follows_the_reward_always_walks() -> None:
    schedule = LegSchedule(LegConfig(iterations=9, patience=1), RewardPhaseConfig(every=1, iterations=3))
    schedule.restarted()
    for due in (False, False, True):
        schedule.update(100, entered=False, new_elites=0)
        assert schedule.should_walk(100)
        assert schedule.due(100) == due


def test_the_first_phase_walks_and_does_not_restart_though_no_branch_enters() -> None:
    schedule = LegSchedule(LegConfig(patience=2), RewardPhaseConfig(first_iterations=3, every=0))
    for iteration, walks in enumerate((True, True, True, False), 1):
        schedule.update(iteration, entered=False, new_elites=0)
        assert schedule.should_walk(iteration) == walks
        assert schedule.due(iteration) == (not walks)


def test_patience_counts_iterations_after_the_first_phase() -> None:
    schedule = LegSchedule(LegConfig(patience=2), RewardPhaseConfig(first_iterations=3, every=0))
    for iteration, due in enumerate((False, False, False, False, True), 1):
        schedule.update(iteration, entered=True, new_elites=0)
        assert schedule.due(iteration) == due, iteration


class WalkedSphere(Sphere):
    """A sphere that records its walks: weights and updates."""

    walks: ClassVar[list[tuple[list[float], int]]] = []

    def walk(
        self, state: Any, weights: NumpyArray, key: Any, updates: int, scaled: bool
    ) -> tuple[Any, LearningReport]:
        self.walks.append((weights.tolist(), updates))
        return super().walk(state, weights, key, updates, scaled)


def test_walks_of_ppga_follow_the_reward_in_the_first_phase() -> None:
    preset, _ = ppga.preset("smoke", "sphere")
    assert isinstance(preset, ppga.PPGAConfig)
    phases = RewardPhaseConfig(first_iterations=2, updates=7, every=0)
    algorithm = make_algorithm(
        WalkedSphere(), replace(preset, phases=phases, objective=None, legs=None, walk_updates=3)
    )
    algorithm.start()
    WalkedSphere.walks.clear()
    records = [algorithm.step() for _ in range(3)]
    (first, second, third), mean = WalkedSphere.walks, records[-1]["strategy_mean"]
    assert first == second == ([1.0, 0.0, 0.0], 7)
    np.testing.assert_array_equal(third[0], mean)
    assert third[1] == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates": 0}, r"--phases\.updates must be an integer of at least 1, got 0"),
        (
            {"first_iterations": -1},
            r"--phases\.first-iterations must be an integer of at least 0, got -1",
        ),
        ({"every": -2}, r"--phases\.every must be an integer of at least 0, got -2"),
        ({"iterations": -1}, r"--phases\.iterations must be an integer of at least 0, got -1"),
    ],
)
def test_bad_phases(changes: dict[str, Any], message: str) -> None:
    RewardPhaseConfig().check()
    with pytest.raises(InputError, match=message):
        replace(RewardPhaseConfig(), **changes).check()
