"""Tasks are made once for the whole run; tests share what XLA has compiled where they can."""

from functools import cache
from typing import Any

import hypothesis
import pytest

from ppga.tasks import Task, make_task

# no deadlines: how long an example takes says more about the machine than about the code
hypothesis.settings.register_profile("ppga", deadline=None)
hypothesis.settings.load_profile("ppga")

NAMES = ("halfcheetah", "walker2d", "hopper", "ant", "humanoid-full")


@cache
def shared_task(name: str, **options: Any) -> Task:
    return make_task(name, **options)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
