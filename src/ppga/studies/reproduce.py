"""The paper's experiments, table by table and figure by figure, as studies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ppga.algorithms.presets import PAPER_EVALUATIONS
from ppga.config import Budget
from ppga.errors import InputError, check_choice
from ppga.studies.plan import Study, plan_study

ROBOTS = ("humanoid", "walker2d", "halfcheetah", "ant")
TWO_MEASURES = ROBOTS[:3]
SHAPE_50 = ":archive.shape=50 50"
"""An archive of 2,500 cells for two measures; the default of ant is 10,000 cells."""
SCALES = {
    "smoke": "two iterations: shows that it runs",
    "laptop": "ten minutes a run, one seed",
    "paper": "600,000 evaluations a run, four seeds: weeks on a few cores, for clusters",
}


@dataclass(frozen=True)
class Experiment:
    """A comparison in one of the paper's tables or figures.

    Attributes:
        description: what it compares.
        systems: names of systems, see `ppga.studies.System`.
        tasks: the paper's tasks.
        evaluations: evaluations of a run at the paper's scale.
    """

    description: str
    systems: tuple[str, ...]
    tasks: tuple[str, ...] = ("humanoid",)
    evaluations: int = PAPER_EVALUATIONS


MAIN = ("ppga", "pga-me", "sep-cma-mae", "qdpg", "cma-maega-td3-es")
PPGA_AND_PGA_ME = (f"ppga{SHAPE_50}", f"pga-me{SHAPE_50}")
EXPERIMENTS = {
    "fig-3": Experiment("heatmaps of PPGA and PGA-ME", PPGA_AND_PGA_ME, TWO_MEASURES),
    "fig-4": Experiment("QD-score, coverage, best and CCDF of the main comparison", MAIN, ROBOTS),
    "table-1": Experiment("the main comparison with re-evaluated elites (corrected metrics)", MAIN, ROBOTS),
    "td3ga": Experiment("PPO or TD3 within PPGA", ("ppga", "td3ga")),
    "recombination": Experiment(
        "walk or recombination, xNES or CMA-ES", ("ppga", "ppga-recombination", "ppga-cma-es")
    ),
    "n1-n2": Experiment(
        "updates for gradients (N1) and for walks (N2)",
        tuple(
            f"ppga:jacobian_updates={n1},walk_updates={n2}"
            for n1, n2 in ((1, 1), (5, 5), (5, 10), (10, 5), (10, 10))
        ),
    ),
    "ablations": Experiment(
        "PPGA without measures, PPO with an archive", ("ppga", "ppga-no-measures", "ppo-archive")
    ),
    "50x50": Experiment(
        "archives of 50x50 cells", tuple(f"{system}{SHAPE_50}" for system in MAIN), TWO_MEASURES
    ),
    "longer": Experiment(
        "PPGA and PGA-ME with twice as many evaluations", PPGA_AND_PGA_ME, TWO_MEASURES, 1_200_000
    ),
    "pbt-me": Experiment("PPGA and PBT-ME (SAC)", ("ppga", "pbt-me-sac")),
    "all-systems": Experiment(
        "all systems of the paper on two robots", ("all",), ("halfcheetah", "walker2d")
    ),
}
"""The paper's experiments. Experiments with the same runs share them."""


def plan_experiment(
    name: str,
    scale: str,
    tasks: Sequence[str] = (),
    seeds: int | None = None,
    minutes: float | None = None,
    output: Path = Path("reproduce"),
) -> Study:
    """The study of an experiment.

    Args:
        name: name of the experiment.
        scale: smoke, laptop or paper.
        tasks: tasks in place of the paper's.
        seeds: number of seeds in place of the scale's.
        minutes: minutes of a run in place of the scale's.
        output: folder of all studies, with a folder for each scale.
    """
    check_choice("experiment", name, EXPERIMENTS)
    check_choice("scale", scale, SCALES)
    if minutes is not None and scale == "paper":
        raise InputError("at the paper's scale, runs are measured in evaluations; leave out --minutes.")
    experiment = EXPERIMENTS[name]
    budget = {
        "smoke": Budget(iterations=2),
        "laptop": Budget(
            minutes=(10.0 if minutes is None else minutes) * experiment.evaluations / PAPER_EVALUATIONS
        ),
        "paper": Budget(evaluations=experiment.evaluations),
    }[scale]
    if scale == "smoke" and minutes is not None:
        budget = Budget(minutes=minutes)
    longer = "-longer" if experiment.evaluations != PAPER_EVALUATIONS and scale != "smoke" else ""
    study = plan_study(
        tasks or experiment.tasks,
        experiment.systems,
        seeds or {"smoke": 1, "laptop": 1, "paper": 4}[scale],
        budget,
        scale,
        {"smoke": 2, "laptop": 20, "paper": 50}[scale],
        output / f"{scale}{longer}",
    )
    # PPO with an archive evaluates a tenth as many policies in an iteration as PPGA
    max_iterations = round(experiment.evaluations / 300) if scale == "paper" else None
    # experiments of one scale share a folder and some runs; each has its own report
    return replace(study, max_iterations=max_iterations, report=f"report-{name}")
