"""Servers with the toy model, one per profile, and requests to them: processes on real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import httpx2
from sqlalchemy import URL

from onward.service.keys import create_key
from onward.service.limits import Limits
from onward.service.store import open_store
from tests.waiting import PATIENCE_SECONDS

from .ledger import fill

ROOT = Path(__file__).parents[2]
KEY = "sk-parity-0123456789abcdef"
PROFILES: dict[str, tuple[str, ...]] = {
    "default": (),
    "strict": ("--profile", "strict"),
    "lenient": ("--profile", "lenient", "--alias", "gpt-3.5-turbo-instruct=toy"),
    "guarded": (
        *("--api-key", KEY, "--max-body", "4000", "--max-parallel", "20"),
        *("--max-rows", "2", "--max-waiting", "2"),
    ),
    "filtered": (
        *("--content-filter", json.dumps({"name": "stops", "patterns": ["q.{0,3}u"]})),
        *("--content-filter", json.dumps({"name": "omits", "patterns": ["zz"], "action": "omit"})),
    ),
    "team": (),
    "ledger": (),
    "broken": ("--content-filter", json.dumps({"name": "breaks", "entry_point": "parity-broken"})),
}
"""The flags of each server. "guarded" has a key and small limits, "filtered" has content filters, "team" has a
database of keys with limits (`TEAM_LIMITS`), "ledger" one of past requests, and "broken" has a content filter that
raises (from `PLUGIN`)."""
TEAM_LIMITS = {
    "fresh": Limits(requests_per_minute=500, tokens_per_minute=200_000),
    "once": Limits(requests_per_minute=1),
    "tokens": Limits(tokens_per_minute=100),
    "small": Limits(tokens_per_minute=10),
    "spent": Limits(cost_per_month=1),
    "free": Limits(),
    "batches": Limits(),
    "lister": Limits(),
    "another": Limits(),
    "cancelling": Limits(tokens_per_day=120),
    "expiring": Limits(tokens_per_day=120),
    "refills": Limits(tokens_per_minute=1200),
    "tomorrow": Limits(tokens_per_day=60),
}
"""The keys of "team" by name; each is `sk-parity-NAME`. A million tokens cost a thousand."""
KEY_PREFIX = "sk-parity-"
PLUGIN = Path(__file__).parent / "plugin"
BASE: dict[str, Any] = {"model": "toy", "prompt": "Say this is a test", "temperature": 0}
"""The fields of every request, which a row's fields override."""
ABSENT = object()
"""The value of a field that is omitted."""
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    headers: httpx2.Headers
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def choices(self) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self.json["choices"])

    @property
    def texts(self) -> list[str]:
        return [choice["text"] for choice in self.choices]

    @property
    def text(self) -> str:
        return str(self.choices[0]["text"])

    @property
    def finish(self) -> str:
        return str(self.choices[0]["finish_reason"])

    @property
    def logprobs(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.choices[0]["logprobs"])

    @property
    def usage(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.json["usage"])

    @property
    def error(self) -> dict[str, Any]:
        return cast(dict[str, Any], self.json["error"])

    @property
    def data(self) -> list[str]:
        """The data of all events, each of which must be exactly `data: ` and one line (behaviour W4)."""
        assert self.raw.endswith(b"\n\n") and b"\r" not in self.raw
        events = self.raw.decode().removesuffix("\n\n").split("\n\n")
        assert all(event.startswith("data: ") and "\n" not in event for event in events), events
        return [event.removeprefix("data: ") for event in events]

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The chunks of a stream that ended with [DONE]."""
        *events, done = self.data
        assert done == "[DONE]"
        return [json.loads(event) for event in events]

    def joined(self, index: int = 0) -> str:
        """Return the text of one choice, joined from its chunks."""
        parts = (choice for chunk in self.chunks for choice in chunk["choices"])
        return "".join(choice["text"] for choice in parts if choice["index"] == index)


class Server:
    """One `onward serve` process. `model` None: the flags say what is served."""

    answer_seconds = PATIENCE_SECONDS
    """How long an answer may take."""

    def __init__(self, *flags: str, model: str | None = "toy") -> None:
        models = [] if model is None else ["--model", model]
        command = [sys.executable, "-m", "onward", "serve", *models, "--port", "0"]
        quiet = ["--no-access-log", "--log-level", "warning"]
        self._process = subprocess.Popen(
            [*command, *quiet, *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(PLUGIN), os.environ.get("PYTHONPATH")]))},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://([\d.]+):(\d+)/v1", line)
        assert found, self._process.communicate()[1]
        self.port = int(found[2])
        self.data_dir = Path(flags[flags.index("--data-dir") + 1]) if "--data-dir" in flags else Path()
        self.url = f"http://127.0.0.1:{self.port}"
        self._key = {"authorization": f"Bearer {KEY}"} if KEY in flags else {}
        self.http = httpx2.Client(base_url=self.url, timeout=self.answer_seconds)

    def close(self) -> str:
        """Stop the process and return its standard error."""
        self.http.close()
        self._process.terminate()
        try:
            return self._process.communicate(timeout=PATIENCE_SECONDS)[1]
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.communicate()[1]

    def ask(self, **fields: Any) -> Answer:
        """Request a completion with the fields of BASE and `fields`, without those that are ABSENT.

        The field `path` is the URL path, by default that of completions.
        """
        path = fields.pop("path", COMPLETIONS)
        body = {name: value for name, value in {**BASE, **fields}.items() if value is not ABSENT}
        return self.send("POST", path, json.dumps(body).encode(), self._key)

    def stream(self, **fields: Any) -> Answer:
        return self.ask(**fields, stream=True)

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        """Send a raw request. Its content type is JSON, unless `headers` contain another."""
        given = {"content-type": "application/json"} if body else {}
        connection = HTTPConnection(
            "127.0.0.1", self.port, timeout=self.answer_seconds
        )  # unlike httpx2, it sends invalid headers
        with contextlib.closing(connection):
            connection.request(method, path, body, given | dict(headers or {}))
            got = connection.getresponse()
            return Answer(got.status, httpx2.Headers(got.getheaders()), got.read())

    @contextmanager
    def streaming(self, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Iterator[None]:
        """A stream whose first bytes have arrived, and whose client leaves at the end."""
        with self.http.stream("POST", COMPLETIONS, json=body, headers=headers) as answer:
            parts = answer.iter_bytes()  # kept: httpx2 hangs up when its iterator is dropped
            next(parts)
            with contextlib.suppress(httpx2.HTTPError):
                yield

    def expire(self, batch_id: str) -> None:
        """End the completion window of a batch, in the server's database."""
        path = self.data_dir / "onward.db"
        with contextlib.closing(sqlite3.connect(path, timeout=PATIENCE_SECONDS)) as database, database:
            database.execute("UPDATE batches SET expires_ms = created_ms WHERE id = ?", [batch_id])

    def tokens(self, text: str) -> list[int]:
        """Return the toy's token ids of `text`."""
        body = json.dumps({"prompt": text}).encode()
        return cast(list[int], self.send("POST", "/tokenize", body).json["tokens"])

    def metric(self, name: str) -> float:
        """Return the value of a metric of the toy model."""
        text = self.send("GET", "/metrics", headers=self._key).raw.decode()
        found = re.search(rf'^{name}{{model="toy"}} (\S+)$', text, re.MULTILINE)
        assert found, text
        return float(found[1])


