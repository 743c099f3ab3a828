"""Small settings for runs of the slider, and sliders whose numbers are sometimes not finite."""

from typing import Any

import ppga

from helpers.slider import Slider


def slider(corrupted: str = "") -> Slider:
    """A slider; see `Slider.corrupted`."""
    name = "".join(word.title() for word in ("corrupted", *corrupted.split()))
    kind: type[Slider] = type(name, (Slider,), {"corrupted": corrupted})
    return kind()


def settings(algorithm: str = "ppga", /, **changes: Any) -> ppga.AlgorithmConfig:
    """The preset `smoke` with changes by dotted names; with 16 environments if the algorithm has PPO."""
    config, _ = ppga.preset("smoke", slider(), algorithm)
    if hasattr(config, "ppo"):
        changes = {"ppo.environments": 16, "ppo.rollout_length": 16, **changes}
    return config.replace(**changes)
