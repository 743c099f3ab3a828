"""All algorithms by name: class, config class and presets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ppga.algorithms import (
    cma_maega,
    map_elites,
    mcppo,
    no_measures,
    pbt_me,
    pga_me,
    ppga,
    ppga_config,
    ppo,
    ppo_archive,
    qdpg,
    sep_cma_mae,
    td3ga,
)  # fmt: skip
from ppga.algorithms.base import Algorithm, AlgorithmConfig
from ppga.algorithms.presets import DESCRIPTIONS, Preset
from ppga.config import Budget, from_json, to_json
from ppga.errors import InputError, check_choice
from ppga.tasks import Environment, find


@dataclass(frozen=True)
class Entry:
    """An algorithm in the registry.

    Attributes:
        algorithm: the class.
        config: class of its settings.
        presets: name -> preset.
    """

    algorithm: type[Algorithm]
    config: type[AlgorithmConfig]
    presets: Mapping[str, Preset]


_ENTRIES = (
    Entry(ppga.PPGA, ppga_config.PPGAConfig, ppga_config.PRESETS),
    Entry(mcppo.MCPPO, mcppo.MCPPOConfig, mcppo.PRESETS),
    Entry(map_elites.MAPElites, map_elites.MAPElitesConfig, map_elites.PRESETS),
    Entry(pga_me.PGAME, pga_me.PGAMEConfig, pga_me.PRESETS),
    Entry(qdpg.QDPG, qdpg.QDPGConfig, qdpg.PRESETS),
    Entry(cma_maega.CMAMAEGA, cma_maega.CMAMAEGAConfig, cma_maega.PRESETS),
    Entry(sep_cma_mae.SepCMAMAE, sep_cma_mae.SepCMAMAEConfig, sep_cma_mae.PRESETS),
    Entry(pbt_me.PBTME, pbt_me.PBTMEConfig, pbt_me.PRESETS),
    Entry(td3ga.TD3GA, td3ga.TD3GAConfig, td3ga.PRESETS),
    Entry(no_measures.NoMeasures, no_measures.NoMeasuresConfig, no_measures.PRESETS),
    Entry(ppo_archive.PPOArchive, ppo_archive.PPOArchiveConfig, ppo_archive.PRESETS),
    Entry(ppo.PPO, ppo.PPOAlgorithmConfig, ppo.PRESETS),
)
ALGORITHMS: dict[str, Entry] = {entry.config.algorithm: entry for entry in _ENTRIES}


def find_algorithm(name: str) -> Entry:
    """The entry of an algorithm; an InputError names the closest one if there is none of that name."""
    return ALGORITHMS[check_choice("algorithm", name, ALGORITHMS)]


def find_preset(name: str, algorithm: str) -> Preset:
    """The preset of an algorithm; an InputError names those that it has if there is none of that name."""
    presets = find_algorithm(algorithm).presets
    if check_choice("preset", name, DESCRIPTIONS) not in presets:
        raise InputError(f"{algorithm} has no preset {name}; choose one of {', '.join(presets)}.")
    return presets[name]


def preset(name: str, task: str | Environment, algorithm: str = "ppga") -> tuple[AlgorithmConfig, Budget]:
    """Settings and budget of a preset.

    Args:
        name: laptop, paper, smoke or, for PPGA with and without measures, paper-scripts.
        task: its name, FILE.py:NAME, or the task itself.
        algorithm: its name.
    """
    chosen = find_preset(name, algorithm)
    if isinstance(task, str) and ".py:" in task:
        task = find(task)
    return chosen.resolve(task), chosen.budget


def config_to_json(config: AlgorithmConfig) -> dict[str, Any]:
    """An algorithm's settings as nested plain values, with its name."""
    return {"algorithm": config.algorithm, **to_json(config)}


def config_from_json(values: Any) -> AlgorithmConfig:
    """Settings from nested plain values.

    Raises:
        InputError: an unknown algorithm or setting, or a value of the wrong type.
    """
    if not isinstance(values, Mapping) or not isinstance(values.get("algorithm"), str):
        raise InputError(f"settings must be a table that names its algorithm, got {str(values)[:200]!r}.")
    entry = find_algorithm(values["algorithm"])
    rest = {name: value for name, value in values.items() if name != "algorithm"}
    config: AlgorithmConfig = from_json(entry.config, rest)
    return config
