"""Tasks are made once for the whole run; tests share what XLA has compiled where they can."""

from functools import cache
from typing import Any

import pytest

from ppga.tasks import Task, make_task

NAMES = ("halfcheetah", "walker2d", "hopper", "ant", "humanoid")


@cache
def shared_task(name: str, **options: Any) -> Task:
    return make_task(name, **options)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)
