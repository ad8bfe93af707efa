"""The scenarios of benchmarks.reach measure what they claim, on small models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.arms import ONWARD, PEER
from benchmarks.compare import compare
from benchmarks.engine import Round
from benchmarks.outcome import Outcome
from benchmarks.server_process import serve
from benchmarks.timed_client import TimedClient, gaps_between

from benchmarks import reach, render_reach

VOCABULARY = 270


@pytest.fixture(scope="module")
def servers() -> Iterator[reach.ServerPair]:
    with serve("toy") as cached, serve("toy", "--no-prefix-cache") as uncached:
        yield reach.ServerPair(TimedClient(cached, "toy", VOCABULARY), TimedClient(uncached, "toy", VOCABULARY), 1024)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["candidates", "shared_prefix", "scoring"])
def test_a_scenario_has_two_figures_and_their_ratio(servers: reach.ServerPair, name: str) -> None:
    found = reach.repeat(reach.SCENARIOS[name], servers, runs=2)
    one, other = (figure["median"] for figure in found["figures_ms"].values())
    assert one > 0 and other > 0 and found["ratio"]["rounds"] == 2 and found["ratio"]["least"] > 0
    assert found["what"] in reach.line("toy", found) and "{" not in found["what"]


@pytest.mark.slow
def test_gaps_of_running_streams_are_divided_by_the_prefill_of_another_prompt() -> None:
    with serve("storyteller", "--speculation", "off") as server:
        client = TimedClient(server, "storyteller", 8192)
        before, during = client.gaps_beside(2, 8, 700, prompt=40, long_prompt=250)
    assert len(before) > 2 and during and len(before) + len(during) < 2 * 699


class FakeClient:
    """A client whose streams have known gaps."""

    def gaps_beside(self, *sizes: int, prompt: int, long_prompt: int) -> tuple[list[float], list[float]]:
        assert (*sizes, prompt, long_prompt) == (4, 64, 576, 128, 4000)
        return [0.01] * 90 + [0.02] * 10, [0.01] * 90 + [0.05] * 10


def test_a_long_prompt_is_measured_by_the_95th_percentile() -> None:
    client: Any = FakeClient()
    found = reach.long_prompt(reach.ServerPair(client, client, 32_768))
    assert (
        found.tokens == 4000 and found.figures == {"quiet": 20.0, "beside": 50.0} and found.ratio == pytest.approx(2.5)
    )


@pytest.mark.slow
def test_prompts_are_never_the_same(servers: reach.ServerPair) -> None:
    prompts = [tuple(servers.cached.new_prompt(50)) for _ in range(20)]
    assert len(set(prompts)) == 20


@pytest.mark.slow
def test_an_error_response_aborts_the_run(servers: reach.ServerPair) -> None:
    with pytest.raises(RuntimeError, match="status 400"):
        servers.cached.seconds([{"prompt": "a", "max_tokens": -1}])
    with pytest.raises(RuntimeError, match="streams of 4 tokens"):
        servers.cached.gaps_beside(2, 64, 4, prompt=40, long_prompt=900)


def test_only_gaps_that_end_within_the_interval_count() -> None:
    outcome = Outcome(10.0, 20.0, ttft=1.0, gaps=[1.0, 2.0, 3.0])
    assert gaps_between(outcome, 11.0, 14.0) == [1.0, 2.0]
    assert gaps_between(outcome, 14.0, 20.0) == [3.0]


def spread(value: float) -> dict[str, float]:
    return {"median": value, "least": value, "greatest": value, "rounds": 1}


def test_scenarios_are_rendered_with_their_aims() -> None:
    scenario = reach.SCENARIOS["scoring"]
    found = {
        "what": scenario.what,
        "aim": scenario.aim,
        "lower": scenario.is_lower_better,
        "figures_ms": {"uncached": spread(400.0), "cached": spread(100.0)},
        "ratio": spread(4.0),
    }
    lines = render_reach.reach_section({"models": {"m": {"scoring": found}}})
    assert lines[-1] == f"| m | {scenario.what} | 4.00× (4.00 to 4.00) | ≥ 3× | uncached 400.0, cached 100.0 |"


def test_a_comparison_is_rendered_with_ratios_before_figures() -> None:
    done = {
        name: Round(tok_s, None, [Outcome(0.0, 64 / tok_s, ttft=0.25, gaps=[0.1], tokens=64, chunks=2)])
        for name, tok_s in ((f"{ONWARD} int8", 30.0), (f"{PEER} Q8_0", 20.0))
    }
    settings = {"Q8_0": {"chosen": "2 threads, separate caches", "flags": [], "tried_tok_s": {}}}
    figures = json.loads(json.dumps({"8": {**compare([done]), "idle_cpu": 0.004, "peer_settings": settings}}))
    lines = render_reach.compare_section({"families": {"m": figures}, "peer": "version: 1"})
    row = "| m | 8 | Onward int8 : llama-server Q8_0 | **1.50×** (1.50 to 1.50) | 1.00× (1.00 to 1.00) |"
    assert sum(line.startswith(row) for line in lines) == 1
    assert "| m | 8 | llama-server Q8_0 | 20 | 250.0 / 250.0 | 100.0 / 100.0 |" in lines
    assert "0.4% of a core" in lines[-1] and "m Q8_0 with 8 clients: 2 threads, separate caches" in lines[-1]
