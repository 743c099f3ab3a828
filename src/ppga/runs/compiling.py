"""Which program JAX compiles, for displays."""

import contextlib
from collections.abc import Callable, Iterator

from jax import monitoring

PROGRAMS = {
    "_init_envs": "environments",
    "_collect": "rollout",
    "_update": "PPO update",
    "evaluate_policies": "evaluation",
    "warm_up": "first rollout",
    "_explore_chunk": "rollout",
}
"""Function -> what it does. Other programs take little time to compile."""
TRACED, COMPILED = "/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/backend_compile_duration"


@contextlib.contextmanager
def compilation_shown(show: Callable[[str], None]) -> Iterator[None]:
    """Within this context, call a function when JAX starts to compile a program, and when it has done so.

    Args:
        show: gets what the program does, and an empty text in the end.
    """

    def listen(event: str, duration_secs: float, **kwargs: str | int) -> None:  # noqa: ARG001
        function = str(kwargs.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
        if function in PROGRAMS and event in (TRACED, COMPILED):
            show(PROGRAMS[function] if event == TRACED else "")

    monitoring.register_event_duration_secs_listener(listen)
    try:
        yield
    finally:
        monitoring.unregister_event_duration_listener(listen)
