"""Settings of PPO."""

import typing
from dataclasses import dataclass
from typing import Literal

from ppga.config import check_range, check_whole, common
from ppga.errors import InputError, check_choice

StdMode = Literal["learned", "reset", "fixed"]
Update = Literal["separate", "joint"]
Normalize = Literal["rewards", "returns", "none"]
Normalizers = Literal["shared", "fresh"]


@dataclass(frozen=True)
class PPOConfig:
    """Settings of PPO.

    The last five settings choose between ppga's PPO and that of the authors of PPGA; `docs/fidelity.md`
    explains the differences.

    Attributes:
        environments: parallel environments, divided among the k+1 gradient learners; the walk uses all.
        rollout_length: control steps in every environment between two updates.
        epochs: passes of an update over its data.
        minibatches: minibatches of an epoch, with one gradient step each.
        learning_rate: learning rate of Adam.
        gamma: discount factor.
        gae_lambda: lambda of generalized advantage estimation.
        clip: the probability ratio is clipped to [1 - clip, 1 + clip].
        clip_values: also clip how far an update changes the predicted values.
        value_coefficient: weight of the value loss.
        entropy_coefficient: weight of the entropy bonus.
        max_gradient_norm: gradients are scaled down to this norm.
        target_kl: stop an agent's update when its KL divergence exceeds this; 0 for no limit.
        adaptive_learning_rate: lower an agent's learning rate while its updates end early, and raise it up to
            `learning_rate` while they do not.
        reset_optimizer: reset Adam's moments at the start of every learning phase.
        std: standard deviation of the exploration noise: learned; reset (learned, but reset to initial_std in
            every iteration); or fixed.
        initial_std: initial standard deviation of the exploration noise.
        min_std: the standard deviation of the exploration noise stays at least this.
        update: separate: each agent shuffles its data, normalizes its advantages, clips its gradient and has
            its own KL limit, checked before every step. joint: the agents take the same steps, on minibatches
            in order; advantages, gradient norms (of actors and of critics) and the KL limit, checked after
            every epoch, are those of all agents together, and reset_optimizer keeps the critics' moments.
        normalize: rewards: divide rewards by the standard deviation of their discounted returns. returns:
            the critic predicts normalized returns, clipped to [-5, 5]. none: neither.
        normalizers: shared: normalizers are updated after every rollout of the search policy, and gradient
            learners use them. fresh: they are updated in every control step, and gradient learners start with
            new ones in every iteration.
        bootstrap_truncated: at the time limit, count the predicted value of the last observation, not 0.
        reset_environments: reset all environments at the start of every learning phase.
    """

    environments: int = common(192)
    rollout_length: int = common(128)
    epochs: int = 4
    minibatches: int = 8
    learning_rate: float = common(1e-3)
    gamma: float = common(0.99)
    gae_lambda: float = 0.95
    clip: float = 0.2
    clip_values: bool = False
    value_coefficient: float = 2.0
    entropy_coefficient: float = 0.0
    max_gradient_norm: float = 1.0
    target_kl: float = common(0.008)
    adaptive_learning_rate: bool = True
    reset_optimizer: bool = False
    std: StdMode = "learned"
    initial_std: float = 1.0
    min_std: float = 0.0
    update: Update = "separate"
    normalize: Normalize = "rewards"
    normalizers: Normalizers = "shared"
    bootstrap_truncated: bool = True
    reset_environments: bool = False

    def check(self) -> None:
        """Raise an InputError for values that cannot work."""
        for name in ("environments", "rollout_length", "epochs", "minibatches"):
            check_whole(f"ppo.{name}", getattr(self, name))
        for name in (
            "learning_rate", "clip", "value_coefficient", "entropy_coefficient", "max_gradient_norm",
            "target_kl",
        ):  # fmt: skip
            check_range(f"ppo.{name}", getattr(self, name))
        check_range("ppo.gamma", self.gamma, 0.0, 1.0)
        check_range("ppo.gae_lambda", self.gae_lambda, 0.0, 1.0)
        check_range("ppo.initial_std", self.initial_std, 1e-6)
        check_range("ppo.min_std", self.min_std)
        for name, options in (
            ("std", StdMode), ("update", Update), ("normalize", Normalize), ("normalizers", Normalizers),
        ):  # fmt: skip
            check_choice(f"value of --ppo.{name}", getattr(self, name), typing.get_args(options))


def check_agents(config: PPOConfig, agents: int, description: str = "", devices: int = 1) -> None:
    """Raise an InputError unless that many agents can share the environments, and a single agent can use all.

    Args:
        config: settings.
        agents: agents that learn at once.
        description: what the agents are, for the message.
        devices: devices that share the environments of each agent.
    """
    of_agents = f" ({description})" if description else ""
    on_devices = "" if devices == 1 else f" on each of {devices} devices"
    unit = agents * devices
    if config.environments % unit:
        low, high = config.environments // unit * unit, -(-config.environments // unit) * unit
        raise InputError(
            f"{config.environments} environments cannot be shared by {agents} agents{of_agents}{on_devices}; "
            f"--ppo.environments {f'{low} or ' if low else ''}{high} can."
        )
    for count in (agents, 1):
        environments = config.environments // (count * devices)
        steps = environments * config.rollout_length
        if steps % config.minibatches:
            raise InputError(
                f"the {steps} steps ({environments} environments x {config.rollout_length} steps) that one "
                f"of {count} agents takes{on_devices} cannot be cut into {config.minibatches} minibatches; "
                "change --ppo.environments, --ppo.rollout-length or --ppo.minibatches."
            )
