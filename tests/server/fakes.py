"""A scripted Backend, and a driver of ASGI's receive and send without a client library."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from onward.backends.base import Admit, Health, ModelHealth, Needs, TokenizerInfo
from onward.completions.answer import Delta, Finish, TokenCounts
from onward.completions.rejections import TokenOutOfRange, UnknownModel
from onward.completions.request import CompletionRequest
from onward.engine_load import DraftCounts, EngineLoad, ProcessUsage, RecoveryCounts
from onward.errors import EngineStopped
from onward.models.registry import ListedModel
from onward.settings import Settings
from tests.waiting import PATIENCE_SECONDS

Step = list[Delta] | Exception | asyncio.Event


def delta(text: str, index: int = 0, finish: Any = None, stop: str | int | None = None) -> list[Delta]:
    return [Delta(index, text, [], None if finish is None else Finish(finish, stop))]


STORY: tuple[Step, ...] = (delta(" there"), delta(" was"), delta(" a fox", finish="length"))


class FakeAnswer:
    """Plays a script: yields deltas, awaits events, raises exceptions."""

    def __init__(self, model: str, script: list[Step], seed: int = 0) -> None:
        self.model = model
        self.fingerprint = "fp_fake"
        self.seed = seed
        self.warning = ""
        self._script = script
        self.has_ended = not script
        self._ended = asyncio.Event()
        self.num_yielded = 0
        self.closed = asyncio.Event()

    @property
    def counts(self) -> TokenCounts:
        return TokenCounts(prompt=7, completion=self.num_yielded, cached=4)

    async def __aiter__(self) -> AsyncIterator[list[Delta]]:
        for index, step in enumerate(self._script, 1):
            if isinstance(step, Exception):
                raise step
            if isinstance(step, asyncio.Event):
                await self._event_or_end(step)
            else:
                self.num_yielded += 1
                self.has_ended = index == len(self._script)
                yield step

    async def _event_or_end(self, event: asyncio.Event) -> None:
        waits = [asyncio.create_task(event.wait()), asyncio.create_task(self._ended.wait())]
        try:
            await asyncio.wait(waits, return_when="FIRST_COMPLETED")
        finally:
            for wait in waits:
                wait.cancel()
        if self._ended.is_set():
            raise EngineStopped

    def end(self) -> None:
        self._ended.set()

    async def aclose(self) -> None:
        self.closed.set()

    def abandon(self) -> None:
        self.closed.set()


class FakeBackend:
    """Answers every request with the same script, or with the one that `script_of` returns for it."""

    def __init__(self, *script: Step, script_of: Callable[[CompletionRequest], list[Step]] | None = None) -> None:
        self.script_of = script_of or (lambda _: list(script or STORY))
        self.requests: list[CompletionRequest] = []
        self.answers: list[FakeAnswer] = []
        self.error_to_raise: Exception | None = None
        self.admission: asyncio.Event | None = None
        self.admission_cancelled = asyncio.Event()
        self.answer_model = "fake-model:1"
        self.state: Any = "ready"
        self.recoveries = RecoveryCounts()
        self.process: ProcessUsage | None = None
        self.closed = False
        self.aliases: dict[str, str] = {}

    def models(self) -> list[ListedModel]:
        models = [ListedModel(id=name, created=1, owned_by="onward") for name in ("storyteller", "org/tiny")]
        return models + [
            ListedModel(id=name, created=1, owned_by="onward", model=target) for name, target in self.aliases.items()
        ]

    async def complete(self, request: CompletionRequest, *, client: str = "", admit: Admit | None = None) -> FakeAnswer:
        self.requests.append(request)
        if self.state != "ready":
            raise EngineStopped
        if self.error_to_raise is not None:
            raise self.error_to_raise
        if self.admission is not None:
            try:
                await self.admission.wait()
            except asyncio.CancelledError:
                self.admission_cancelled.set()
                raise
        if admit is not None:
            await admit(Needs(self.answer_model, "fp_fake", 7, request.max_tokens, request.used_seed))
        answer = FakeAnswer(self.answer_model, self.script_of(request), request.used_seed)
        self.answers.append(answer)
        return answer

    async def tokenizer_info(self, model: str | None) -> TokenizerInfo:
        if model is not None and model not in ("storyteller", "org/tiny", *self.aliases):
            raise UnknownModel(model)
        return TokenizerInfo(
            eos_token="<end>", bos_token=None, vocab_size=256, context_length=512, special_tokens=("<end>",)
        )

    async def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        return ([0] if add_special_tokens else []) + list(text.encode())

    async def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        if any(not 0 <= token < 256 for token in tokens):
            raise TokenOutOfRange("tokens", max(tokens), 255)
        return [bytes([token]) for token in tokens]

    def health(self) -> Health:
        model: Any = "ready" if self.state == "draining" else self.state
        return Health(self.state, models={"fake-model:1": ModelHealth(model)})

    def load(self) -> dict[str, EngineLoad]:
        drafts = DraftCounts(prediction_accepted=5, lookup_rejected=2)
        fake = EngineLoad(
            num_running=3,
            max_rows=3,
            num_waiting=2,
            num_blocks=10,
            num_used_blocks=4,
            num_preemptions=1,
            num_steps=9,
            drafts=drafts,
            recoveries=self.recoveries,
            process=self.process,
        )
        return {"fake-model:1": fake}

    def drain(self) -> None:
        self.state = "draining"

    async def aclose(self) -> None:
        self.closed = True
        for answer in self.answers:
            answer.end()


def settings(**given: Any) -> Settings:
    return Settings(**{"access_log": True, **given})


class MovableClock(asyncio.SelectorEventLoop):
    """An event loop whose clock a test can advance, so that it need not wait for timers."""

    skipped_seconds = 0.0
    patience: asyncio.Timeout

    def time(self) -> float:
        return super().time() + self.skipped_seconds


def in_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in a fresh event loop; fail it if it hangs."""

    @functools.wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        async def bounded() -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, MovableClock)
            async with asyncio.timeout(PATIENCE_SECONDS) as loop.patience:
                await test(*arguments, **named)

        with asyncio.Runner(loop_factory=MovableClock) as runner:
            runner.run(bounded())

    return run


