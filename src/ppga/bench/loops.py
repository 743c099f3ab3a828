"""One loop for some minutes in this process, told line by line: what `bench race` begins, once a loop.

python -m ppga.bench.loops LOOP TASK PRESET MINUTES UNTIL EPISODES
"""

import json
import sys
import time
from collections.abc import Callable
from functools import partial

from ppga import machine
from ppga.archives import Archive
from ppga.bench.rivals import Tell, pyribs_cma_mae, qdax_map_elites, qdax_pga_me
from ppga.errors import choose
from ppga.runs import Budget, Iteration, preset, train
from ppga.tasks import find


def ours(algorithm: str, name: str, settings: str, tell: Tell, minutes: float) -> Archive:
    """An algorithm of ours, with the settings that its users get; nothing is written, as in other loops."""
    config, _ = preset(settings, name, algorithm)

    def watch(iteration: Iteration) -> None:
        told = iteration.record
        iteration.stop = not tell(told["env_steps"], told["qd_score"], told["coverage"])

    return train(name, config, budget=Budget(minutes=minutes), callbacks=[watch]).archive


def theirs(
    loop: Callable[[str, str, Tell], Archive], name: str, settings: str, tell: Tell, minutes: float
) -> Archive:
    """A loop of another library; it does not ask how long it will run."""
    del minutes
    return loop(name, settings, tell)


OURS = {name: partial(ours, name) for name in ("ppga", "pga-me", "map-elites")}
THEIRS = {
    "qdax pga-me": partial(theirs, qdax_pga_me),
    "qdax map-elites": partial(theirs, qdax_map_elites),
    "pyribs cma-mae": partial(theirs, pyribs_cma_mae),
}
LOOPS = {**OURS, **THEIRS}
"""Loop -> an archive, of task, preset, `Tell` and the minutes there are."""


def main(loop: str, task: str, settings: str, minutes: str, until: str, episodes: str) -> None:
    """A line after every iteration; then one about memory; then one about the elites, judged again.

    Time is up at `until`, in seconds since the epoch, so that starting counts.
    """

    def tell(steps: int, qd_score: float, coverage: float) -> bool:
        print(json.dumps({"steps": steps, "qd_score": qd_score, "coverage": coverage}), flush=True)
        return time.time() < float(until)

    archive = LOOPS[choose("loop", loop, LOOPS)](find(task), settings, tell, float(minutes))
    print(json.dumps({"peak_gib": machine.peak_memory_gib()}), flush=True)
    from ppga.analysis import corrected  # not before memory was looked at

    again = corrected.evaluate(archive, int(episodes)).corrected
    print(json.dumps({"again": {"qd_score": again.qd_score, "coverage": again.coverage}}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
