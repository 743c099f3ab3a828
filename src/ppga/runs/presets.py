"""Settings that fit a machine and a task: `laptop`, `paper`, `smoke`."""

from dataclasses import replace
from typing import Literal

from ppga.algorithms import ALGORITHMS
from ppga.algorithms.base import SearchConfig
from ppga.algorithms.policy_problem import NetworkConfig
from ppga.archives import ArchiveConfig
from ppga.errors import choose
from ppga.learners.sac import SACConfig
from ppga.learners.td3 import TD3Config
from ppga.learners.vppo import PPOConfig
from ppga.runs.config import Budget, KeepingConfig, PPGAConfig, SimulationConfig
from ppga.tasks import Environment, find, is_known, sample

PRESETS = {
    "laptop": "a few CPU cores: an archive in minutes",
    "paper": "the numbers of the paper and of its authors' scripts: days on a few cores",
    "smoke": "seconds: shows that everything runs, not that it learns",
}


def preset(name: str, task: str | Environment, algorithm: str = "ppga") -> tuple[PPGAConfig, Budget]:
    """Config and budget of a preset.

    Args:
        name: of the preset.
        task: its name, FILE.py:NAME, or itself.
        algorithm: its name.
    """
    choose("preset", name, PRESETS)
    choose("algorithm", algorithm, ALGORITHMS)
    if isinstance(task, str) and ".py:" in task:
        task = find(task)
    known = task if isinstance(task, str) else task.name
    config, budget = {"laptop": _laptop, "paper": _paper, "smoke": _smoke}[name](known)
    config = replace(config, algorithm=algorithm)
    if name == "paper":
        config = config if known in TUNED else _untuned(config, task)
        return _paper_other(config, known), budget if algorithm in LIKE_PPGA else Budget(evaluations=600_000)
    config = _laptop_other(config)
    if name == "smoke":
        config = _small(config)
    return config if known in TUNED else _untuned(config, task), budget


TUNED = ("halfcheetah", "walker2d", "hopper", "ant", "humanoid", "humanoid-full", "sphere")
"""Tasks that the settings below were found with."""
LIKE_PPGA = ("ppga", "ppga-no-measures", "ppo", "ppo-archive", "td3ga")
"""Algorithms whose iterations are those of PPGA."""


