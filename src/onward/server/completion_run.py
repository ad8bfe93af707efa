"""One completion for one client, in the API of any server."""

from __future__ import annotations

from dataclasses import dataclass

from onward.api.reply import Reply, forward
from onward.backends.base import Backend
from onward.completions.request import CompletionRequest
from onward.server.disconnect import run_while_connected
from onward.server.exchange import Exchange
from onward.server.metrics import Metrics, accept
from onward.server.running import Running
from onward.server.sink import ConnectionSink


@dataclass(frozen=True, slots=True)
class Runner:
    """Runs completions: the only way from a request to an answer here. `running` counts what a drain waits for."""

    backend: Backend
    metrics: Metrics
    running: Running
    keep_alive_seconds: float

    async def complete(self, exchange: Exchange, request: CompletionRequest, reply: Reply) -> None:
        """Complete a request, and send what `reply` writes. Raises ApiError, RequestRejected, ClientDisconnected."""
        exchange.record.stream = request.stream
        run = _CompletionRun(self, exchange, request, reply)
        with self.running.one():
            await run_while_connected(exchange, run.run(), self.keep_alive_seconds, run.send_keep_alive)


class _CompletionRun:
    def __init__(self, runner: Runner, exchange: Exchange, request: CompletionRequest, reply: Reply) -> None:
        self._runner = runner
        self._exchange = exchange
        self._request = request
        self._reply = reply
        self._sink = ConnectionSink(exchange, reply)
        self._is_accepted = False

    async def run(self) -> None:
        """Complete and send. Cancelling it cancels the completion, during prefill too."""
        runner = self._runner
        answer = await accept(runner.backend, self._request, self._exchange, runner.metrics)
        self._reply.begin(answer)
        self._is_accepted = True
        await forward(answer, self._reply, self._sink)

    async def send_keep_alive(self) -> None:
        """Send what the format has for it on an idle stream, once the request was accepted."""
        if self._reply.is_stream and self._is_accepted:
            await self._sink.events.send_keep_alive()
