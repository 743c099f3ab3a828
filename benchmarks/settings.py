"""Settings of PPGA for benchmarks."""

import ppga


def ppga_config(preset: str, task: str) -> ppga.PPGAConfig:
    """Settings of a preset of PPGA."""
    config, _ = ppga.preset(preset, task)
    assert isinstance(config, ppga.PPGAConfig)
    return config


def without_reward_phase(config: ppga.PPGAConfig) -> ppga.PPGAConfig:
    """The settings without the long walks for the reward that some runs start with."""
    return config if config.phases is None else config.replace(**{"phases.first_iterations": 0})
