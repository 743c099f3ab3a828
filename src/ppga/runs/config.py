"""Everything a run can be told, checked before anything compiles."""

import dataclasses
import math
import operator
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ppga.algorithms.base import SearchConfig
from ppga.algorithms.policy_problem import NetworkConfig
from ppga.archives import ArchiveConfig
from ppga.errors import InputError, at_least_one, choose
from ppga.learners.sac import SACConfig
from ppga.learners.td3 import TD3Config
from ppga.learners.vppo import PPOConfig
from ppga.limits import LONGEST_EPISODE


@dataclass(frozen=True)
class SimulationConfig:
    """How the task is simulated.

    Attributes:
        physics: engine: mujoco (CPU threads) or mjx (JAX, for accelerators).
        integrator: fast (Euler) or gymnasium (as the robot's model file says).
        episode_length: control steps until an episode is cut off; the task's own by default.
        threads: of the mujoco engine; all visible cores by default.
    """

    physics: Literal["mujoco", "mjx"] = "mujoco"
    integrator: Literal["fast", "gymnasium"] = "fast"
    episode_length: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class KeepingConfig:
    """What a run writes, and how often.

    Attributes:
        checkpoint_seconds: least time between two checkpoints, which grows where writing them would take more
            than a fiftieth of the time; 0 for one after every iteration, whatever that takes.
        snapshot_iterations: iterations between two snapshots of all cells' objectives.
        fit_buffer: make a replay buffer for which there is no room as large as fits, and say so, instead of
            refusing it.
        tensorboard: write TensorBoard's files.
        wandb: project of Weights & Biases to report to (needs the extra `wandb`).
    """

    checkpoint_seconds: float = 30.0
    snapshot_iterations: int = 2
    fit_buffer: bool = False
    tensorboard: bool = True
    wandb: str | None = None


