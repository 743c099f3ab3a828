"""Displays of a running training."""

import io
from collections.abc import Callable

import numpy as np
import pytest
from rich.console import Console

import ppga
from ppga import Budget
from ppga.problems import Sphere
from ppga.runs.display import Display, Lines, Picture, Silent
from ppga.search import search_warnings
from ppga.strategies import XNES

from helpers.runs import SPHERE


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Lines, ["100%  iteration 3", "coverage"]),
        (Picture, ["QD-score", "coverage", "██", "strategy scale", "100%"]),
    ],
)
def test_a_display_shows_a_run(kind: Callable[[Console], Display], expected: list[str]) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=kind is Picture, width=120)
    ppga.train("sphere", SPHERE, budget=Budget(iterations=3), display=kind(console))
    for text in expected:
        assert text in output.getvalue()


class Programs(Silent):
    """A display that collects the names of compiled programs."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def compiling(self, program: str) -> None:
        self.names.append(program)


def test_programs_are_named_while_they_are_compiled() -> None:
    display = Programs()
    settings, _ = ppga.preset("smoke", "hopper")
    ppga.train("hopper", settings, budget=Budget(iterations=1), display=display)
    assert {"environments", "rollout", "PPO update", "evaluation"} <= set(display.names)
    assert display.names[1::2] == [""] * (len(display.names) // 2), "each is followed by its end"


def test_a_live_view_names_the_program_that_is_compiled() -> None:
    output = io.StringIO()
    picture = Picture(Console(file=output, force_terminal=True, width=120))
    picture.begin("ppga on hopper", 0.0)
    picture.compiling("rollout")
    picture.live.refresh()
    assert "compiling the rollout" in output.getvalue()
    picture.compiling("")
    output.truncate(0)
    picture.end()
    assert "compiling" not in output.getvalue()


def test_a_quiet_display_prints_messages_only() -> None:
    output = io.StringIO()
    console = Console(file=output, width=120)
    display = Lines(console, quiet=True)
    display.begin("ppga on sphere", 0.0)
    display.say("resuming after iteration 3")
    display.end()
    assert output.getvalue() == "resuming after iteration 3\n"


def test_a_warning_is_printed_once() -> None:
    output = io.StringIO()
    display = Lines(Console(file=output, width=200), quiet=True)
    nothing, names = np.zeros(0), Sphere().measure_names
    strategy = XNES(5.0, 3)
    for iteration in range(3):
        strategy.scale = 1e3 * (1 + iteration)
        warnings = search_warnings(strategy, 5.0, np.array([1.0, 0.0, 1.0]), names)
        display.show({"iteration": iteration}, 0.5, warnings, (2, 2), nothing, nothing)
    assert output.getvalue().count("step size has grown") == 1
    assert output.getvalue().count("gradient of first half is nearly zero") == 1
