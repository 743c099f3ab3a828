"""Waiting for a browser."""

import time
from typing import Any


def until(condition: Any, what: str, seconds: float = 300) -> Any:
    """Wait until a condition holds, and return its value.

    Args:
        condition: called repeatedly.
        what: name of the condition, for the error.
        seconds: when to give up.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.2)
    raise AssertionError(f"not within {seconds:g} seconds: {what}")