def _untuned(config: PPGAConfig, task: str | Environment) -> PPGAConfig:
    """What must fit a task that nobody has looked at: where thresholds begin, and how agents share."""
    if isinstance(task, str):
        if not is_known(task):  # a problem of somebody's own
            return config
        task = sample(task)
    agents = len(task.measure_names) + 1
    environments = -(-config.ppo.environments // agents) * agents
    steady = config.search.steady if agents <= 3 else 0.0  # as for ant
    config = replace(
        config,
        search=replace(config.search, steady=steady),
        ppo=replace(config.ppo, environments=environments),
    )
    if config.archive.threshold_min is None:
        return config
    return replace(config, archive=replace(config.archive, threshold_min=task.qd_offset))


def _laptop_other(config: PPGAConfig) -> PPGAConfig:
    """What the other algorithms need otherwise."""
    search, name = config.search, config.algorithm
    if not ALGORITHMS[name].gradients:
        # where only what never stumbles may enter, those that vary elites do not get going, and others keep
        # less of what they find; what enters by luck alone leads astray: so some confirming, and no more
        search = replace(search, confirm=4, steady=0.0)
        config = replace(config, search=search)
    if not ALGORITHMS[name].soft:
        config = replace(config, archive=replace(config.archive, alpha=1.0, threshold_min=None))
    if "td3" in ALGORITHMS[name].sections:
        # where simulating is slow, learning more from what was seen pays: 10 times the critic steps, at the
        # rate of TD3's authors, and fewer policies
        td3 = TD3Config(critic_steps=3000, critic_rate=1e-3, actor_rate=1e-3)
        config = replace(config, td3=td3)
    if name in ("pga-me", "qdpg"):
        share = 0.67 if name == "qdpg" else 0.5  # a third each: quality, diversity, iso+line
        config = replace(config, search=replace(search, branches=32, gradient_share=share))
    if name == "cma-maega-td3-es":
        few = replace(search, sigma0=1.0, branches=32, es_samples=32)
        config = replace(config, search=few)
    if name == "sep-cma-mae":
        config = replace(config, search=replace(search, sigma0=0.02, emitters=2, branches=64))
    if name == "td3ga":  # steps of 256 transitions, not of 48,000, and so more of them; critics learn first
        updates = replace(search, jacobian_updates=400, walk_updates=400, first_updates=6000, reward_first=8)
        config = replace(config, search=updates)
    if name in ("ppo", "ppo-archive"):
        config = replace(config, search=replace(search, walk_updates=20, first_updates=0))
    if name == "ppga-no-measures":  # nothing but the reward steers it from the beginning
        up = replace(search, walk_updates=20, first_updates=0, clip_objective=True)
        config = replace(config, search=up)
    if name == "pbt-me-sac":
        config = replace(
            config,
            search=replace(search, branches=32),
            # as many gradient steps as two cores can do, and discounts and rates that are known to work
            sac=SACConfig(
                population=4,
                environments=8,
                steps=500,
                chunk=50,
                updates_per_step=0.25,
                rates=(3e-4, 3e-3),
                discounts=(0.97, 0.995),
                worst=0.25,
                best=0.25,
                archived=0.25,
            ),
        )
    return config


def _paper_other(config: PPGAConfig, task: str) -> PPGAConfig:
    """The settings of the other algorithms in their papers, and in QDax' and pyribs' examples."""
    search, name = config.search, config.algorithm
    if not ALGORITHMS[name].soft:
        config = replace(config, archive=replace(config.archive, alpha=1.0, threshold_min=None))
    if name in ("sep-cma-mae", "cma-maega-td3-es"):
        # PPGA's thresholds shut out what does not run yet, and with an alpha of 1 they are not soft
        low = {"halfcheetah": -600.0, "ant": -1000.0}.get(task, min(0.0, config.archive.threshold_min or 0.0))
        config = replace(config, archive=replace(config.archive, alpha=0.01, threshold_min=low))
    one_episode = replace(search, branches=100, episodes=1, judge="mean")
    if name in ("map-elites", "pga-me"):
        config = replace(config, search=one_episode)
    if name == "qdpg":
        config = replace(config, search=replace(one_episode, gradient_share=0.67))
    if name == "sep-cma-mae":
        config = replace(config, search=replace(one_episode, sigma0=0.02, emitters=5, branches=200))
    if name == "cma-maega-td3-es":
        config = replace(config, search=replace(one_episode, sigma0=1.0, es_samples=200))
    if name == "ppga-no-measures":
        config = replace(config, search=replace(search, clip_objective=True))
    if name == "td3ga":
        td3 = TD3Config(batch=48_000, buffer=5_000_000)
        config = replace(config, search=replace(search, judge="mean"), td3=td3)
    if name == "pbt-me-sac":
        network = replace(config.network, actor=(256, 256), critic=(256, 256))
        config = replace(config, search=replace(one_episode, branches=40), network=network)
    return config


def _laptop(task: str) -> tuple[PPGAConfig, Budget]:
    """What differs from the paper, and why; `docs/results.md` has the runs behind it."""
    config = PPGAConfig(
        search=SearchConfig(
            branches=64,  # 300 in the paper: a judgement should take no longer than a walk
            episodes=1,  # 10: a cheap first look, and
            # a second one at what would become an elite; where it was tried, four do as well as eight
            confirm={"halfcheetah": 4, "walker2d": 4}.get(task, 8),
            steady=0.07,  # what runs today and rolls tomorrow belongs in no cell
            recheck=4,  # and another every now and then, so that none owes its cell to luck
            jacobian_updates=5,  # 10: the paper finds (5, 10) as good as (10, 10)
            walk_updates=5,  # 10: longer walks fall off cliffs, from running to standing
            reward_share=1.0,  # 0: in cells where little is to be won little can be lost, and xNES goes there
            sigma0=2.0,
            # 0: where falling ends it, staying upright comes first, or nobody learns it; halfcheetahs go on
            reward_first={"halfcheetah": 0, "humanoid": 8, "humanoid-full": 8}.get(task, 2),
            first_leg=30,  # 0, no end: most of the map is found while the first search policy learns to run.
            leg=12,  # 0: then xNES narrows, and hardly ever gets stuck: begin again, at a good elite with
            restart_at="promising",  # empty cells around it (a random one), and
            reward_every=3,  # 0: now and then at the best one, to make a champion of it,
            reward_leg=8,  # in few and long walks: while the search policy only runs faster,
            first_updates=60,  # the map hardly grows
        ),
        ppo=PPOConfig(
            environments=192,  # 3,000
            rollout_length=32,  # 128: few environments, so short rollouts give more updates
            minibatches=16,  # 8
            learning_rate=3e-4 if task.startswith("humanoid") else 1e-3,
            target_kl=0.03,  # 0.008, with a learning rate that adapts
            initial_std=0.4,  # 1: with that, every fifth halfcheetah learns to slide on its back
        ),
        archive=ArchiveConfig(
            alpha=0.3,  # 0.1 to 1: fewer iterations, so thresholds move faster than the paper's 0.1
            threshold_min={"halfcheetah": -600.0}.get(task, 0.0),
        ),
        network=NetworkConfig(critic=(128, 128)),  # 256, 256: learns as well, and updates are cheaper
        keeping=KeepingConfig(fit_buffer=True),  # a smaller memory is better than no run
    )
    if task == "ant":  # four measures, 10,000 cells
        search = replace(
            config.search,
            confirm=4,  # nearly every branch is an elite, and
            steady=0.0,  # hardly one does the same every day
            sigma0=1.0,  # four directions at once are far enough
            walk_updates=20,  # there is more to learn, and
            reward_share=3.0,  # more ways to stand still: with a share of 1 it ends on three feet
            leg=0,  # nearly all is empty around every elite: there is nowhere better to begin again
            first_leg=0,
            reward_every=0,
            reward_first=0,  # with such a share of it
        )
        config = replace(config, search=search, ppo=replace(config.ppo, environments=200))  # of five agents
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
    return _laptop(task)[0], Budget(iterations=2)


def _small(config: PPGAConfig) -> PPGAConfig:
    """The same in seconds."""
    updates = 2 if config.algorithm == "td3ga" else 1
    return replace(
        config,
        search=replace(
            config.search,
            branches=4,
            episodes=1,
            confirm=2,
            recheck=0,
            jacobian_updates=updates,
            reward_first=1,
            first_updates=updates,
            walk_updates=updates,
            emitters=min(config.search.emitters, 2),
            es_samples=4,
        ),
        ppo=replace(config.ppo, environments=30, rollout_length=8, epochs=1, minibatches=2),
        td3=replace(config.td3, batch=8, buffer=400, critic_steps=4, policy_steps=2),
        sac=replace(
            config.sac, population=3, environments=2, steps=20, chunk=10, updates_per_step=0.2, batch=8,
            buffer=400, best=0.34, worst=0.33, archived=0.33,
        ),
        network=NetworkConfig(actor=(8,), critic=(8,)),
        simulation=SimulationConfig(episode_length=20),
        keeping=KeepingConfig(snapshot_iterations=1),
    )  # fmt: skip