async def skip(seconds: float) -> None:
    """Advance the clock of the running test, and return when the timers that are due by then have fired."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovableClock)
    limit = loop.patience.when()
    assert limit is not None
    loop.patience.reschedule(limit + seconds)
    loop.skipped_seconds += seconds
    for _ in range(3):  # a timer, the task that it wakes, and the task that this one wakes
        await asyncio.sleep(0)


class Call:
    """One request to an ASGI application. The test controls its body chunks and disconnect, and sees every message."""

    def __init__(self, app: Any, method: str, target: str, body: bytes | None = b"", **headers: str) -> None:
        path, _, query = target.partition("?")
        named = {"content-type": "application/json"} if method == "POST" else {}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in named.items() if value],
            "client": ("192.0.2.7", 1),
            "scheme": "http",
        }
        self._app = app
        self._incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._changed = asyncio.Event()
        self.sent: list[dict[str, Any]] = []
        if body is not None:
            self.feed(body, more=False)
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._app(self.scope, self._incoming.get, self._send)
        finally:
            self._changed.set()

    async def _send(self, message: dict[str, Any]) -> None:
        assert not self.ended, "nothing may follow the end of a response"
        self.sent.append(message)
        self._changed.set()

    def feed(self, chunk: bytes, *, more: bool = True) -> None:
        self._incoming.put_nowait({"type": "http.request", "body": chunk, "more_body": more})

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    async def until(self, messages: int) -> None:
        """Wait until `messages` messages were sent, or the application is done."""
        while len(self.sent) < messages and not self.task.done():
            self._changed.clear()
            await self._changed.wait()

    async def done(self) -> Call:
        await self.task
        return self

    @property
    def unread(self) -> int:
        """Number of body chunks that the application has not received."""
        return self._incoming.qsize()

    @property
    def ended(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.sent[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        envelope = self.json
        assert set(envelope) == {"error"}
        assert set(envelope["error"]) == {"message", "type", "param", "code"}
        found: dict[str, Any] = envelope["error"]
        return found


def completion(
    app: Any, *, path: str = "/v1/completions", headers: dict[str, str] | None = None, **fields: Any
) -> Call:
    """A completion request to the application."""
    body = json.dumps({"model": "storyteller", "prompt": "Once"} | fields).encode()
    return Call(app, "POST", path, body, **(headers or {}))


def events(body: bytes) -> list[Any]:
    """Parse the events of a stream strictly: LF, `data: `, one line, a blank line; comments become None."""
    assert body.endswith(b"\n\n")
    found: list[Any] = []
    for block in body[:-2].decode().split("\n\n"):
        assert "\n" not in block and "\r" not in block
        if block.startswith(":"):
            found.append(None)
        else:
            assert block.startswith("data: ")
            found.append(block[6:] if block == "data: [DONE]" else json.loads(block[6:]))
    return found
