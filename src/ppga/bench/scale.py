"""How far a cluster carries: iterations on one worker and on more, and what that says of many."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ppga import machine
from ppga.bench.harness import Result
from ppga.cluster.crew import Cluster
from ppga.runs import Budget, Iteration, PPGAConfig, preset, train

NETWORK, LATENCY = 1.25e9, 2e-4
"""Bytes a second, and seconds until an answer comes, between machines: 10 Gbit/s Ethernet."""
MANY = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class Spent:
    """What an iteration takes, in the mean.

    Attributes:
        workers: that made the rollouts.
        steps: control steps.
        learner: seconds that the learner works by itself.
        crew: seconds that it waits for its crew.
        busy: seconds that all workers together compute.
        moved: bytes there and back.
        rounds: calls of the whole crew.
    """

    workers: int
    steps: float
    learner: float
    crew: float
    busy: float
    moved: float
    rounds: float


@dataclass(frozen=True)
class Model:
    """Seconds of an iteration on n workers: learner + busy / n + moved * byte + rounds * round.

    Attributes:
        learner: what nobody shares.
        busy: what all share.
        moved: bytes there and back.
        rounds: calls of the whole crew.
        byte: seconds a byte takes, to be packed, copied and unpacked by the learner.
        round: seconds a call takes besides.
    """

    learner: float
    busy: float
    moved: float
    rounds: float
    byte: float
    round: float

    def seconds(self, workers: int) -> float:
        """Of an iteration, over a network."""
        byte, round_ = self.byte + 1 / NETWORK, self.round + LATENCY
        return self.learner + self.busy / workers + self.moved * byte + self.rounds * round_

    def pays(self, cores: int) -> float:
        """How many times as large an iteration must be before a second machine with as many cores pays.

        What is computed, moved and learnt grows with it, rounds do not. Infinite if moving a step's bytes
        takes longer than half of a machine computes it.
        """
        saved = self.busy / cores / 2 - self.moved / NETWORK
        return self.rounds * LATENCY / saved if saved > 0 else float("inf")


def fit(measured: Sequence[Spent], typical: Spent) -> Model:
    """The model by least squares: of what the crew took beyond computing, how much goes with bytes."""
    beyond = np.array([max(spent.crew - spent.busy / spent.workers, 0.0) for spent in measured])
    causes = np.array([[spent.moved, spent.rounds] for spent in measured])
    byte, round_ = np.linalg.lstsq(causes, beyond, rcond=None)[0]
    if min(byte, round_) < 0:  # one of them explains nothing, and the other all
        alone = beyond.sum() / causes.sum(axis=0)
        byte, round_ = (alone[0], 0.0) if round_ < 0 else (0.0, alone[1])
    return Model(typical.learner, typical.busy, typical.moved, typical.rounds, float(byte), float(round_))


def bench_scale(name: str, settings: str, environments: int | None, iterations: int) -> list[Result]:
    """Iterations of PPGA by Ray's workers: one, and one for each core; and in this process, to compare."""
    config, _ = preset(settings, name)
    config = replace(config, search=replace(config.search, reward_first=0, confirm=0, steady=0.0, recheck=0))
    if environments:
        config = replace(config, ppo=replace(config.ppo, environments=environments))
    alone = measure(name, config, None, iterations)
    cores = machine.visible_cores()
    counts = sorted({1, cores})
    crews = [measure(name, config, workers, iterations) for workers in counts]
    # a smaller one, to tell what goes with bytes from what goes with calls
    short = replace(config, ppo=replace(config.ppo, rollout_length=config.ppo.rollout_length // 2))
    model = fit([*crews, measure(name, short, cores, iterations)], crews[-1])
    results = [Result(f"this process/{name}", alone.steps / (alone.learner + alone.crew), "steps/s")]
    for spent in crews:
        speed = spent.steps / (spent.learner + spent.crew)
        results.append(
            Result(
                f"{spent.workers} workers/{name}", speed, "steps/s", speed / results[0].value, "this process"
            )
        )
    most = crews[-1]
    return [
        *results,
        Result(f"bytes/{name}", most.moved / 2**20, "MiB an iteration"),
        Result(f"learner/{name}", model.learner, "s an iteration, not shared"),
        Result(f"workers/{name}", model.busy, "core-seconds an iteration, shared"),
        Result(f"byte/{name}", model.byte * 2**20 * 1e3, "ms a MiB"),
        Result(f"round/{name}", model.round * 1e3, "ms a round"),
        *(
            Result(f"predicted, {workers} workers/{name}", model.seconds(workers), "s an iteration",
                   model.seconds(1) / model.seconds(workers), "1 worker")
            for workers in MANY
        ),
        Result(f"a second machine of {cores} cores pays from/{name}", model.pays(cores), "of this size"),
    ]  # fmt: skip


def measure(name: str, config: PPGAConfig, workers: int | None, iterations: int) -> Spent:
    """What an iteration takes with so many workers; in this process without any."""
    records = []

    def watch(iteration: Iteration) -> None:
        records.append(iteration.record)

    config = replace(config, cluster="none" if workers is None else "ray")
    cluster = None if workers is None else Cluster(workers=workers)
    train(name, config, budget=Budget(iterations=iterations + 1), callbacks=[watch], cluster=cluster)
    # the first one compiles
    steps = (records[-1]["env_steps"] - records[0]["env_steps"]) / iterations
    later = records[1:]
    total = fmean(record["times"]["total"] for record in later)
    crew, busy, moved, rounds = (
        fmean(record.get(what, 0.0) for record in later)
        for what in ("crew_seconds", "busy_seconds", "bytes_moved", "rounds")
    )
    return Spent(workers or 0, steps, total - crew, crew, busy, moved, rounds)
