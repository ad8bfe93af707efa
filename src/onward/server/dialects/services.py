"""What the endpoints of all dialects share: bodies, models, and the run of a completion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from onward.api.reply import Reply
from onward.backends.base import Backend
from onward.completions.rejections import UnknownModel
from onward.completions.request import CompletionRequest
from onward.models.registry import ListedModel
from onward.offload import inline_or_on_thread
from onward.protocol.body_limits import BodyLimits
from onward.protocol.decode import decode_object
from onward.protocol.parameter import Profile
from onward.server.completion_run import Runner
from onward.server.exchange import Exchange
from onward.settings import Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Services:
    """The application's parts that dialects use."""

    runner: Runner
    settings: Settings
    body_limits: BodyLimits

    @property
    def backend(self) -> Backend:
        return self.runner.backend

    @property
    def profile(self) -> Profile:
        """The profile of dialects: strict is about OpenAI's fields, which they have not."""
        return "lenient" if self.settings.profile == "lenient" else "default"

    async def decode(self, exchange: Exchange, check: Callable[[dict[str, object]], T]) -> T:
        """Return what `check` makes of the body's fields, on any thread; record its model. Raises InvalidRequest.

        The content type is not checked: documented examples of these APIs send a form's.
        """
        body = await exchange.body(self.settings.max_body)

        def decoded() -> T:
            fields = decode_object(body, self.body_limits)
            model = fields.get("model")
            exchange.record.model = model if isinstance(model, str) and model else "-"
            return check(fields)

        return await inline_or_on_thread(len(body), decoded)

    async def complete(self, exchange: Exchange, request: CompletionRequest, reply: Reply) -> None:
        """Complete a request, which `reply` writes. Raises ApiError, RequestRejected, ClientDisconnected."""
        await self.runner.complete(exchange, request, reply)

    def model(self, name: str | None) -> ListedModel:
        """Return a listed model, by default the first. Raises UnknownModel."""
        for model in self.backend.models():
            if name is None or model.id == name:
                return model
        raise UnknownModel(name or "")
