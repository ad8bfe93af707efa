"""Sweep, queueing and soak count and assess correctly, on the toy model and with tiny settings."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.http_client import Response
from benchmarks.load import run_async
from benchmarks.measure import BenchmarkError
from benchmarks.mixed_requests import KINDS, Mix, MixedRequest
from benchmarks.observe import KV_USED, left_behind, parse_metrics
from benchmarks.processes import cpu_seconds
from benchmarks.render_scale import queueing_section, soak_section, sweep_section
from benchmarks.server_process import serve
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from benchmarks import queueing, soak, sweep
from tests.examples import examples

MIB = 2**20
LETTERS = (97, 123)


def options(module: Any, *flags: str) -> argparse.Namespace:
    parser: argparse.ArgumentParser = module.arguments()
    return parser.parse_args(["--model", "toy", "--token-range", "97:123", *flags])


# --- mix and observation ---------------------------------------------------------------------------------------


def test_a_request_of_a_mix_is_a_function_of_seed_and_number() -> None:
    first, again, other = Mix("m", seed=3), Mix("m", seed=3), Mix("m", seed=4)
    requests = [first.request(number) for number in range(40)]
    assert requests == [again.request(number) for number in reversed(range(40))][::-1]
    assert requests != [other.request(number) for number in range(40)]


def test_a_mix_contains_every_kind_in_about_its_share() -> None:
    mix = Mix("m", tokens=LETTERS)
    kinds = [mix.request(number).kind for number in range(2000)]
    assert sum(share for share, _ in KINDS.values()) == 100
    for kind, (share, _) in KINDS.items():
        assert 0.4 * share < kinds.count(kind) / 20 < 2 * share, kind


def test_requests_share_prefixes_longer_than_two_cache_blocks() -> None:
    mix = Mix("m")
    prompts = [
        request.body["prompt"] for number in range(200) if (request := mix.request(number)).kind == "shared prefix"
    ]
    beginnings = [prompt[:250] for prompt in prompts]
    assert len(set(prompts)) > 0.8 * len(prompts) and len(set(beginnings)) < len(beginnings) / 2


METRICS = """# HELP onward_kv_blocks_used KV blocks that sequences hold.
onward_kv_blocks_used{model="a"} 2.0
onward_kv_blocks_used{model="b"} 1.0
onward_engine_running{model="a"} 0.0
onward_engine_waiting{model="a"} 0.0
onward_requests_in_flight 1.0
"""


def test_metrics_are_summed_over_labels_and_the_scrape_itself_does_not_count() -> None:
    assert left_behind(parse_metrics(METRICS)) == {KV_USED: 3.0}


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not report processor time")
def test_processor_time_of_a_process_grows_with_what_it_computes() -> None:
    begin = cpu_seconds(os.getpid())
    own = time.process_time()
    while time.process_time() < own + 0.05:
        pass
    end = cpu_seconds(os.getpid())
    assert begin is not None and end is not None and end > begin
    assert cpu_seconds(2**30) is None


# --- soak ------------------------------------------------------------------------------------------------------


def samples(sizes: list[float]) -> list[soak.MemorySample]:
    return [
        soak.MemorySample(100 * number, float(number), int(size * MIB), 0, int(size * MIB))
        for number, size in enumerate(sizes)
    ]


def test_a_leak_of_a_tenth_of_a_mebibyte_in_a_hundred_requests_is_found() -> None:
    verdict = soak.assess(samples([50 + 0.1 * number for number in range(100)]))
    assert verdict["anonymous"]["growth_mib_per_1000"] == pytest.approx(1.0, abs=0.01)
    assert not verdict["steady"]


def test_growth_in_the_first_half_and_a_spike_are_not_a_leak() -> None:
    sizes = [min(number, 45) + 100.0 for number in range(100)]
    sizes[80] += 200
    assert soak.assess(samples(sizes))["steady"]


def test_too_few_samples_are_an_error() -> None:
    with pytest.raises(BenchmarkError, match="too few samples"):
        soak.assess(samples([1.0, 2.0]))


@pytest.mark.parametrize(
    ("request_sent", "response", "problem"),
    [
        (MixedRequest({}), Response(200, {}, [], b"{}"), None),
        (MixedRequest({}, status=400), Response(400, {}, [], b"{}"), None),
        (MixedRequest({}, status=400), Response(200, {}, [], b"{}"), "status 200 instead of 400: b'{}'"),
        (MixedRequest({"stream": True}), Response(200, {}, [(0.0, b"{}"), (0.1, b"[DONE]")], b"x"), None),
        (MixedRequest({"stream": True}), Response(200, {}, [(0.0, b"{}")], b"x"), "stream without [DONE]"),
        (
            MixedRequest({"stream": True}),
            Response(200, {}, [(0.0, b'{"error":{}}'), (0.1, b"[DONE]")], b"x"),
            "error in stream",
        ),
    ],
)
def test_problems_of_a_response_are_found(request_sent: MixedRequest, response: Response, problem: str | None) -> None:
    assert soak.find_problem(request_sent, response) == problem


@pytest.mark.slow
def test_a_soak_of_a_real_server_is_as_expected_and_leaves_nothing_behind() -> None:
    parsed = options(soak, "--requests", "200", "--clients", "8", "--every", "10", "--seed", "5")
    with serve("toy") as server:
        figures = run_async(lambda: soak.soak(server, parsed))
    assert figures["problems"] == [] and sum(figures["kinds"].values()) == 200
    assert figures["at_rest"]["left_behind"] == {}
    assert figures["metrics"]["onward_requests_cancelled_total"] <= figures["left_half_way"]
    assert len(figures["points"]["requests"]) == 21
    assert "unexpected responses" in soak_section(figures)[2]
    assert "<svg" in soak.svg_plot(figures)
    assert not [reason for reason in soak.failures(figures) if "memory" not in reason]


def test_leftovers_and_unexpected_responses_fail_a_soak() -> None:
    figures = {
        "problem_count": 2,
        "problems": ["request 4 (plain): status 500 instead of 200", "request 9"],
        "at_rest": {"left_behind": {KV_USED: 3.0}},
        "verdict": soak.assess(samples([50.0 + number for number in range(20)])),
    }
    assert soak.failures(figures) == [
        "2 unexpected responses, such as request 4 (plain): status 500 instead of 200",
        "at rest onward_kv_blocks_used is 3",
        "memory grew by 10.00 MiB per thousand requests; at most 0.25 is allowed",
    ]


# --- queueing and sweep ----------------------------------------------------------------------------------------


@given(
    st.integers(0, 200),
    st.sampled_from([queueing.add_distinct, queueing.add_to_one_request, queueing.add_with_one_prefix]),
)
@hypothesis_settings(max_examples=examples(20))
def test_a_scheduler_without_a_model_ends_every_sequence(count: int, add: Any) -> None:
    driver = queueing.SchedulerDriver()
    for number in range(count):
        add(driver, number)
    ended = 0
    while not driver.scheduler.idle:
        ended += driver.step()[1]
    assert ended == count
    driver.scheduler.cache.check([])


def test_the_scheduler_alone_is_measured_for_every_queue() -> None:
    figures = queueing.scheduler_alone([0, 30], steps=5)
    assert all(list(found) == ["0", "30"] for found in figures.values()) and len(figures) == 3
    assert queueing_section({"scheduler": figures})[0].endswith("| 0 | 30 |")
    assert "distinct requests" in queueing.table({"scheduler": figures})


@pytest.mark.slow
def test_bursts_of_any_depth_send_at_least_the_number_of_requests() -> None:
    parsed = options(queueing, "--prompt", "8", "--out", "3")
    with serve("toy") as server:
        bursts = queueing.Bursts(server, parsed)
        found = [bursts.round(depth, 12) for depth in (1, 5)]
    assert all(each["tok_s"] > 0 and each["cpu_ms"] >= 0 for each in found)


@pytest.mark.slow
def test_a_sweep_measures_every_number_of_clients_in_each_round() -> None:
    parsed = options(sweep, "--clients", "1", "3", "--rounds", "2", "--prompt", "8", "--out", "3")
    with sweep.target_of(parsed) as target:
        figures = sweep.Sweep(target, parsed).run()
    assert list(figures) == ["1", "3"]
    assert [figures["3"][key] for key in ("requests", "output_tokens")] == [32, 96]
    assert figures["1"]["tok_s"]["rounds"] == 2
    assert sweep.table(figures).count("\n") == 2 and "<svg" in sweep.svg_plot(figures)
    assert sweep_section({"clients": figures})[-1].startswith("| 3 |")


def test_a_sweep_rejects_another_machine_by_default() -> None:
    parsed = options(sweep, "--url", "http://example.com")
    with pytest.raises(BenchmarkError, match="another machine"), sweep.target_of(parsed):
        pass
