"""Replicas of a cluster whose engine is real vLLM, on this machine's processor, under a real Ray."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.engines.cluster.simulated import SimulatedCluster
from tests.parity.servers import BASE, COMPLETIONS, Server
from tests.real_models.vllm.folders import write_byte_folder
from tests.real_models.vllm.install import ENVIRONMENT, FLAGS, NotAvailable, installed
from tests.waiting import wait_for

pytest.importorskip("ray", reason="needs Ray: pip install 'onward[cluster]'")

pytestmark = [pytest.mark.slow, pytest.mark.companion]
DEPLOY_SECONDS = 900.0
"""How long two replicas may take to run, or to be replaced: 200 seconds on a quiet machine."""
FIELDS: dict[str, Any] = {"prompt": "the cat", "max_tokens": 300, "temperature": 0, "ignore_eos": True}


class Face(Server):
    answer_seconds = 600.0
    """A text waits for a vLLM that loads."""

    def text(self, after_the_first: Callable[[], object] = lambda: None) -> str:
        """Return a streamed text; `after_the_first` is called when its first chunk has arrived."""
        parts: list[str] = []
        with self.http.stream("POST", COMPLETIONS, json={**BASE, **FIELDS, "stream": True}) as answer:
            assert answer.status_code == 200
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    parts.append(json.loads(line[6:])["choices"][0]["text"])
                    if len(parts) == 1:
                        after_the_first()
        return "".join(parts)


def servers_of(folder: str) -> list[int]:
    """The processes that serve a model, except Onward's."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"serve" in words and folder.encode() in words and not any(b"keeper.py" in word for word in words):
                found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A model's table of cluster.toml."""
    try:
        program = installed()
    except NotAvailable as reason:
        pytest.skip(f"vLLM COULD NOT BE INSTALLED: {reason}")
    folder: Path = write_byte_folder(tmp_path_factory.mktemp("cluster") / "toy")
    return {
        "model": str(folder),
        "replicas": 2,
        "engine": "vllm",
        "engine_path": [f"vllm={program}"],
        "engine_arg": [f"vllm={flag}" for flag in FLAGS],
        "context_length": 512,
        "environment": ENVIRONMENT,
    }


@pytest.fixture(scope="module")
def cluster(table: dict[str, Any]) -> Iterator[SimulatedCluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        with SimulatedCluster(nodes=1, cpus=4) as simulated:
            simulated.order("serve", seconds=DEPLOY_SECONDS, **table)
            yield simulated
    wait_for(lambda: not servers_of(table["model"]))


@pytest.fixture(scope="module")
def face(cluster: SimulatedCluster) -> Iterator[Face]:
    with closing(Face("--cluster", cluster.address, model=None)) as running:
        yield running


def test_a_text_continues_when_replicas_are_killed_until_none_is_left(cluster: SimulatedCluster, face: Face) -> None:
    answer = face.ask(**FIELDS)
    assert answer.json["system_fingerprint"].startswith("fp_vllm_") and answer.usage["completion_tokens"] == 300
    replicas: list[int] = cluster.order("replicas")
    assert len(replicas) == 2
    for pid in replicas:  # when the second is killed, the first is not running again yet: the text waits for it
        assert face.text(partial(os.kill, pid, signal.SIGKILL)) == answer.text


def test_no_text_fails_while_replicas_are_replaced(
    cluster: SimulatedCluster, face: Face, table: dict[str, Any]
) -> None:
    text, before = face.text(), set(cluster.order("replicas"))
    with ThreadPoolExecutor(1) as threads:
        update = threads.submit(cluster.order, "serve", seconds=DEPLOY_SECONDS, **table, max_rows=32)
        while not update.done():
            assert face.text() == text
        update.result()
    assert face.text() == text
    assert len({*cluster.order("replicas")} - before) >= 2
    wait_for(lambda: len(servers_of(table["model"])) == 2)
