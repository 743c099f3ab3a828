"""Settings that fit a machine and a task: `laptop`, `paper`, `smoke`."""

from dataclasses import replace
from typing import Literal

from ppga.algorithms.base import SearchConfig
from ppga.algorithms.policy_search import NetworkConfig
from ppga.archives import ArchiveConfig
from ppga.errors import choose
from ppga.learners.vppo import PPOConfig
from ppga.runs.config import Budget, KeepingConfig, PPGAConfig, SimulationConfig

PRESETS = {
    "laptop": "a few CPU cores: an archive in minutes",
    "paper": "the numbers of the paper and of its authors' scripts: days on a few cores",
    "smoke": "seconds: shows that everything runs, not that it learns",
}


def preset(name: str, task: str) -> tuple[PPGAConfig, Budget]:
    """Config and budget of a preset for a task."""
    choose("preset", name, PRESETS)
    return {"laptop": _laptop, "paper": _paper, "smoke": _smoke}[name](task)


def _laptop(task: str) -> tuple[PPGAConfig, Budget]:
    """What differs from the paper, and why; `docs/results.md` has the runs behind it."""
    config = PPGAConfig(
        search=SearchConfig(
            branches=64,  # 300 in the paper: a judgement should take no longer than a walk
            episodes=2,  # 10: cheap first looks, and
            confirm=8,  # a second one for what would become an elite
            steady=0.07,  # what runs today and rolls tomorrow belongs in no cell
            jacobian_updates=5,  # 10: the paper finds (5, 10) as good as (10, 10)
            reward_first=8,  # 0: a runner's branches are worth more than a fallen robot's
            first_updates=60,  # few and long: while the search policy only runs faster, the map hardly grows
            walk_updates=5,  # 10: longer walks fall off cliffs, from running to standing
            sigma0=2.0,
            leg=8,  # xNES narrows, and with a soft archive hardly ever gets stuck: begin again, and
            restart_at="sparse",  # where there is something to find
        ),
        ppo=PPOConfig(
            environments={"ant": 200}.get(task, 192),  # 3,000; ant's are shared by 5 agents
            rollout_length=32,  # 128: few environments, so short rollouts give more updates
            minibatches=16,  # 8
            learning_rate=3e-4 if task.startswith("humanoid") else 1e-3,
            target_kl=0.03,  # 0.008, with a learning rate that adapts
            initial_std=0.4,  # 1: with that, every fifth halfcheetah learns to slide on its back
        ),
        archive=ArchiveConfig(
            alpha=0.3,  # 0.1 to 1: fewer iterations, so thresholds move faster than the paper's 0.1
            threshold_min={"halfcheetah": -600.0, "ant": -1000.0}.get(task, 0.0),
        ),
        network=NetworkConfig(critic=(128, 128)),  # 256, 256: learns as well, and updates are cheaper
    )
    return config, Budget(minutes=30.0)


def _paper(task: str) -> tuple[PPGAConfig, Budget]:
    like = {"hopper": "walker2d", "humanoid-full": "humanoid"}.get(task, task)  # the paper has no hopper
    alpha = {"humanoid": 0.1, "walker2d": 0.15, "ant": 0.1, "halfcheetah": 1.0}.get(like, 0.1)
    std: Literal["learnt", "reset"] = "reset" if like in ("walker2d", "halfcheetah") else "learnt"
    config = PPGAConfig(
        search=SearchConfig(
            branches=300,
            episodes=10,
            jacobian_updates=10,
            walk_updates=10,
            sigma0={"ant": 3.0, "humanoid": 0.5}.get(like, 1.0),
            mean="random",
            mix="raw",
            judge="sample",
        ),
        ppo=PPOConfig(
            environments=3000,
            learning_rate=3e-4 if like == "humanoid" else 1e-3,
            std=std,
            adapt_rate=False,
            fresh_adam=True,
        ),
        archive=ArchiveConfig(alpha=alpha, threshold_min=-500.0 if like == "ant" else 200.0),
        network=NetworkConfig(actor=(128, 128), critic=(256, 256)),
    )
    return config, Budget(iterations=2000)


def _smoke(task: str) -> tuple[PPGAConfig, Budget]:
    config, _ = _laptop(task)
    return replace(
        config,
        search=replace(
            config.search,
            branches=4,
            episodes=1,
            confirm=2,
            jacobian_updates=1,
            reward_first=1,
            first_updates=1,
            walk_updates=1,
        ),
        ppo=replace(config.ppo, environments=30, rollout_length=8, epochs=1, minibatches=2),
        network=NetworkConfig(actor=(8,), critic=(8,)),
        simulation=SimulationConfig(episode_length=20),
        keeping=KeepingConfig(snapshot_iterations=1),
    ), Budget(iterations=2)
