"""The queries of the dashboard in deploy/stack, in a real Prometheus that scrapes a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import ruamel.yaml

from tests.cli.conftest import onward
from tests.compose.test_telemetry import collecting
from tests.processes import free_port, served
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = pytest.mark.slow

STACK = Path(__file__).parents[2] / "deploy" / "stack"
PANELS: list[dict[str, Any]] = json.loads((STACK / "grafana/onward.json").read_text(encoding="utf-8"))["panels"]
QUERIES = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
NEVER_HERE = {"onward_completions_refused_total"}
"""Metrics that have no samples before something happens that does not happen here."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a server with a database and traces that has answered, and an admin's key."""
    folder = str(tmp_path_factory.mktemp("data"))
    keys = [
        onward("key", "new", name, *flags, "--data-dir", folder).stdout.strip()
        for name, flags in (("admin", ["--admin"]), ("alice", []))
    ]
    with collecting() as collector, served("--data-dir", folder, "--otlp-endpoint", collector.url) as url:
        for _ in range(3):
            body = {"model": "toy", "prompt": "Once upon a time " * 20, "max_tokens": 8, "stream": True}
            answer = httpx2.post(
                f"{url}/v1/completions",
                json=body,
                headers={"authorization": f"Bearer {keys[1]}"},
                timeout=PATIENCE_SECONDS,
            )
            assert answer.status_code == 200
        yield url, keys[0]


def sampled_names(url: str, key: str) -> set[str]:
    text = httpx2.get(f"{url}/metrics", headers={"authorization": f"Bearer {key}"}, timeout=PATIENCE_SECONDS).text
    return {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_the_metrics_of_a_panel_exist(title: str, query: str, server: tuple[str, str]) -> None:
    names = set(re.findall(r"\b(?:onward|process)_[a-z_]+", query))
    assert names and names - NEVER_HERE <= sampled_names(*server)


@pytest.fixture(scope="module")
def prometheus(server: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a Prometheus with the stack's own settings, except for addresses and the interval."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed (Debian's package prometheus)")
    url, key = server
    folder = tmp_path_factory.mktemp("prometheus")
    settings = ruamel.yaml.YAML(typ="safe", pure=True).load(STACK / "prometheus.yaml")
    settings["global"]["scrape_interval"] = "1s"
    (job,) = settings["scrape_configs"]
    (folder / "key").write_text(key + "\n", encoding="utf-8")
    job["authorization"]["credentials_file"] = str(folder / "key")
    job["static_configs"][0]["targets"] = [url.removeprefix("http://")]
    (folder / "settings.yaml").write_text(json.dumps(settings), encoding="utf-8")
    address = f"127.0.0.1:{free_port()}"
    flags = {
        "config.file": folder / "settings.yaml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": address,
    }
    command = [program, *(f"--{name}={value}" for name, value in flags.items())]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            query = "count_over_time(onward_build_info[1m]) >= 3"
            wait_for(lambda: process.poll() is not None or _samples(f"http://{address}", query), "three scrapes")
            assert process.poll() is None, "Prometheus has ended"
            yield f"http://{address}"
        finally:
            process.terminate()


def _samples(url: str, query: str) -> list[Any]:
    try:
        answer = httpx2.get(f"{url}/api/v1/query", params={"query": query}, timeout=PATIENCE_SECONDS).json()
    except (httpx2.TransportError, ValueError):
        return []
    assert answer["status"] == "success", answer
    found: list[Any] = answer["data"]["result"]
    return found


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_a_panel_shows_something(title: str, query: str, prometheus: str) -> None:
    found = _samples(prometheus, query.replace("$__rate_interval", "1m"))
    assert found or any(name in query for name in NEVER_HERE)
