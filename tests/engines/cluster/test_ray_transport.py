"""A face and replicas on a simulated Ray cluster: real processes, real sockets, real deaths."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.workload import NUM_REQUESTS, Clients, Connection, complete, difference, make_request
from tests.engines.cluster.simulated import SimulatedCluster
from tests.folded import Folded
from tests.processes import server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

if not sys.platform.startswith("linux"):
    pytest.skip("finds processes in /proc", allow_module_level=True)
pytest.importorskip("ray", reason="needs Ray: pip install 'onward[cluster]'")

pytestmark = [pytest.mark.slow, pytest.mark.companion]
STEP_SECONDS = 0.004
"""Of the replicas' engines: streams of 250 tokens take a second, so that there is time to kill."""


@pytest.fixture(scope="module", autouse=True)
def no_token() -> Iterator[None]:
    """The simulated clusters have no authentication, whether this account has a token or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        yield


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    with SimulatedCluster(nodes=3) as simulated:
        simulated.order("deploy", seconds=STEP_SECONDS, fingerprint="fp_one", replicas=3)
        yield simulated


@pytest.fixture(scope="module")
def face(cluster: SimulatedCluster) -> Iterator[str]:
    with server_process("--cluster", cluster.address, model=None) as server:
        yield server.url


@pytest.fixture(scope="module")
def undisturbed() -> Iterator[dict[int, Folded]]:
    """The answer of a single process."""
    with server_process(model="toy") as server, ThreadPoolExecutor(8) as pool:
        fields = [make_request(number) for number in range(NUM_REQUESTS)]
        yield dict(enumerate(pool.map(lambda each: complete(server.url, "toy", each), fields)))


def get(url: str, path: str) -> Any:
    with urllib.request.urlopen(url + path, timeout=PATIENCE_SECONDS) as answer:
        text = answer.read().decode()
    return json.loads(text) if text.startswith("{") else text


def metric(url: str, name: str) -> float:
    """The sum of a metric over its labels."""
    lines = [line for line in get(url, "/metrics").splitlines() if line.startswith((name + "{", name + " "))]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def same_bytes(url: str, undisturbed: dict[int, Folded], *, stream: bool = True) -> list[str]:
    """Send all requests at once; return the differences."""
    with ThreadPoolExecutor(NUM_REQUESTS) as pool:
        found = pool.map(lambda number: complete(url, "toy", {"stream": stream, **make_request(number)}), undisturbed)
        pairs = zip(found, undisturbed.values(), strict=True)
        return [difference(one, other) for one, other in pairs if one != other]


def test_a_cluster_answers_as_one_process_does(face: str, undisturbed: dict[int, Folded]) -> None:
    assert same_bytes(face, undisturbed) == []
    assert same_bytes(face, undisturbed, stream=False) == []
    assert get(face, "/v1/models")["data"][0]["id"] == "toy"
    assert get(face, "/health")["status"] == "ready"
    wait_for(lambda: metric(face, "onward_engine_decode_tokens_total") > 5_000, "the replicas' reports")


def test_a_server_with_another_token_says_what_to_do(cluster: SimulatedCluster) -> None:
    """Ray itself silently drops what the replicas send."""
    environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}
    command = [sys.executable, "-m", "onward", "serve", "--port", "0", "--cluster", cluster.address]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert ran.returncode == 1
    assert "set RAY_AUTH_MODE=disabled" in ran.stderr


def test_random_deaths_of_replicas_and_nodes_change_no_byte(
    cluster: SimulatedCluster, face: str, undisturbed: dict[int, Folded]
) -> None:
    """At least 200 mixed streams, while replicas and nodes die."""
    draw = random.Random(3)
    clients = Clients(face, "toy", undisturbed, count=16, seed=3)
    for number in range(4):
        wait_for(lambda: cluster.order("count_replicas") >= 2, "replicas")
        before = clients.num_events
        wait_for(lambda: clients.num_events > before + 2_000, "streams")  # noqa: B023
        if number % 4 == 3:
            cluster.order("add_node")
            cluster.order("kill_node", seed=draw.randrange(1000))
        else:
            cluster.order("kill_replica", seed=draw.randrange(1000))
    wait_for(lambda: clients.num_compared >= 200, "200 streams")
    clients.stop()
    assert clients.problems == []
    assert clients.num_cancelled and clients.num_unseeded
    assert metric(face, "onward_engine_resumed_requests_total") > 0
    assert metric(face, "onward_engine_poisoned_requests_total") == 0
    wait_for(lambda: metric(face, "onward_engine_running") == 0, "the end of cancelled requests")


def test_a_node_that_is_cut_off_without_a_word_changes_no_byte(
    cluster: SimulatedCluster, face: str, undisturbed: dict[int, Folded]
) -> None:
    wait_for(lambda: cluster.order("count_replicas") == 3, "replicas")
    clients = Clients(face, "toy", undisturbed, count=16, seed=4)
    wait_for(lambda: clients.num_events > 1_000, "streams")
    cluster.order("add_node")
    cluster.order("freeze_node", seed=1)
    before = clients.num_compared
    wait_for(lambda: clients.num_compared >= before + 60, "streams that end")
    clients.stop()
    cluster.order("kill_frozen")
    assert clients.problems == []
    assert metric(face, "onward_engine_poisoned_requests_total") == 0
    wait_for(lambda: cluster.order("count_replicas") == 3, "replicas")


def test_a_client_that_leaves_ends_its_work_at_the_replica(face: str) -> None:
    before = metric(face, "onward_engine_decode_tokens_total")
    fields = {"prompt": "x", "max_tokens": 1800, "ignore_eos": True, "stream": True, "n": 2}
    with Connection(face, "toy", fields) as connection:
        next(connection.chunks())

    def has_ended() -> bool:
        """Whether two seconds, in which replicas report at least once, add nothing."""
        counted = metric(face, "onward_engine_decode_tokens_total")
        time.sleep(2.2)
        return before < counted == metric(face, "onward_engine_decode_tokens_total")

    wait_for(has_ended, "the end of the work")
    assert metric(face, "onward_engine_decode_tokens_total") < before + 1_800


def test_prefixes_meet_their_cache(face: str) -> None:
    """At least 95 % of the prompt tokens that one process takes from its cache."""
    prefixes = [[number + 1] * 320 for number in range(6)]
    wait_for(lambda: get(face, "/health")["status"] == "ready", "three replicas")
    before = metric(face, "onward_engine_cached_tokens_total")
    for turn in range(10):
        for prefix in prefixes:
            complete(face, "toy", {"prompt": [*prefix, turn + 1, turn + 2], "max_tokens": 2})
    one_process = 9 * len(prefixes) * 320
    wait_for(lambda: metric(face, "onward_engine_cached_tokens_total") - before >= 0.95 * one_process, "reports")


def test_streams_end_well_in_a_rolling_update(cluster: SimulatedCluster, face: str) -> None:
    """Running streams finish on the old replicas, and later requests say who computes them."""
    fields = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True, "seed": 1}
    expected = complete(face, "toy", fields)
    streams: list[Folded] = []
    threads = [threading.Thread(target=lambda: streams.append(complete(face, "toy", fields))) for _ in range(6)]
    for thread in threads:
        thread.start()
    cluster.order("deploy", seconds=STEP_SECONDS, fingerprint="fp_two", replicas=2)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert [difference(stream, expected) for stream in streams if stream != expected] == []
    assert len(streams) == 6

    def fingerprint() -> str:
        body = json.dumps({"model": "toy", "prompt": "x", "max_tokens": 1}).encode()
        request = urllib.request.Request(face + "/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            return str(json.loads(answer.read())["system_fingerprint"])

    wait_for(lambda: fingerprint() == "fp_two", "the update")
    complete(face, "toy", fields)


def test_replicas_come_and_go_with_the_load() -> None:
    with SimulatedCluster(nodes=1, cpus=4) as simulated:
        simulated.order(
            "deploy", seconds=STEP_SECONDS, fingerprint="fp_one", replicas=1, max_replicas=3, max_rows=8,
            target_requests=2, upscale_delay_seconds=0.5, downscale_delay_seconds=2,
        )  # fmt: skip
        with server_process("--cluster", simulated.address, "--max-waiting", "8", model=None) as server:
            fields = {"prompt": "x", "max_tokens": 1900, "ignore_eos": True, "stream": True, "seed": 1}
            streams: list[Folded] = []
            threads = [
                threading.Thread(target=lambda: streams.append(complete(server.url, "toy", fields))) for _ in range(6)
            ]
            for thread in threads:
                thread.start()
            wait_for(lambda: simulated.order("count_replicas") > 1, "more replicas")
            for thread in threads:
                thread.join(PATIENCE_SECONDS)
            assert len(streams) == 6 and all(stream == streams[0] for stream in streams)
            wait_for(lambda: simulated.order("count_replicas") == 1, "fewer replicas")
            assert refused(server.url) > 0
            simulated.order("kill_gcs")
            assert complete(server.url, "toy", fields) == streams[0]


def test_a_replica_leaves_its_prefixes_to_the_next_one_on_a_disk(tmp_path: Path) -> None:
    fields = {"prompt": "once upon a time there was a fox " * 20, "max_tokens": 8, "seed": 1, "logprobs": 2}
    answers: list[Folded] = []
    with SimulatedCluster(nodes=1) as simulated:
        for _ in range(2):
            simulated.order("serve", model="toy", prefix_cache_dir=str(tmp_path / "cache"))
            with server_process("--cluster", simulated.address, model=None) as server:
                answers.append(complete(server.url, "toy", fields))
                if len(answers) == 2:
                    wait_for(lambda: metric(server.url, "onward_prefix_cache_disk_tokens_total") > 300, "its report")
            simulated.order("remove")
    assert answers[0] == answers[1]


def refused(url: str) -> int:
    """Send far more than fits; every request is answered or refused before its first byte. Returns how many were."""
    counts = {200: 0, 503: 0}

    def send(number: int) -> None:
        body = json.dumps({"model": "toy", "prompt": f"{number}", "max_tokens": 200, "ignore_eos": True}).encode()
        request = urllib.request.Request(url + "/v1/completions", body, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
                assert json.loads(answer.read())["usage"]["completion_tokens"] == 200
                counts[200] += 1
        except urllib.error.HTTPError as error:
            assert (error.code, int(error.headers["retry-after"]) >= 1) == (503, True)
            counts[503] += 1
            error.close()

    with ThreadPoolExecutor(60) as pool:
        list(pool.map(send, range(60)))
    assert counts[200] >= 8 and sum(counts.values()) == 60
    return counts[503]