class Servers:
    """The servers by name, each started on first use by `start`, which takes its flags."""

    def __init__(self, start: Callable[..., Server] = Server) -> None:
        self._start = start
        self._running: dict[str, Server] = {}
        self._folder = TemporaryDirectory()

    def __getitem__(self, name: str) -> Server:
        if name not in self._running:
            more: tuple[str, ...] = ()
            if name in ("team", "ledger"):
                more = self._database(name)
            elif name == "strict":  # without keys
                more = "--data-dir", str(Path(self._folder.name) / name)
            self._running[name] = self._start(*PROFILES[name], *more)
        return self._running[name]

    def _database(self, name: str) -> tuple[str, ...]:
        """Return flags that name a new database: with the keys of TEAM_LIMITS, or with a ledger and some of them."""
        folder = Path(self._folder.name) / name
        store = open_store(URL.create("sqlite", database=str(folder / "onward.db")))
        with store.begin() as connection:
            for key, limits in (TEAM_LIMITS if name == "team" else {"alice": Limits()}).items():
                create_key(connection, KEY_PREFIX + key, key, limits, store.clock())
        if name == "ledger":
            fill(store)
        store.close()
        return "--data-dir", str(folder), "--price", "toy=1000/1000"

    def close(self) -> dict[str, str]:
        """Stop all servers and return their standard errors by name."""
        logs = {name: server.close() for name, server in self._running.items()}
        self._folder.cleanup()
        return logs
