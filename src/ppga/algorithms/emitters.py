"""Algorithms whose search is done by pyribs' emitters on the soft archive: CMA-MAE and CMA-MAEGA."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ppga import random
from ppga.algorithms.base import Algorithm, as_found, under
from ppga.algorithms.problem import Judgement
from ppga.archives import Guidance
from ppga.storage import Like, NumpyArray
from ppga.strategies.plain import load_plain_state, plain_state


class WithEmitters(Algorithm):
    """Asks pyribs' emitters, offers what is judged to both archives, and tells them how it went."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.emitters: list[Any] = []

    def make_emitters(self, first: NumpyArray) -> list[Any]:
        """One for each of the solutions (m, d) to begin at."""
        raise NotImplementedError

    def start(self, elites: Mapping[str, NumpyArray] | None = None) -> None:
        """Begin at random solutions."""
        super().start(elites)
        first = self.problem.random(self.key("first solutions"), self.config.emitters)
        self.emitters = self.make_emitters(first)

    def tell(self, solutions: NumpyArray, judged: Judgement, rows: NumpyArray, guidance: Guidance) -> None:
        """Tell every emitter what its solutions (m, n, d) are worth.

        What could not be judged is told to be worse than all else, in the middle of the measure space.

        Args:
            solutions: of all emitters.
            judged: a judgement that holds theirs.
            rows: (m, n) which rows of it they are.
            guidance: what they mean to the soft archive.
        """
        m, n, _ = solutions.shape
        finite = np.isfinite(guidance.improvement)
        objective, measures = judged.objective[rows.ravel()], judged.measures[rows.ravel()]
        worst = guidance.improvement[finite].min(initial=0.0) - 1.0
        middle = np.array(self.problem.measure_ranges, np.float32).mean(axis=1)
        told = {
            "objective": np.where(finite, objective, objective[finite].min(initial=0.0)),
            "measures": np.where(finite[:, None], measures, middle),
            **self.fields(np.repeat(np.arange(m), n)),
        }
        info = {
            "status": guidance.entered.astype(np.int32),
            "value": np.where(finite, guidance.improvement, worst),
        }
        restarts = sum(emitter.restarts for emitter in self.emitters)
        # where a restart begins is up to the archive
        self.archives.soft.reseed(random.entropy(self.seed, self.iteration, "restart"))
        for number, emitter in enumerate(self.emitters):
            its = slice(number * n, (number + 1) * n)
            emitter.tell(
                solution=solutions[number],
                add_info={name: values[its] for name, values in info.items()},
                **{name: values[its] for name, values in told.items()},
            )
        self.restarts += sum(emitter.restarts for emitter in self.emitters) - restarts

    def state(self) -> dict[str, NumpyArray]:
        """All that is needed to go on, as plain arrays."""
        return super().state() | {
            f"emitter/{number}/{name}": value
            for number, emitter in enumerate(self.emitters)
            for name, value in plain_state(emitter).items()
        }

    def load_state(self, state: Mapping[str, NumpyArray]) -> None:
        """Go on from a `state()`, or raise an InputError that says why it cannot be one of this algorithm."""
        super().load_state(state)
        somewhere = np.zeros((self.config.emitters, self.problem.solution_size), np.float32)
        self.emitters = self.make_emitters(somewhere)
        for number, emitter in enumerate(self.emitters):
            load_plain_state(emitter, under(f"emitter/{number}/", state))

    def expected(self, state: Mapping[str, NumpyArray]) -> dict[str, Like]:
        """Kinds and shapes of all arrays of a `state()`."""
        emitters = (f"emitter/{number}/" for number in range(self.config.emitters))
        return super().expected(state) | as_found(state, *emitters)


def number_of(seed: int, emitter: int) -> int:
    """A seed for an emitter."""
    return int(np.random.SeedSequence([seed, emitter]).generate_state(1)[0])
