"""Models of a real server are added, replaced and removed under load, by its admin route and by SIGHUP: not one request
fails, and engines that are no longer needed end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.cli.conftest import onward
from tests.journeys.test_handover import Clients
from tests.processes import ServerProcess, server_process
from tests.waiting import PATIENCE_SECONDS, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")]


def toy(path: Path, context_length: int) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "toy.json").write_text(json.dumps({"blocks": 64, "context_length": context_length}), encoding="utf-8")
    return path


class Operator:
    """Uses the admin route of a server."""

    def __init__(self, server: ServerProcess, admin: str, user: str) -> None:
        self.server = server
        self._admin = {"authorization": f"Bearer {admin}"}
        self._user = {"authorization": f"Bearer {user}"}

    def call(self, method: str, path: str = "", body: object = None) -> httpx2.Response:
        url = f"{self.server.url}/v1/admin/models{path}"
        return httpx2.request(method, url, json=body, headers=self._admin, timeout=PATIENCE_SECONDS)

    def models(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.call("GET").json()["data"]
        return found

    def get(self, path: str) -> httpx2.Response:
        return httpx2.get(self.server.url + path, headers=self._user, timeout=PATIENCE_SECONDS)

    def context_length(self, model: str) -> int:
        found: int = self.get(f"/tokenizer_info?model={model}").json()["model_max_length"]
        return found

    def served(self) -> list[str]:
        return [model["id"] for model in self.get("/v1/models").json()["data"]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, length in (("one", 96), ("two", 128)):
        toy(tmp_path / "models" / name, length)
    return tmp_path / "models"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, str]:
    """The API keys of an admin and of a user, in a database."""
    made = [
        onward("key", "new", name, *flags, "--data-dir", str(tmp_path / "data")).stdout.strip()
        for name, flags in (("chief", ["--admin"]), ("alice", []))
    ]
    return made[0], made[1]


@pytest.fixture
def operator(folder: Path, keys: tuple[str, str], tmp_path: Path) -> Iterator[Operator]:
    """A server of the toy model, with a settings file."""
    settings = tmp_path / "settings.toml"
    settings.write_text(f'model = ["toy"]\nopenai_names = false\nmodel_folder = ["{folder}"]\n', encoding="utf-8")
    flags = ("--config", str(settings), "--data-dir", str(tmp_path / "data"))
    with server_process(*flags, model=None) as server:
        yield Operator(server, *keys)


def test_models_change_under_load_and_not_one_request_fails(
    operator: Operator, folder: Path, keys: tuple[str, str], tmp_path: Path
) -> None:
    engines = operator.server.engines()
    with Clients(operator.server.url, keys[1]) as clients:
        for turn, name in enumerate(("one", "two", "one", "two")):
            answer = operator.call("POST", "", {"model": name, "id": "toy"})
            assert answer.status_code == 200 and answer.json()["source"] == str(folder / name)
            assert operator.context_length("toy") == (96, 128)[turn % 2]
        assert operator.call("POST", "", {"model": "one"}).status_code == 200
        assert operator.served() == ["toy", "one"]
        assert operator.call("DELETE", "/one").json()["deleted"]
        for path in ("broken", "../data", "/etc/passwd"):
            assert operator.call("POST", "", {"model": path, "id": "toy"}).status_code == 400
        wait_for(lambda: clients.problems or clients.num_answers > 8)
    assert not clients.problems
    wait_for(lambda: len(operator.server.engines()) == 1)
    assert not {*engines} & {*operator.server.engines()}
    wait_for(lambda: [(model["id"], model["status"]) for model in operator.models()] == [("toy", "ready")])
    health = operator.get("/health").json()
    assert (health["status"], list(health["models"])) == ("ready", ["toy"])
    metrics = operator.get("/metrics").text
    assert 'onward_engine_running{model="toy"}' in metrics and "\nonward_models_ending 0.0" in metrics
    said = onward("key", "audit", "chief", "--data-dir", str(tmp_path / "data"), "--format", "json").stdout
    entries = [entry for entry in json.loads(said)["data"] if entry["action"] == "models"]
    assert len(entries) == 6 and {entry["actor"] for entry in entries} == {"the key chief"}
    assert entries[0]["detail"] == f"replaced toy ({folder / 'one'})" and entries[-1]["detail"] == "removed one"

    def used() -> str:
        return onward("usage", "--data-dir", str(tmp_path / "data"), "--format", "json").stdout

    wait_for(lambda: str(clients.num_answers) in used(), "each request in the ledger")
    assert not any("sk-" in line for line in operator.server.output)


def test_sighup_applies_the_models_of_the_settings_file(
    operator: Operator, folder: Path, keys: tuple[str, str], tmp_path: Path
) -> None:
    settings = tmp_path / "settings.toml"
    said = operator.server.output

    def hang_up(text: str, words: str) -> None:
        seen = len(said)
        settings.write_text(text, encoding="utf-8")
        operator.server.popen.send_signal(signal.SIGHUP)
        wait_for(lambda: any(words in line for line in said[seen:]))

    with Clients(operator.server.url, keys[1]) as clients:
        hang_up(f'model = ["toy", "{folder}/one"]\nopenai_names = false\nthreads = 3\n', "read again: added one")
        assert operator.served() == ["toy", "one"]
        wait_for(lambda: any("take effect at the next start: model_folder, threads" in line for line in said))
        toy(folder / "one", 160)
        hang_up(f'model = ["toy", "{folder}/one"]\nopenai_names = false\n', "read again: replaced one")
        assert operator.context_length("one") == 160
        hang_up(f'model = ["toy", "{folder}/nowhere"]\n', "the models stay as they were:")
        hang_up("model = [", "the models stay as they were: The settings file")
        hang_up('model = ["toy"]\nopenai_names = false\n', "read again: removed one")
        assert operator.served() == ["toy"]
        wait_for(lambda: clients.problems or clients.num_answers > 8)
    assert not clients.problems
