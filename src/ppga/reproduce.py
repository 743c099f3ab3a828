"""The paper's experiments, table by table and figure by figure, as studies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ppga.errors import InputError, choose
from ppga.runs import Budget
from ppga.study import Plan, plan

ROBOTS = ("humanoid", "walker2d", "halfcheetah", "ant")
FINE = ":archive.shape=50 50"
"""What makes an archive of 2,500 cells of two measures; ant has 10,000 as it is."""
USUAL = 600_000
"""Evaluations of a run in the paper."""
SCALES = {
    "smoke": "two iterations: shows that it runs",
    "laptop": "ten minutes a run, one seed",
    "paper": "600,000 evaluations a run, four seeds: weeks on a few cores, for clusters",
}


@dataclass(frozen=True)
class Experiment:
    """What one of the paper's tables or figures compares.

    Attributes:
        shows: what it is about.
        systems: as in a study.
        tasks: as in the paper.
        evaluations: of a run, at the paper's scale.
    """

    shows: str
    systems: tuple[str, ...]
    tasks: tuple[str, ...] = ("humanoid",)
    evaluations: int = USUAL


MAIN = ("ppga", "pga-me", "sep-cma-mae", "qdpg", "cma-maega-td3-es")
EXPERIMENTS = {
    "fig-3": Experiment(
        "heatmaps of PPGA and PGA-ME",
        (f"ppga{FINE}", f"pga-me{FINE}"),
        ("humanoid", "walker2d", "halfcheetah"),
    ),
    "fig-4": Experiment("QD-score, coverage, best and CCDF of the main comparison", MAIN, ROBOTS),
    "table-1": Experiment("the same, every elite judged again (corrected metrics)", MAIN, ROBOTS),
    "td3ga": Experiment("PPO or TD3 within PPGA", ("ppga", "td3ga")),
    "recombination": Experiment(
        "walking or recombining, xNES or CMA-ES", ("ppga", "ppga-recombination", "ppga-cma-es")
    ),
    "n1-n2": Experiment(
        "updates for gradients (N1) and for walks (N2)",
        tuple(
            f"ppga:search.jacobian-updates={n1},search.walk-updates={n2}"
            for n1, n2 in ((1, 1), (5, 5), (5, 10), (10, 5), (10, 10))
        ),
    ),
    "ablations": Experiment(
        "PPGA without measures, PPO with an archive", ("ppga", "ppga-no-measures", "ppo-archive")
    ),
    "50x50": Experiment(
        "archives of 50x50 cells",
        tuple(f"{system}{FINE}" for system in MAIN),
        ("humanoid", "walker2d", "halfcheetah"),
    ),
    "longer": Experiment(
        "the same for twice as long, PPGA and PGA-ME",
        (f"ppga{FINE}", f"pga-me{FINE}"),
        ("humanoid", "walker2d", "halfcheetah"),
        1_200_000,
    ),
    "pbt-me": Experiment("PPGA and PBT-ME (SAC)", ("ppga", "pbt-me-sac")),
    "all-systems": Experiment(
        "everything the paper names, on two robots", ("all",), ("halfcheetah", "walker2d")
    ),
}
"""The paper's experiments; those with the same runs find each other's in one folder."""


def planned(
    name: str,
    scale: str,
    tasks: Sequence[str] = (),
    seeds: int | None = None,
    minutes: float | None = None,
    output: Path = Path("reproduce"),
) -> Plan:
    """The study behind one of them.

    Args:
        name: of the experiment.
        scale: how large.
        tasks: other ones than the paper's.
        seeds: other than the scale's.
        minutes: of a run, other than the scale's.
        output: where studies go, a folder for each scale.
    """
    choose("experiment", name, EXPERIMENTS)
    choose("scale", scale, SCALES)
    if minutes is not None and scale == "paper":
        raise InputError("at the paper's scale runs are measured in evaluations; leave --minutes out.")
    experiment = EXPERIMENTS[name]
    budget = {
        "smoke": Budget(iterations=2),
        "laptop": Budget(minutes=(10.0 if minutes is None else minutes) * experiment.evaluations / USUAL),
        "paper": Budget(evaluations=experiment.evaluations),
    }[scale]
    if scale == "smoke" and minutes is not None:
        budget = Budget(minutes=minutes)
    count = seeds or {"smoke": 1, "laptop": 1, "paper": 4}[scale]
    episodes = {"smoke": 2, "laptop": 20, "paper": 50}[scale]
    longer = "-longer" if experiment.evaluations != USUAL and scale != "smoke" else ""
    study = plan(
        tasks or experiment.tasks,
        experiment.systems,
        count,
        budget,
        scale,
        episodes,
        output / f"{scale}{longer}",
    )
    # PPO with an archive judges a tenth as many policies an iteration as PPGA does
    most = round(experiment.evaluations / 300) if scale == "paper" else None
    # experiments of one scale share a folder, and some of its runs; each has a report of its own
    return replace(study, iterations=most, report=f"report-{name}")
