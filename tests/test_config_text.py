"""Settings from text, as commands and studies take them: `ppga.config.replace_from_text`."""

from typing import Any

import pytest

import ppga
from ppga.config import replace_from_text, replace_nested
from ppga.errors import InputError

LAPTOP, _ = ppga.preset("laptop", "halfcheetah")
PAPER, _ = ppga.preset("paper", "halfcheetah")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("branches", "36", 36),
        ("ppo.gamma", "0.98", 0.98),
        ("ppo.learning_rate", "3e-4", 3e-4),
        ("ppo.target-kl", "1", 1.0),
        ("ppo.reset-optimizer", "True", True),
        ("ppo.bootstrap_truncated", "true", True),
        ("strategy.kind", "cma-es", "cma-es"),
        ("step", " recombination ", "recombination"),
        ("archive.shape", "50 50", (50, 50)),
        ("archive.shape", "5,7", (5, 7)),
        ("archive.shape", "5, 7", (5, 7)),
        ("archive.shape", "None", None),
        ("network.actor", "", ()),
        ("simulation.threads", "2", 2),
        ("simulation.threads", "none", None),
        ("label", "a = b", "a = b"),
        ("label", "none", None),
        ("archive.threshold_min", "-200", -200.0),
    ],
)
def test_a_text_becomes_a_value_of_the_type_of_its_setting(name: str, text: str, value: Any) -> None:
    changed = replace_from_text(LAPTOP, {name: text})
    setting = name.replace("-", "_")
    assert changed == replace_nested(LAPTOP, {setting: value})
    result: Any = changed
    for part in setting.split("."):
        result = getattr(result, part)
    assert type(result) is type(value), "1 and 1.0 are equal"


def test_all_settings_are_changed_and_the_config_stays_as_it_was() -> None:
    before = PAPER.replace()
    changed = replace_from_text(PAPER, {"branches": "36", "ppo.gamma": "0.9", "walk-updates": "3"})
    assert changed == PAPER.replace(**{"branches": 36, "ppo.gamma": 0.9, "walk_updates": 3})
    assert before == PAPER
    assert replace_from_text(PAPER, {}) == PAPER


def test_a_section_is_removed_and_added() -> None:
    assert replace_from_text(LAPTOP, {"confirm": "none"}) == LAPTOP.replace(confirm=None)
    assert PAPER.confirm is None
    added = replace_from_text(PAPER, {"confirm": "default"})
    assert added.confirm is not None
    assert replace_from_text(PAPER, {"confirm.episodes": "3"}) == added.replace(**{"confirm.episodes": 3})


@pytest.mark.parametrize("first", ["confirm", "confirm.max-measure-std"])
def test_a_section_that_is_disabled_cannot_have_settings(first: str) -> None:
    texts = {"confirm": "none", "confirm.max-measure-std": "0"}
    with pytest.raises(InputError, match="--confirm none disables what --confirm"):
        replace_from_text(LAPTOP, {first: texts[first], **texts})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("branches", "many", "branches must be an integer, got 'many'."),
        ("branches", "3.5", "branches must be an integer, got '3.5'."),
        ("branches", "", "branches must be an integer, got ''."),
        ("branches", str(2**63), f"branches must be an integer, got '{2**63}'."),
        ("branches", "none", "branches must be an integer, got 'none'."),
        ("ppo.gamma", "0,9", "ppo.gamma must be a number, got '0,9'."),
        ("ppo.reset-optimizer", "1", "ppo.reset_optimizer must be true or false, got '1'."),
        ("archive.shape", "5 x", "archive.shape must be an integer, got 'x'."),
        ("simulation.threads", "all", "simulation.threads must be an integer or none, got 'all'."),
        ("strategy.kind", "xness", "'xness'. Did you mean 'xnes'? Possible: xnes, cma-es."),
        ("ppo", "none", "ppo must be default, got 'none'."),
        ("confirm", "3", "confirm must be default or none, got '3'."),
        ("strategy.sigma", "1", "unknown setting 'strategy.sigma'. Did you mean 'strategy.sigma0'? "
         "Possible: strategy.kind, strategy.sigma0, strategy.mean."),
        ("search.sigma0", "1", "Did you mean 'strategy.sigma0'? Possible: seed, evaluation,"),
        ("td3.gamma", "1", "Did you mean 'ppo.gamma'?"),
        ("ppo.gamma.x", "1", "Did you mean 'ppo.gamma'?"),
        ("", "1", "unknown setting ''. Possible: seed,"),
    ],
)  # fmt: skip
def test_an_error_says_what_is_accepted_and_what_was_given(name: str, text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        replace_from_text(LAPTOP, {name: text})
    assert message in str(error.value)