@dataclass(frozen=True)
class Budget:
    """When a run ends: at the first of these that is reached.

    Attributes:
        iterations: of the algorithm.
        minutes: of wall time, over all sittings.
        env_steps: control steps, learning and judging.
        evaluations: policies judged.
    """

    iterations: int | None = None
    minutes: float | None = None
    env_steps: int | None = None
    evaluations: int | None = None

    def check(self) -> None:
        """Raise an InputError unless there is an end."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        if not given:
            raise InputError("a run needs a budget: --iterations, --minutes, --env-steps or --evaluations.")
        for name, value in given.items():
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"the budget of {name} must be positive, got {value}.")

    def check_for(self, simulated: bool) -> None:
        """Raise an InputError for an end that never comes."""
        if not simulated and self.env_steps and self == Budget(env_steps=self.env_steps):
            raise InputError("this problem is not simulated: it takes no env_steps. Give another budget.")

    def spent(self, iterations: int, minutes: float, env_steps: int, evaluations: int) -> float:
        """Share of the budget that is used up; 1 or more when the run is over."""
        used = Budget(iterations, minutes, env_steps, evaluations)
        limits = {name: limit for name, limit in dataclasses.asdict(self).items() if limit is not None}
        return float(max(getattr(used, name) / limit for name, limit in limits.items()))


@dataclass(frozen=True)
class PPGAConfig:
    """All settings of a run besides its task and its budget.

    Example:
        >>> PPGAConfig(seed=1, search=SearchConfig(branches=32)).search.branches
        32

    Attributes:
        algorithm: which one.
        seed: of all randomness.
        search: branching, judging, walking.
        ppo: learning by PPO.
        td3: learning by TD3, in the algorithms that do.
        sac: learning by SAC, likewise.
        archive: cells and thresholds.
        network: sizes of actor and critic.
        simulation: physics.
        keeping: what is written.
        cluster: who makes the rollouts: this process on one device (none); Ray's workers on CPUs, in shares
            of a fixed size (ray); or all of JAX's devices, which learn together as well (jax).
        init_from: a run, an archive, a policy or pretrained:NAME, whose elites the run begins with.
        label: what the run is called in reports; by its algorithm by default.
    """

    algorithm: str = "ppga"
    seed: int = 0
    search: SearchConfig = field(default_factory=SearchConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    sac: SACConfig = field(default_factory=SACConfig)
    archive: ArchiveConfig = field(default_factory=ArchiveConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    simulation: SimulationConfig = field(default_factory=SimulationConfig)
    keeping: KeepingConfig = field(default_factory=KeepingConfig)
    cluster: Literal["none", "ray", "jax"] = "none"
    init_from: str | None = None
    label: str | None = None

    def check(self, measures: int, learns: bool = True) -> None:
        """Raise an InputError for settings that cannot work for a task with that many measures.

        Args:
            measures: k.
            learns: whether policies learn in environments (not so on problems with known gradients).
        """
        from ppga.algorithms import ALGORITHMS

        choose("algorithm", self.algorithm, ALGORITHMS)
        from_json(PPGAConfig, to_json(self))  # words that are none of those possible, numbers that are none
        if not 0 <= self.seed < 2**32:
            raise InputError(f"the seed must lie in [0, 2^32), got {self.seed}.")
        self.search.check()
        self.archive.check(measures)
        if not (math.isfinite(self.keeping.checkpoint_seconds) and self.keeping.checkpoint_seconds >= 0):
            raise InputError(f"checkpoint_seconds must be at least 0, got {self.keeping.checkpoint_seconds}.")
        at_least_one("snapshot_iterations", self.keeping.snapshot_iterations)
        if not learns:
            return
        for name in ("actor", "critic"):
            for size in getattr(self.network, name):
                at_least_one(f"hidden units of network.{name}", size)
        simulation = self.simulation
        if simulation.episode_length is not None:
            at_least_one("simulation.episode_length", simulation.episode_length, LONGEST_EPISODE)
        if simulation.threads is not None:
            at_least_one("simulation.threads", simulation.threads)
        used = ALGORITHMS[self.algorithm]
        if used.alone and self.search.emitters > 1:
            raise InputError(f"{self.algorithm} has no emitters; leave --search.emitters at 1.")
        if "ppo" in used.sections:
            self._check_ppo(measures, used.agents(measures))
        if "td3" in used.sections:
            self._check_td3(used.td3_steps)
        if "sac" in used.sections:
            self._check_sac()

    def _check_td3(self, steps: tuple[str, ...]) -> None:
        td3 = self.td3
        for name in ("batch", "buffer", "critic_steps", "policy_steps", "delay"):
            at_least_one(f"td3.{name}", getattr(td3, name))
        for name in steps:
            count = operator.attrgetter(name)(self)
            if count % td3.delay:
                raise InputError(f"{name} must be a multiple of td3.delay ({td3.delay}), got {count}.")
        _check_ranges("td3", td3, ("critic_rate", "actor_rate", "policy_rate", "noise", "noise_clip"))
        _check_ranges("td3", td3, ("discount", "tau"), 1.0)

    def _check_sac(self) -> None:
        sac = self.sac
        for name in ("population", "environments", "steps", "chunk", "batch", "buffer"):
            at_least_one(f"sac.{name}", getattr(sac, name))
        if sac.steps % sac.chunk:
            raise InputError(f"sac.steps must be a multiple of sac.chunk ({sac.chunk}), got {sac.steps}.")
        _check_ranges("sac", sac, ("updates_per_step",))
        if round(sac.chunk * sac.environments * sac.updates_per_step) < 1:
            raise InputError(f"sac.updates_per_step {sac.updates_per_step} leaves no update in a chunk.")
        _check_ranges("sac", sac, ("tau", "best", "worst", "archived"), 1.0)
        if sac.best + sac.worst + sac.archived > 1:
            raise InputError("sac.best, worst and archived are shares of one population: at most 1 together.")
        for name in ("rates", "discounts", "reward_scales"):
            pair = getattr(sac, name)
            if not (len(pair) == 2 and 0 < pair[0] <= pair[1] < math.inf):
                raise InputError(f"sac.{name} must be a rising pair of positive numbers, got {pair}.")
        if sac.discounts[1] > 1:
            raise InputError(f"sac.discounts must not exceed 1, got {sac.discounts}.")

    def _check_ppo(self, measures: int, objectives: int) -> None:
        ppo, emitters = self.ppo, self.search.emitters
        for name in ("environments", "rollout_length", "epochs", "minibatches"):
            at_least_one(name, getattr(ppo, name))
        agents = emitters * objectives
        if ppo.environments % agents:
            down, up = ppo.environments // agents * agents, -(-ppo.environments // agents) * agents
            nearest = f"{down} or {up}" if down else f"{up}"
            raise InputError(
                f"{ppo.environments} environments cannot be shared by {agents} agents (search policies: "
                f"{emitters}, objectives: 1 reward + {measures} measures); try {nearest}."
            )
        for what, count in (("gradients", agents), ("walk", emitters)):
            batch = ppo.environments // count * ppo.rollout_length
            if batch % ppo.minibatches:
                raise InputError(
                    f"an agent's batch of {batch} steps ({what}: {ppo.environments // count} environments x "
                    f"{ppo.rollout_length} steps) cannot be cut into {ppo.minibatches} minibatches."
                )
        for name, low, high in (
            ("learning_rate", 0, math.inf), ("discount", 0, 1), ("gae_lambda", 0, 1), ("clip", 0, math.inf),
            ("value_coefficient", 0, math.inf), ("entropy_coefficient", 0, math.inf),
            ("gradient_norm", 0, math.inf), ("target_kl", 0, math.inf), ("initial_std", 1e-6, math.inf),
        ):  # fmt: skip
            value = getattr(ppo, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {value!r}.")


def _check_ranges(where: str, part: Any, names: tuple[str, ...], high: float = math.inf) -> None:
    """Raise an InputError for a number that is not finite or not in [0, high]."""
    for name in names:
        value = getattr(part, name)
        if not (math.isfinite(value) and 0 <= value <= high):
            raise InputError(f"{where}.{name} must lie in [0, {high:g}], got {value!r}.")


# To and from JSON.


def to_json(config: Any) -> dict[str, Any]:
    """A config as nested plain values."""
    return dataclasses.asdict(config)


def from_json(kind: type[Any], values: Any, where: str = "") -> Any:
    """A config of the given class from nested plain values; an InputError names what does not fit."""
    if not isinstance(values, Mapping):
        raise InputError(f"{where or kind.__name__}: expected a table of settings, got {values!r}.")
    hints = typing.get_type_hints(kind)
    known = {item.name for item in dataclasses.fields(kind)}
    for name in values:
        choose(f"setting {where}", str(name), sorted(known))
    return kind(**{name: _value(hints[name], value, f"{where}{name}") for name, value in values.items()})


def _value(kind: Any, value: Any, where: str) -> Any:
    """`value` as the annotated kind, or an InputError."""
    if dataclasses.is_dataclass(kind):
        return from_json(typing.cast(type[Any], kind), value, f"{where}.")
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in options:
            return None
        return _value(next(option for option in options if option is not type(None)), value, where)
    if origin is Literal and value in options:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(options[0], item, where) for item in value)
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (int, str, bool) and type(value) is kind and not (kind is int and abs(value) >= 2**63):
        return value
    raise InputError(f"{where}: expected {getattr(kind, '__name__', kind)}, got {value!r}.")


def differences(old: Any, new: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Fields that two configs of one class differ in, with both values."""
    for item in dataclasses.fields(old):
        before, after = getattr(old, item.name), getattr(new, item.name)
        if dataclasses.is_dataclass(before):
            yield from differences(before, after, f"{where}{item.name}.")
        elif before != after:
            yield f"{where}{item.name}", before, after
