"""When the search policy is restarted, at which elite, and which of its walks follow the reward alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ppga.archives import EliteArchive
from ppga.config import check_whole, common
from ppga.errors import InputError
from ppga.storage import NumpyArray, check_arrays, like


@dataclass(frozen=True)
class LegConfig:
    """Restarts of a search policy that still improves the archive.

    A leg is the sequence of iterations between two restarts.

    Attributes:
        iterations: restart the search policy after this many iterations; 0 for no limit.
        first_iterations: iterations of the first leg, if `iterations` limits legs; 0 for `iterations`.
        patience: iterations without a new elite that end a leg; 0 for no limit.
        elite: restart at a random elite, at one with empty cells around it (sparse), or at one that is also
            better than most others (promising).
    """

    iterations: int = common(12)
    first_iterations: int = 30
    patience: int = 0
    elite: Literal["random", "sparse", "promising"] = "promising"

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name in ("iterations", "first_iterations", "patience"):
            check_whole(f"legs.{name}", getattr(self, name), least=0)


@dataclass(frozen=True)
class RewardPhaseConfig:
    """Iterations whose walk follows the reward alone.

    Attributes:
        first_iterations: initial iterations that follow the reward alone.
        updates: learning updates of each of these walks.
        every: every n-th restart, beginning with the first, continues from the best elite and walks on the
            reward alone; 0 disables.
        iterations: iterations of a leg that walks on the reward alone; 0 for the usual length.
    """

    first_iterations: int = common(2)
    updates: int = 60
    every: int = 3
    iterations: int = 8

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        check_whole("phases.updates", self.updates)
        for name in ("first_iterations", "every", "iterations"):
            check_whole(f"phases.{name}", getattr(self, name), least=0)


class RestartRule:
    """The paper's rule: if no branch entered the soft archive, do not walk, but restart at a random one."""

    entered = True

    def update(self, iteration: int, entered: bool, new_elites: int) -> None:  # noqa: ARG002
        """Note the result of an iteration.

        Args:
            iteration: number of the iteration, from 1.
            entered: whether any branch entered the soft archive.
            new_elites: number of new elites.
        """
        self.entered = entered

    def should_walk(self, iteration: int) -> bool:  # noqa: ARG002
        """True if a branch entered the soft archive."""
        return self.entered

    def due(self, iteration: int) -> bool:
        """Whether to restart after this iteration."""
        return not self.should_walk(iteration)

    def restarted(self) -> None:
        """Note that the search policy has been restarted."""

    def elite(self, archive: Any, rng: np.random.Generator) -> dict[str, NumpyArray]:
        """All fields of the policy to restart at, drawn from an elitist or soft archive."""
        return {name: values[0] for name, values in archive.sample(rng, 1).items()}

    def reward_only(self, iteration: int) -> bool:  # noqa: ARG002
        """Whether the walk of an iteration follows the reward alone."""
        return False

    def walk_updates(self, iteration: int, updates: int) -> int:  # noqa: ARG002
        """Learning updates of an iteration's walk, where N2 is `updates`."""
        return updates

    def resets_strategy(self, iteration: int) -> bool:  # noqa: ARG002
        """Whether the search distribution is reset after an iteration, without a restart."""
        return False

    def state(self) -> dict[str, NumpyArray]:
        """Named arrays for checkpoints."""
        return {}

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`, or raise an InputError if it cannot be one."""
        check_arrays(state, {name: like(values) for name, values in self.state().items()})


class LegSchedule(RestartRule):
    """Also restarts after a number of iterations, and follows the reward alone in some of them.

    Args:
        legs: lengths of legs; None for legs that only the paper's rule ends.
        phases: which iterations follow the reward alone; None for none.

    Attributes:
        restarts: restarts so far, and so the number of the current leg, from 0.
        age: iterations of the current leg, without the run's first reward phase.
        idle: iterations since the current leg's last new elite, without the run's first reward phase.
    """

    def __init__(self, legs: LegConfig | None, phases: RewardPhaseConfig | None) -> None:
        self.legs = legs or LegConfig(iterations=0, first_iterations=0, elite="random")
        self.phases = phases or RewardPhaseConfig(first_iterations=0, every=0)
        self.restarts = self.age = self.idle = 0

    def is_reward_leg(self, restarts: int) -> bool:
        """Whether the leg after that many restarts follows the reward alone; the first leg never does."""
        return restarts > 0 and self.phases.every > 0 and (restarts - 1) % self.phases.every == 0

    @property
    def reward_leg(self) -> bool:
        """Whether the current leg follows the reward alone."""
        return self.is_reward_leg(self.restarts)

    def leg_length(self) -> int:
        """Iterations of the current leg; 0 for no limit."""
        if self.reward_leg and self.phases.iterations:
            return self.phases.iterations
        if self.restarts == 0 and self.legs.iterations and self.legs.first_iterations:
            return self.legs.first_iterations
        return self.legs.iterations

    def update(self, iteration: int, entered: bool, new_elites: int) -> None:
        """See `RestartRule.update`."""
        super().update(iteration, entered, new_elites)
        if iteration > self.phases.first_iterations:
            self.age += 1
            self.idle = 0 if new_elites else self.idle + 1

    def should_walk(self, iteration: int) -> bool:
        """True if a branch entered, or if the walk follows the reward, which does not depend on branches."""
        return self.reward_only(iteration) or super().should_walk(iteration)

    def due(self, iteration: int) -> bool:
        """Whether to restart; patience does not end a leg that follows the reward."""
        impatient = not self.reward_leg and 0 < self.legs.patience <= self.idle
        return super().due(iteration) or impatient or 0 < self.leg_length() <= self.age

    def restarted(self) -> None:
        """Start a new leg."""
        self.restarts += 1
        self.age = self.idle = 0

    def elite(self, archive: EliteArchive, rng: np.random.Generator) -> dict[str, NumpyArray]:
        """All fields of the elite to restart at: the best one for a leg that follows the reward."""
        if self.reward_leg:
            return archive.best()
        kind = self.legs.elite
        sample = archive.sample(rng, 1, sparse=kind != "random", promising=kind == "promising")
        return {name: values[0] for name, values in sample.items()}

    def reward_only(self, iteration: int) -> bool:
        """Whether the walk of an iteration, counted from 1, follows the reward alone."""
        return self.reward_leg or iteration <= self.phases.first_iterations

    def walk_updates(self, iteration: int, updates: int) -> int:
        """Learning updates of an iteration's walk, where N2 is `updates`."""
        return self.phases.updates if self.reward_only(iteration) else updates

    def resets_strategy(self, iteration: int) -> bool:
        """Whether the first reward phase ends with this iteration.

        The search distribution did not steer these walks. It was adapted to branches of poor policies and
        does not fit the improved policy.
        """
        return iteration == self.phases.first_iterations

    def state(self) -> dict[str, NumpyArray]:
        """The attributes `restarts`, `age` and `idle`."""
        return {name: np.array(getattr(self, name), np.int64) for name in ("restarts", "age", "idle")}

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Restore a `state()`, or raise an InputError if it cannot be one."""
        super().load_state(state)
        for name, value in state.items():
            if value < 0:
                raise InputError(f"{name} must be at least 0, got {value}.")
        self.restarts, self.age, self.idle = (int(state[name]) for name in ("restarts", "age", "idle"))


def make_restart_rule(legs: LegConfig | None, phases: RewardPhaseConfig | None) -> RestartRule:
    """The rule for these sections: the paper's if both are absent."""
    return RestartRule() if legs is None and phases is None else LegSchedule(legs, phases)
