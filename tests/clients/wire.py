"""Rules of clients that are not installed: what each accepts in a response, and what would break it.

The Java SDK (coerces nothing, reads to the end of the body), Tabby (needs a finish_reason before [DONE]),
`vllm bench serve` (splits events on blank lines, strips `data: `), and editors that drive curl.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from tests.parity.servers import BASE, COMPLETIONS, Server
from tests.waiting import PATIENCE_SECONDS, wait_for

from .report import Report

PROMPTS: tuple[dict[str, Any], ...] = (
    {},
    {"n": 2, "logprobs": 2},
    {"echo": True, "logprobs": 1, "max_tokens": 0},
    {"stop": ["e"], "max_tokens": 200},
    {"stream_options": {"include_usage": True}},
    {"logit_bias": {"256": 100}},
)


class Http:
    """One request on a socket of its own, parsed without a library, to see its bytes and the end of its body."""

    def __init__(self, server: Server, fields: dict[str, Any], headers: str = "") -> None:
        body = json.dumps(BASE | fields).encode()
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
        self._socket = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_SECONDS)
        self._socket.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._file = self._socket.makefile("rb")
        self.status = int(self._file.readline().split()[1])
        self.headers: dict[str, str] = {}
        while line := self._file.readline().strip():
            name, _, value = line.decode().partition(":")
            self.headers[name.lower()] = value.strip()

    def chunks(self) -> Iterator[bytes]:
        """Yield the chunks of a chunked body, to its end."""
        while size := int(self._file.readline(), 16):
            yield self._file.read(size)
            self._file.readline()
        self._file.readline()

    def close(self) -> None:
        self._file.close()
        self._socket.close()


# --- the Java SDK ----------------------------------------------------------------------------------------------


def java_rules(value: Any, *, stream: bool) -> None:
    """Raise AssertionError where the Java SDK would raise: its mapper coerces no type and checks `error` first."""
    assert "error" not in value, "a key `error` throws SseException, even when null"
    assert isinstance(value["id"], str) and isinstance(value["model"], str)
    assert value["object"] == "text_completion" and type(value["created"]) is int
    assert isinstance(value["choices"], list)
    for choice in value["choices"]:
        assert isinstance(choice["text"], str) and type(choice["index"]) is int
        allowed = ("stop", "length", "content_filter", *([None] if stream else []))
        assert choice["finish_reason"] in allowed
        if (logprobs := choice["logprobs"]) is not None:
            assert all(isinstance(token, str) for token in logprobs["tokens"])
            assert all(type(offset) is int for offset in logprobs["text_offset"])
            assert all(number is None or type(number) in (int, float) for number in logprobs["token_logprobs"])
    if (usage := value.get("usage")) is not None:
        assert all(type(usage[name]) is int for name in ("prompt_tokens", "completion_tokens", "total_tokens"))
        for name in ("prompt_tokens_details", "completion_tokens_details"):
            assert all(type(number) is int for number in usage.get(name, {}).values())
    assert isinstance(value.get("system_fingerprint", ""), str)


def seconds_after_done(server: Server) -> float:
    """Return how many seconds after its last event the body of a stream ends."""
    asked = Http(server, {"stream": True, "max_tokens": 20}, "Accept: text/event-stream\r\n")
    done_at = None
    for chunk in asked.chunks():
        if b"[DONE]" in chunk:
            done_at = time.perf_counter()
    asked.close()
    assert done_at is not None
    return time.perf_counter() - done_at


def check_java(server: Server, report: Report) -> None:
    @report.check("whole completions: no coercion, all required fields")
    def whole() -> None:
        for fields in PROMPTS:
            if "stream_options" not in fields:
                java_rules(server.ask(**fields).json, stream=False)

    @report.check("every chunk of every stream")
    def chunks() -> None:
        for fields in PROMPTS:
            for chunk in server.stream(**fields).chunks:
                java_rules(chunk, stream=True)

    @report.check("the body ends within 200 ms of [DONE]")
    def end_of_body() -> None:
        assert any(seconds_after_done(server) < 0.2 for _ in range(30)), "each time"  # the machine may be busy

    @report.check("error objects: message and type are strings, param and code strings or null")
    def errors() -> None:
        for fields in ({"n": 0}, {"model": "nope"}, {"foo": 1}, {"prompt": [999]}):
            error = server.ask(**fields).error
            assert isinstance(error["message"], str) and isinstance(error["type"], str)
            assert all(error[key] is None or isinstance(error[key], str) for key in ("param", "code"))


def check_jvm(server: Server, report: Report) -> None:
    java = shutil.which("java")
    if java is None:
        report.skipped = "java is not installed"
        return
    program = Path(__file__).parent / "programs" / "Sse.java"
    for version in ("HTTP_1_1", "HTTP_2"):  # the second offers an upgrade, which the server must ignore

        @report.check(f"a stream on a JVM's own client, {version}: lines, [DONE], end of body at once")
        def stream(version: str = version) -> None:
            command = [java, str(program), server.url, version]
            ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert ran.returncode == 0 and ran.stdout.startswith("events 40,"), ran.stdout + ran.stderr


# --- Tabby -----------------------------------------------------------------------------------------------------


def check_tabby(server: Server, report: Report) -> None:
    asked = {"suffix": None, "presence_penalty": 0.0, "temperature": 0.1, "max_tokens": 64}

    @report.check("a finish_reason comes before [DONE], text is never null")
    def finish() -> None:
        for fields in ({}, {"suffix": "end"}, {"logit_bias": {"256": 100}}, {"stop": ["e"]}):
            reason = None
            for data in server.stream(**asked | fields).data:
                if data == "[DONE]":
                    assert reason is not None, "Tabby panics here"
                    break
                (choice,) = json.loads(data)["choices"]
                assert isinstance(choice["text"], str)
                reason = choice["finish_reason"] or reason


# --- vllm bench serve ------------------------------------------------------------------------------------------


def bench(server: Server, tokens: int) -> dict[str, Any]:
    """`vllm bench serve --backend openai`, one request: how it reads events, and what it counts."""
    fields: dict[str, Any] = {
        "repetition_penalty": 1.0,
        "max_tokens": tokens,
        "logprobs": None,
        "stream": True,
        "ignore_eos": True,
    }
    fields["stream_options"] = {"include_usage": True}
    asked = Http(server, fields, "x-request-id: bench-0\r\n")
    assert asked.status == 200
    text, chunks, usage, buffer = "", 0, None, b""
    for chunk in asked.chunks():
        buffer += chunk
        while b"\n\n" in buffer:
            event, _, buffer = buffer.partition(b"\n\n")
            message = event.decode().strip()
            if not message or message.startswith(":"):
                continue
            data = message.removeprefix("data: ")
            if data == "[DONE]":
                continue
            value = json.loads(data)
            if choices := value.get("choices"):
                text += choices[0].get("text") or ""
                chunks += 1
            elif value.get("usage"):
                usage = value["usage"]
    asked.close()
    return {"text": text, "chunks": chunks, "usage": usage}


def check_bench(server: Server, report: Report) -> None:
    @report.check("one chunk per token, then the usage")
    def one_each() -> None:
        seen = bench(server, 50)
        assert seen["chunks"] == 50 == seen["usage"]["completion_tokens"]

    @report.check("one chunk per token, also for tokens without text")
    def no_text() -> None:
        body = {"max_tokens": 10, "logit_bias": {"257": 100}}
        assert len(server.stream(**body).chunks) == 10


# --- editors that drive curl -----------------------------------------------------------------------------------


def check_curl(server: Server, report: Report) -> None:
    curl = shutil.which("curl")
    if curl is None:
        report.skipped = "curl is not installed"
        return
    url = server.url + COMPLETIONS
    base = [curl, "-sS", "-N", "-H", "Content-Type: application/json"]

    @report.check("curl -N: whole and stream")
    def whole() -> None:
        for stream in (False, True):
            body = json.dumps(BASE | {"stream": stream, "suffix": "end"})
            ran = subprocess.run([*base, "-d", body, url], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
            assert ran.returncode == 0 and ("[DONE]" in ran.stdout) is stream

    @report.check("expect: 100-continue of large bodies")
    def large() -> None:
        body = json.dumps(BASE | {"user": "x" * 2_000_000})
        command = [*base, "-H", "Expect: 100-continue", "-d", "@-", url]
        ran = subprocess.run(command, input=body, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert ran.returncode == 0 and "choices" in ran.stdout, ran.stdout

    @report.check("a killed curl frees its sequences at once, streaming or not")
    def killed() -> None:
        for stream in (True, False):
            body = json.dumps(BASE | {"stream": stream, "n": 48, "max_tokens": 1900, "ignore_eos": True})
            with subprocess.Popen([*base, "-d", body, url], stdout=subprocess.PIPE) as running:
                try:
                    wait_for(lambda: server.metric("onward_engine_running") > 0)
                finally:
                    running.kill()
            wait_for(lambda: server.metric("onward_engine_running") == 0 == server.metric("onward_kv_blocks_used"))

    @report.check("one request per keystroke: each cancels the previous one")
    def keystrokes() -> None:
        body = BASE | {"stream": True, "max_tokens": 1500, "ignore_eos": True}
        for _ in range(10):
            with httpx2.stream("POST", url, json=body, timeout=PATIENCE_SECONDS) as answer:
                next(answer.iter_bytes())
        wait_for(lambda: server.metric("onward_kv_blocks_used") == 0)
        assert server.ask().status == 200
