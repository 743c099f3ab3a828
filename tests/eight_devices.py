"""Learning on eight devices beside learning on one; `test_devices.py` runs this where there are eight."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ppga
from ppga.algorithms import PolicySearch
from ppga.cluster.devices import Devices, spread
from ppga.errors import InputError
from ppga.learners.vppo import Agent, Returns
from ppga.physics import Array
from ppga.policies import Policy
from ppga.rollouts import Judge
from ppga.tasks import find

from conftest import same_runs

SLIDER = f"{Path(__file__).with_name('slider.py')}:Slider"
DEVICES = 8
AGENTS = 2  # reward, and one measure
LENGTH = 4


def config(**ppo: Any) -> ppga.PPGAConfig:
    smoke, _ = ppga.preset("smoke", SLIDER)
    return replace(
        smoke,
        cluster="jax",
        simulation=ppga.SimulationConfig(physics="mjx", episode_length=20),
        ppo=replace(
            smoke.ppo,
            **{"environments": 32, "rollout_length": LENGTH, "epochs": 2, "minibatches": 1, "target_kl": 0.0}
            | ppo,
        ),
    )


@cache
def task() -> ppga.Environment:
    return ppga.make_task(find(SLIDER), physics="mjx", episode_length=20)


@cache
def problem(devices: int) -> PolicySearch:
    """A problem on one device, or on all."""
    made = PolicySearch(task(), config().search, config().ppo, config().network)
    if devices > 1:
        spread(made, Devices())
        assert made.vppo.devices == devices == jax.device_count()
    return made


@cache
def agents() -> Agent:
    vppo = problem(1).vppo
    policies = jax.vmap(vppo.init_policy)(jax.random.split(jax.random.key(1), AGENTS))
    skills = jax.vmap(vppo.init_skill)(jax.random.split(jax.random.key(2), AGENTS))
    returns = jax.tree.map(lambda leaf: jnp.stack([leaf] * AGENTS), Returns.unknown(AGENTS))
    return Agent(policies, returns, skills)


def keys() -> Array:
    return jax.random.split(jax.random.key(3), AGENTS)


def plain(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)


def close(one: Any, other: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), plain(one), plain(other)
    )


def test_each_device_makes_the_rollouts_of_its_own_environments() -> None:
    many, one = problem(DEVICES).vppo, problem(1).vppo
    worlds = many.init_worlds(jax.random.key(0))
    begin = plain(worlds)
    after, seen = many.collect(agents(), worlds, keys())
    assert seen.observation.shape == (AGENTS, 16, LENGTH, task().observation_size)
    assert len(seen.observation.sharding.device_set) == DEVICES
    for device in (0, 5):
        mine = slice(device * 4, (device + 1) * 4)  # 2 environments of each agent
        own = jax.vmap(lambda key, device=device: jax.random.fold_in(key, device))(keys())
        here = jax.tree.map(lambda leaf, mine=mine: jnp.asarray(leaf[mine]), begin)
        later, alone = one.collect(agents(), here, own)
        close(later, jax.tree.map(lambda leaf, mine=mine: leaf[mine], after))
        close(alone, jax.tree.map(lambda leaf, d=device: leaf[:, 2 * d : 2 * d + 2], seen))


def test_all_devices_together_learn_what_one_would_of_all_they_saw() -> None:
    many, one = problem(DEVICES).vppo, problem(1).vppo
    _, seen = many.collect(agents(), many.init_worlds(jax.random.key(0)), keys())
    weights, all_seen = jnp.eye(AGENTS), jax.tree.map(jnp.asarray, plain(seen))
    learnt, report, _ = many.update(agents(), seen, weights, keys())
    alone, told, _ = one.update(agents(), all_seen, weights, keys())
    assert np.abs(np.asarray(learnt.policy.parameters - agents().policy.parameters)).max() > 1e-4
    close(learnt, alone)
    close(report, told)
    close(many.observe(agents(), seen), one.observe(agents(), all_seen))
    way = many.update_watched(agents(), seen, weights, keys())[2]
    assert way is not None
    close(way[:, -1], alone.policy.parameters)


def test_policies_are_judged_the_same_by_any_number_of_devices() -> None:
    n = 13
    many: Policy = jax.vmap(problem(1).vppo.init_policy)(jax.random.split(jax.random.key(1), n))
    many = replace(many, parameters=many.parameters + 0.3 * jax.random.normal(jax.random.key(2), (n, 1)))
    playing = np.arange(n) != 5
    settings = (task(), problem(1).actor, 2, False, True)
    whole, film = Judge(*settings)(many, jax.random.key(3), playing)
    cut, shared = problem(DEVICES).make_judge(*settings)(many, jax.random.key(3), playing)
    assert np.ptp(whole.objective) > 0
    assert whole.steps[5].tolist() == [0, 0]
    assert film is not None
    assert shared is not None
    assert shared.observation.shape == (n, 20, task().observation_size)
    close(cut, whole)
    close(shared.action, film.action)


def test_a_restart_renews_the_environments_of_its_own_search_policy() -> None:
    settings = config(environments=64)
    search = replace(settings.search, emitters=2)
    made = PolicySearch(task(), search, settings.ppo, settings.network)
    spread(made, Devices())
    assert made.vppo.owners(2).tolist() == ([0] * 4 + [1] * 4) * 8
    state = made.start(jax.random.key(0))
    before = np.asarray(state.worlds.state.steps)
    elite = {name: values[0] for name, values in made.kept(state).items()}
    elite["solution"] = made.solutions(state)[0]
    moved = made.move(state, 1, elite, jax.random.key(1))
    steps = np.asarray(moved.worlds.state.steps)
    assert (before > 0).all()
    np.testing.assert_array_equal(steps == 0, made.vppo.owners(2) == 1)
    walked, _ = made.walk(moved, np.eye(2), jax.random.key(2), 1)
    assert np.isfinite(made.solutions(walked)).all()


def test_a_run_on_eight_devices_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    records = []
    ppga.train(
        SLIDER, config(), budget=ppga.Budget(iterations=3), output=tmp_path / "whole",
        callbacks=[lambda iteration: records.append(iteration.record)],
    )  # fmt: skip
    ppga.train(SLIDER, config(), budget=ppga.Budget(iterations=2), output=tmp_path / "parts")
    ppga.resume(tmp_path / "parts", budget=ppga.Budget(iterations=3), task=SLIDER)
    same_runs(tmp_path / "whole", tmp_path / "parts")
    assert records[-1]["devices"] == DEVICES
    assert records[-1]["coverage"] > 0


def test_what_cannot_be_shared_is_told_before_training() -> None:
    def refused(settings: ppga.PPGAConfig, name: str = SLIDER) -> str:
        with pytest.raises(InputError) as told:
            ppga.train(name, settings, budget=ppga.Budget(iterations=1))
        return str(told.value)

    assert "--ppo.environments 32 can" in refused(config(environments=30))
    assert "on each of 8 devices cannot be cut into 16 minibatches" in refused(config(minibatches=16))
    assert "--simulation.physics mjx" in refused(
        replace(config(), simulation=ppga.SimulationConfig(physics="mujoco"))
    )
    assert "here there are none" in refused(config(), "sphere")
