"""The scenarios of benchmarks.reach on small models: that they measure what they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.arms import ONWARD, PEER
from benchmarks.asking import Asker, gaps_between
from benchmarks.compare import compare
from benchmarks.engine import Round
from benchmarks.outcome import Outcome
from benchmarks.server_process import serve

from benchmarks import reach, render_reach

VOCABULARY = 270


@pytest.fixture(scope="module")
def subject() -> Iterator[reach.Subject]:
    with serve("toy") as cached, serve("toy", "--no-prefix-cache") as uncached:
        yield reach.Subject(Asker(cached, "toy", VOCABULARY), Asker(uncached, "toy", VOCABULARY), 1024)


@pytest.mark.parametrize("name", ["candidates", "shared_prefix", "scoring"])
def test_a_scenario_gives_both_its_figures_and_their_ratio(subject: reach.Subject, name: str) -> None:
    found = reach.repeat(reach.SCENARIOS[name], subject, runs=2)
    one, other = (figure["median"] for figure in found["figures_ms"].values())
    assert one > 0 and other > 0 and found["ratio"]["rounds"] == 2 and found["ratio"]["least"] > 0
    assert found["what"] in reach.line("toy", found) and "{" not in found["what"]


def test_gaps_of_running_streams_are_told_apart_by_when_another_prompt_is_read() -> None:
    with serve("storyteller", "--speculation", "off") as server:
        asker = Asker(server, "storyteller", 8192)
        before, during = asker.beside(2, 8, 700, prompt=40, intruder=250)
    assert len(before) > 2 and during and len(before) + len(during) < 2 * 699


class FakeAsker:
    """Streams whose gaps are known."""

    def beside(self, *sizes: int, prompt: int, intruder: int) -> tuple[list[float], list[float]]:
        assert (*sizes, prompt, intruder) == (4, 64, 576, 128, 4000)
        return [0.01] * 90 + [0.02] * 10, [0.01] * 90 + [0.05] * 10


def test_a_long_prompt_is_judged_by_the_slowest_twentieth() -> None:
    asker: Any = FakeAsker()
    found = reach.long_prompt(reach.Subject(asker, asker, 32_768))
    assert (
        found.tokens == 4000 and found.figures == {"quiet": 20.0, "beside": 50.0} and found.ratio == pytest.approx(2.5)
    )


def test_prompts_are_never_the_same(subject: reach.Subject) -> None:
    drawn = [tuple(subject.cached.fresh(50)) for _ in range(20)]
    assert len(set(drawn)) == 20


def test_an_answer_that_is_a_refusal_ends_the_run(subject: reach.Subject) -> None:
    with pytest.raises(RuntimeError, match="status 400"):
        subject.cached.seconds([{"prompt": "a", "max_tokens": -1}])
    with pytest.raises(RuntimeError, match="streams of 4 tokens"):
        subject.cached.beside(2, 64, 4, prompt=40, intruder=900)


def test_only_gaps_that_end_in_the_span_are_counted() -> None:
    outcome = Outcome(10.0, 20.0, first=1.0, gaps=[1.0, 2.0, 3.0])
    assert gaps_between(outcome, 11.0, 14.0) == [1.0, 2.0]
    assert gaps_between(outcome, 14.0, 20.0) == [3.0]


def spread(value: float) -> dict[str, float]:
    return {"median": value, "least": value, "greatest": value, "rounds": 1}


def test_reach_is_rendered_with_its_aims() -> None:
    scenario = reach.SCENARIOS["scoring"]
    found = {
        "what": scenario.what,
        "aim": scenario.aim,
        "lower": scenario.lower,
        "figures_ms": {"uncached": spread(400.0), "cached": spread(100.0)},
        "ratio": spread(4.0),
    }
    lines = render_reach.reach_section({"models": {"m": {"scoring": found}}})
    assert lines[-1] == f"| m | {scenario.what} | 4.00× (4.00 to 4.00) | ≥ 3× | uncached 400.0, cached 100.0 |"


def test_a_comparison_is_rendered_with_ratios_before_figures() -> None:
    done = {
        name: Round(tok_s, None, [Outcome(0.0, 64 / tok_s, first=0.25, gaps=[0.1], tokens=64, chunks=2)])
        for name, tok_s in ((f"{ONWARD} int8", 30.0), (f"{PEER} Q8_0", 20.0))
    }
    settings = {"Q8_0": {"chosen": "2 threads, separate caches", "flags": [], "tried_tok_s": {}}}
    figures = json.loads(json.dumps({"8": {**compare([done]), "idle_cpu": 0.004, "peer_settings": settings}}))
    lines = render_reach.compare_section({"families": {"m": figures}, "peer": "version: 1"})
    row = "| m | 8 | Onward int8 : llama-server Q8_0 | **1.50×** (1.50 to 1.50) | 1.00× (1.00 to 1.00) |"
    assert sum(line.startswith(row) for line in lines) == 1
    assert "| m | 8 | llama-server Q8_0 | 20 | 250.0 / 250.0 | 100.0 / 100.0 |" in lines
    assert "0.4% of a core" in lines[-1] and "m Q8_0 with 8 clients 2 threads, separate caches" in lines[-1]
