"""Adapters of one base on one server: each answers as a server with it alone does, also when the engine is lost."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

import onward
from tests.checkpoints.tiny import write_tiny
from tests.cli.conftest import onward as onward_command
from tests.processes import ServerProcess, server_process
from tests.runtimes.native.test_adapters import write_adapter
from tests.waiting import PATIENCE_SECONDS

if not sys.platform.startswith("linux"):
    pytest.skip("finds processes in /proc", allow_module_level=True)

pytestmark = pytest.mark.slow

NAMES = ("base", "one", "two", "three")
PROMPT = "abc cab bca " * 4
REQUESTS: list[dict[str, Any]] = [
    {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "logprobs": 3, "ignore_eos": True},
    {"prompt": PROMPT, "max_tokens": 30, "temperature": 1, "seed": 5, "n": 3, "ignore_eos": True},
    {"prompt": "cab", "max_tokens": 1, "echo": True, "logprobs": 2, "temperature": 0},
]
Answer = dict[str, Any]


class Files(NamedTuple):
    base: Path
    adapters: dict[str, Path]

    @property
    def flags(self) -> list[str]:
        """The settings of a server with all adapters, an engine process and little memory."""
        loras = [word for name, path in self.adapters.items() for word in ("--lora", f"{name}={path}")]
        return ["--model", str(self.base), *loras, "--kv-memory", "16MB", "--engine-process", "on"]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder = tmp_path_factory.mktemp("adapters")
    paths = {name: write_adapter(folder / f"{name}.gguf", "llama", seed) for seed, name in enumerate(NAMES) if seed}
    return Files(write_tiny(folder / "base.gguf", "llama"), paths)


@pytest.fixture(scope="module")
def alone(files: Files) -> dict[str, list[Answer]]:
    """The answers of each model when nothing else is loaded or computed."""
    found = {}
    for name in NAMES:
        path = str(files.base) + (f"+{files.adapters[name]}" if name != "base" else "")
        with onward.Onward(model=path, kv_memory="16MB") as client:
            found[name] = [comparable(client.completions.create(**fields).to_dict()) for fields in REQUESTS]
    return found


def comparable(answer: Answer) -> Answer:
    """The part of an answer that is the same on every server of a model and in every call."""
    return {key: answer[key] for key in ("choices", "system_fingerprint")}


class Server(NamedTuple):
    process: ServerProcess
    headers: dict[str, str]

    def create(self, name: str, fields: Answer) -> Answer:
        body = {"model": name, **fields}
        answer = httpx2.post(
            f"{self.process.url}/v1/completions", json=body, headers=self.headers, timeout=PATIENCE_SECONDS
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def all_at_once(self, names: Sequence[str] = NAMES) -> dict[str, list[Answer]]:
        """The answers to all requests to all models, in one batch."""
        with ThreadPoolExecutor(32) as pool:
            running = {name: [pool.submit(self.create, name, each) for each in REQUESTS] for name in names}
            return {name: [comparable(each.result()) for each in each_of] for name, each_of in running.items()}


@contextmanager
def serving(files: Files, *flags: str, headers: dict[str, str] | None = None) -> Iterator[Server]:
    with server_process(*files.flags, *flags, model=None) as process:
        yield Server(process, headers or {})


def test_each_adapter_has_the_bytes_of_a_server_with_it_alone(files: Files, alone: dict[str, list[Answer]]) -> None:
    with serving(files) as server:
        assert len(server.process.engines()) == 1, "one engine for all"
        assert server.all_at_once() == alone
        assert server.all_at_once() == alone, "from the prefix cache"
        listed = httpx2.get(f"{server.process.url}/v1/models").json()["data"]
        parents = {each["id"]: each.get("parent") for each in listed if each["id"] in NAMES}
        assert parents == {"base": None, "one": "base", "two": "base", "three": "base"}
    assert len({answers[0]["system_fingerprint"] for answers in alone.values()}) == len(NAMES)
    assert len({answers[0]["choices"][0]["text"] for answers in alone.values()}) == len(NAMES)


def test_prefixes_are_those_of_one_adapter(files: Files) -> None:
    def cached(name: str) -> int:
        usage = server.create(name, {"prompt": PROMPT * 2, "max_tokens": 1})["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    with serving(files) as server:
        assert [cached(name) for name in NAMES] == [0, 0, 0, 0]
        assert all(cached(name) > 0 for name in NAMES)


def test_an_engine_that_was_lost_has_its_adapters_again(files: Files, alone: dict[str, list[Answer]]) -> None:
    with serving(files) as server, ThreadPoolExecutor(1) as pool:
        engine = 0
        for _ in range(2):
            engine = server.process.engine(other_than=engine)
            answers = pool.submit(server.all_at_once)
            os.kill(engine, signal.SIGKILL)
            assert answers.result(PATIENCE_SECONDS) == alone


def test_a_prefix_cache_on_disk_is_that_of_one_adapter(
    files: Files, alone: dict[str, list[Answer]], tmp_path: Path
) -> None:
    flags = ("--prefix-cache-dir", str(tmp_path / "prefixes"))
    for _ in range(2):
        with serving(files, *flags) as server:
            assert server.all_at_once() == alone


def test_the_routes_of_vllm_load_and_unload_while_requests_run(
    files: Files, alone: dict[str, list[Answer]], tmp_path: Path
) -> None:
    data = ("--data-dir", str(tmp_path / "data"))
    admin, user = (
        {"authorization": f"Bearer {onward_command('key', 'new', name, *more, *data).stdout.strip()}"}
        for name, more in (("chief", ["--admin"]), ("alice", []))
    )
    flags = ("--model-folder", str(files.base.parent), *data)
    base = Files(files.base, {})

    def post(path: str, body: Answer) -> str:
        answer = httpx2.post(server.process.url + path, json=body, headers=admin, timeout=PATIENCE_SECONDS)
        assert answer.status_code == 200, answer.text
        return answer.text

    with serving(base, *flags, headers=user) as server:
        engine = server.process.engine()
        loads = [
            post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path.name})
            for name, path in files.adapters.items()
        ]
        assert loads[0] == "Success: LoRA adapter 'one' added successfully."
        assert server.all_at_once() == alone
        for turn in range(3):
            with ThreadPoolExecutor(1) as pool:
                answers = pool.submit(server.all_at_once, ("base", "two", "three"))
                post("/v1/unload_lora_adapter", {"lora_name": "one"})
                post("/v1/load_lora_adapter", {"lora_name": "one", "lora_path": "one.gguf"})
                if turn == 1:
                    os.kill(engine, signal.SIGKILL)
                expected = {name: each for name, each in alone.items() if name != "one"}
                assert answers.result(PATIENCE_SECONDS) == expected
        assert server.all_at_once() == alone
        refused = httpx2.post(f"{server.process.url}/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "b"})
        assert refused.status_code == 401
        audit = onward_command("key", "audit", "chief", "--format", "text", *data).stdout
        assert f"added one ({files.adapters['one']})" in audit and "removed one" in audit
