"""Mixed requests, and clients that send them and compare what comes with what an undisturbed engine answers."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, Self
from urllib.parse import urlsplit

from tests.folded import Folded
from tests.waiting import PATIENCE_SECONDS

NUM_REQUESTS = 40
PROMPT = "once upon a time there was a fox who"
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0},
    {"n": 3, "max_tokens": 150},
    {"n": 2, "best_of": 4, "max_tokens": 100, "stream": False},
    {"logprobs": 3, "max_tokens": 150},
    {"logprobs": 2, "echo": True, "n": 2, "max_tokens": 100},
    {"stop": ["fox", "ee", "qz"], "ignore_eos": False},
    {"suffix": " and they lived happily"},
    {"prompt": [f"{number} foxes" for number in range(5)], "max_tokens": 80},
    {"prompt": [[97, 98, 99], [100, 101]]},
    {"prediction": {"type": "content", "content": PROMPT * 10}, "temperature": 0.3},
    {"frequency_penalty": 0.5, "presence_penalty": 0.2, "logit_bias": {"101": 3}},
    {"prompt": PROMPT * 20},
    {"ignore_eos": False, "regex": "([a-z]{2,9} once upon a time,? )+", "n": 2},
    {"echo": True, "logprobs": 1, "max_tokens": 0, "stream": False},
    {"max_tokens": 600},
    {"ignore_eos": False},
)


def make_request(number: int) -> dict[str, Any]:
    """A seeded request; a function of its number alone."""
    kind = KINDS[number % len(KINDS)]
    fields = {
        "prompt": f"{PROMPT} {number % 5}",
        "max_tokens": 250,
        "ignore_eos": True,
        "temperature": 1,
        "seed": number,
    }
    return fields | kind


def make_unseeded(rng: random.Random) -> dict[str, Any]:
    """A request whose text is random, but not its length."""
    num_choices, max_tokens = rng.choice([1, 1, 2]), rng.randrange(50, 300)
    return {"prompt": PROMPT, "n": num_choices, "max_tokens": max_tokens, "ignore_eos": True}


class RequestFailed(Exception):
    """A request got an error, or an answer that is not well-formed. The message says which."""


class Connection:
    """Sends one request on a connection of its own. `is_streaming`: whether the answer is a stream of events."""

    def __init__(self, url: str, model: str, fields: dict[str, Any]) -> None:
        host = urlsplit(url).netloc
        wants_stream = bool(fields.get("stream"))
        self._connection = http.client.HTTPConnection(host, timeout=PATIENCE_SECONDS)
        extra = {"stream_options": {"include_usage": True}} if wants_stream else {}
        body = json.dumps({"model": model, **extra, **fields})
        try:
            self._connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            self._response = self._connection.getresponse()
        except BaseException:
            self._connection.close()
            raise
        self.is_streaming = wants_stream and self._response.status == 200

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave, also in the middle of an answer."""
        self._response.close()
        self._connection.close()

    def fold(self) -> Folded:
        """Return the whole answer. Raises RequestFailed for a stream that is not well-formed."""
        folded = Folded()
        if not self.is_streaming:
            folded.take(json.loads(self._response.read()))
            return folded
        for chunk in self.chunks():
            folded.take(chunk)
        return folded

    def chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the events of a stream. Raises RequestFailed if it ends without saying so."""
        last = b""
        failed = False
        for line in self._response:
            if line.startswith(b"data: {"):
                chunk = json.loads(line[6:])
                failed |= "error" in chunk
                yield chunk
            last = line if line.strip() else last
        if not failed and last.strip() != b"data: [DONE]":
            raise RequestFailed(f"a stream ended with {last!r}")


def complete(url: str, model: str, fields: dict[str, Any]) -> Folded:
    """Send one request and return its whole answer."""
    with Connection(url, model, fields) as connection:
        return connection.fold()


class Clients:
    """Threads that send requests until `stop`; `problems` collects what was wrong with an answer.

    `undisturbed`: the answer to each of the seeded requests, by number.
    """

    def __init__(self, url: str, model: str, undisturbed: dict[int, Folded], *, count: int, seed: int) -> None:
        self._url, self._model, self._undisturbed = url, model, undisturbed
        self._is_stopping = threading.Event()
        self._lock = threading.Lock()
        self.problems: list[str] = []
        self.num_compared = self.num_cancelled = self.num_unseeded = 0
        self.num_events = 0
        """Chunks received by all clients. Approximate, for waiting until the streams continue."""
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(f"{seed} {number}"),), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait until every client has received the end of its last answer."""
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            if thread.is_alive():
                self.problems.append("a stream did not end")

    def _run(self, rng: random.Random) -> None:
        while not self._is_stopping.is_set():
            try:
                self._send_one(rng)
            except Exception as error:
                self.problems.append(f"{type(error).__name__}: {error}")
                time.sleep(0.2)

    def _send_one(self, rng: random.Random) -> None:
        way = rng.choices(["compare", "slow", "cancel", "unseeded"], [7, 1, 1, 1])[0]
        if way == "unseeded":
            self._check_unseeded(make_unseeded(rng) | {"stream": rng.random() < 0.7})
            return
        number = rng.randrange(NUM_REQUESTS)
        fields = make_request(number)
        fields.setdefault("stream", way != "compare" or rng.random() < 0.7)
        with Connection(self._url, self._model, fields) as connection:
            if way == "cancel":
                self._leave_after(connection, rng.randrange(1, 60))
            else:
                self._compare(connection, number, pause=0.005 if way == "slow" else 0.0)

    def _compare(self, connection: Connection, number: int, *, pause: float) -> None:
        folded = Folded()
        if not connection.is_streaming:
            folded = connection.fold()
        else:
            for chunk in connection.chunks():
                folded.take(chunk)
                self.num_events += 1
                if pause:
                    time.sleep(pause)
        with self._lock:
            self.num_compared += 1
        if folded != self._undisturbed[number]:
            self.problems.append(
                f"request {number} {make_request(number)}: {difference(folded, self._undisturbed[number])}"
            )

    def _leave_after(self, connection: Connection, num_chunks: int) -> None:
        if connection.is_streaming:
            for count, _ in enumerate(connection.chunks()):
                if count == num_chunks:
                    break
        with self._lock:
            self.num_cancelled += 1

    def _check_unseeded(self, fields: dict[str, Any]) -> None:
        folded = complete(self._url, self._model, fields)
        finishes = [choice["finish"] for choice in folded.choices.values()]
        with self._lock:
            self.num_unseeded += 1
        if folded.error or finishes != ["length"] * fields["n"]:
            self.problems.append(f"unseeded {fields}: finish reasons {finishes}, error {folded.error}")
        elif folded.num_completion_tokens != fields["n"] * fields["max_tokens"]:
            self.problems.append(f"unseeded {fields}: {folded.num_completion_tokens} tokens")


def difference(found: Folded, expected: Folded) -> str:
    """Say how two answers differ, in one line."""
    if found.error:
        return f"error {found.error}"
    for index, choice in expected.choices.items():
        other = found.choices.get(index)
        if other is None:
            return f"choice {index} is missing"
        for name, value in choice.items():
            if other[name] != value:
                return f"{name} of choice {index}: {str(other[name])[:200]!r} instead of {str(value)[:200]!r}"
    return f"usage {found.num_prompt_tokens}, {found.num_completion_tokens}"
