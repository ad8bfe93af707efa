"""In virtual time: a small request has its first token within twice its time alone plus one step, whatever another
client sends, and neither client starves."""

from __future__ import annotations

import pytest
from benchmarks.fairness import BUSY, LOADS, SMALL, Load, Simulation, batch, delay, streams

from onward.engine import scheduler


@pytest.mark.parametrize(
    ("name", "arrival"),
    [
        ("1 streams", 5),
        ("16 streams", 2),
        ("64 streams", 20),
        ("256 streams", 60),
        ("1 prompts of 4,000 tokens", 5),
        ("4 prompts of 4,000 tokens", 60),
        ("64 prompts of 4,000 tokens", 20),
        ("9 × n=128", 20),
        ("2,048 prompts in one request", 5),
        ("2,048 prompts in one request", 60),
    ],
)
def test_a_small_request_waits_at_most_twice_its_time_alone_and_one_step(name: str, arrival: int) -> None:
    alone = delay(None, 0).ttft
    assert delay(LOADS[name], arrival).excess(alone) <= 0


@pytest.mark.parametrize(("name", "arrival"), [("1 prompts of 4,000 tokens", 1), ("4 prompts of 4,000 tokens", 5)])
def test_a_small_request_would_wait_longer_if_prompts_of_others_filled_its_step(
    name: str, arrival: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "_share", lambda budget, *_: budget)
    assert delay(LOADS[name], arrival).excess(delay(None, 0).ttft) > 0


@pytest.mark.parametrize("load", [streams(2, prompt=2000, out=8), batch(40)], ids=["long", "batch"])
def test_a_stream_of_small_requests_does_not_starve_the_other_client(load: Load) -> None:
    """One arrives in every step, and the busy client's requests still finish."""
    simulation = Simulation()
    load(simulation)
    scheduler = simulation.engine.engine.scheduler
    for _ in range(600):
        simulation.submit(64, 1, client=SMALL)
        simulation.engine.step()
        simulation.engine.engine.check()
        if all(sequence.job.client != BUSY for sequence in scheduler.sequences()):
            return
    raise AssertionError("the busy client starves")


def test_prompts_of_two_clients_prefill_with_more_decodes_than_two_tiles() -> None:
    simulation = Simulation(max_rows=256)
    for _ in range(200):
        simulation.submit(4, 1000, client=BUSY)
    while len(simulation.engine.engine.scheduler.running) < 200:
        simulation.engine.step()
    numbers = [simulation.submit(5, 1000, client=client) for client in (SMALL, SMALL + 1)]
    for _ in range(4):
        simulation.engine.step()
    assert all(map(simulation.engine.has_first_token, numbers))
