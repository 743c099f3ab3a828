"""Speed with one Ray worker and with more, and a prediction for clusters."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

import ppga
from ppga import machine
from ppga.distributed.cluster import Cluster
from ppga.runs import Iteration

from benchmarks.harness import Result
from benchmarks.settings import ppga_config, without_reward_phase

NETWORK, LATENCY = 1.25e9, 2e-4
"""Bytes per second, and seconds until an answer arrives, between machines: 10 Gbit/s Ethernet."""
CLUSTER_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class IterationCost:
    """Mean cost of an iteration.

    Attributes:
        workers: number of workers.
        steps: control steps.
        learner: seconds that the learner computes by itself.
        pool: seconds that the learner waits for the workers.
        busy: seconds that all workers together compute.
        moved: bytes sent and received.
        rounds: calls of all workers.
    """

    workers: int
    steps: float
    learner: float
    pool: float
    busy: float
    moved: float
    rounds: float

    @property
    def speed(self) -> float:
        """Control steps/s."""
        return self.steps / (self.learner + self.pool)


@dataclass(frozen=True)
class CostModel:
    """Seconds of an iteration with n workers: learner + busy / n + moved * per_byte + rounds * per_round.

    Attributes:
        learner: seconds that are not shared.
        busy: seconds that the workers share.
        moved: bytes sent and received.
        rounds: calls of all workers.
        per_byte: seconds in which the learner packs, copies and unpacks a byte.
        per_round: further seconds of a call.
    """

    learner: float
    busy: float
    moved: float
    rounds: float
    per_byte: float
    per_round: float

    def seconds(self, workers: int) -> float:
        """Seconds of an iteration over a network."""
        per_byte, per_round = self.per_byte + 1 / NETWORK, self.per_round + LATENCY
        return self.learner + self.busy / workers + self.moved * per_byte + self.rounds * per_round

    def break_even(self, cores: int) -> float:
        """How many times as large an iteration must be so that a second machine with as many cores pays off.

        Computation, bytes and learning grow with the iteration, rounds do not. Infinite if moving the bytes
        of a step takes longer than half a machine needs to compute it.
        """
        saved = self.busy / cores / 2 - self.moved / NETWORK
        return self.rounds * LATENCY / saved if saved > 0 else float("inf")


def fit(measured: Sequence[IterationCost], typical: IterationCost) -> CostModel:
    """The model whose seconds per byte and per round explain, by least squares, the workers' overhead."""
    overhead = np.array([max(cost.pool - cost.busy / cost.workers, 0.0) for cost in measured])
    causes = np.array([[cost.moved, cost.rounds] for cost in measured])
    per_byte, per_round = np.linalg.lstsq(causes, overhead, rcond=None)[0]
    if min(per_byte, per_round) < 0:  # one of them explains nothing, and the other one everything
        single = overhead.sum() / causes.sum(axis=0)
        per_byte, per_round = (single[0], 0.0) if per_round < 0 else (0.0, single[1])
    return CostModel(
        typical.learner, typical.busy, typical.moved, typical.rounds, float(per_byte), float(per_round)
    )


def bench_scale(task: str, preset: str, environments: int | None, iterations: int) -> list[Result]:
    """Speed of PPGA with one Ray worker, with one for each core, and without Ray.

    Args:
        task: name of the task.
        preset: name of the preset.
        environments: number of environments of the learner; that of the preset by default.
        iterations: iterations that are timed.
    """
    config = without_reward_phase(ppga_config(preset, task)).replace(confirm=None)
    if environments:
        config = config.replace(**{"ppo.environments": environments})
    cores = machine.visible_cores()
    local = measure(task, config, None, iterations)
    costs = [measure(task, config, workers, iterations) for workers in sorted({1, cores})]
    # fewer bytes in as many rounds show which of them takes the time
    short = config.replace(**{"ppo.rollout_length": config.ppo.rollout_length // 2})
    largest = costs[-1]
    model = fit([*costs, measure(task, short, cores, iterations)], largest)
    return [
        Result(f"this process/{task}", local.speed, "steps/s"),
        *(
            Result(f"{cost.workers} workers/{task}", cost.speed, "steps/s", cost.speed / local.speed,
                   "this process")
            for cost in costs
        ),
        Result(f"moved/{task}", largest.moved / 2**20, "MiB per iteration"),
        Result(f"learner/{task}", model.learner, "s per iteration, not shared"),
        Result(f"workers/{task}", model.busy, "core-seconds per iteration, shared"),
        Result(f"transfer/{task}", model.per_byte * 2**20 * 1e3, "ms per MiB"),
        Result(f"round/{task}", model.per_round * 1e3, "ms per round"),
        *(
            Result(f"predicted, {workers} workers/{task}", model.seconds(workers), "s per iteration",
                   model.seconds(1) / model.seconds(workers), "1 worker")
            for workers in CLUSTER_SIZES
        ),
        Result(f"a second machine of {cores} cores pays off from/{task}", model.break_even(cores),
               "times this size"),
    ]  # fmt: skip


def measure(task: str, config: ppga.PPGAConfig, workers: int | None, iterations: int) -> IterationCost:
    """Cost of an iteration with that many Ray workers; without Ray if None."""
    records: list[dict[str, Any]] = []

    def watch(iteration: Iteration) -> None:
        records.append(iteration.record)

    cluster = None if workers is None else Cluster(workers=workers)
    config = config.replace(cluster="none" if cluster is None else "ray")
    budget = ppga.Budget(iterations=iterations + 1)
    ppga.train(task, config, budget=budget, callbacks=[watch], cluster=cluster)
    first, *compiled = records  # the first iteration compiles
    steps = (compiled[-1]["env_steps"] - first["env_steps"]) / iterations
    total = fmean(record["times"]["total"] for record in compiled)
    pool, busy, moved, rounds = (
        fmean(record.get(metric, 0.0) for record in compiled)
        for metric in ("pool_seconds", "busy_seconds", "bytes_moved", "rounds")
    )
    return IterationCost(workers or 0, steps, total - pool, pool, busy, moved, rounds)
