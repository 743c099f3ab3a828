"""The cost model of runs on several Ray workers."""

from dataclasses import replace

import pytest

from benchmarks.scale import LATENCY, NETWORK, IterationCost, fit


def test_the_cost_model_recovers_the_costs_that_iterations_consist_of() -> None:
    measured = [
        IterationCost(
            n, 1.0, learner=2.0, pool=10 / n + 3e-8 * moved + 0.01 * 12, busy=10.0, moved=moved, rounds=12
        )
        for n, moved in ((1, 3e7), (2, 3e7), (2, 1.5e7))
    ]
    model = fit(measured, measured[1])
    assert model.per_byte == pytest.approx(3e-8)
    assert model.per_round == pytest.approx(0.01)
    network = 3e7 / NETWORK + 12 * LATENCY
    assert model.seconds(5) == pytest.approx(2 + 10 / 5 + 3e-8 * 3e7 + 0.01 * 12 + network)
    saved = 10 / 2 / 2 - 3e7 / NETWORK  # by a second machine of two cores, less the time of its data
    assert model.break_even(2) == pytest.approx(12 * LATENCY / saved)
    assert fit([replace(cost, pool=10 / cost.workers) for cost in measured], measured[0]).per_byte == 0
