"""The waist: who answers a CompletionRequest. Faces above it cannot tell one backend from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from onward.completions.answer import Answer
from onward.protocol.models import Model
from onward.protocol.request import CompletionRequest


@dataclass(frozen=True, slots=True)
class Health:
    """`state` is "ready", "draining" or "dead"; `detail` says why in a sentence for a person."""

    state: Literal["ready", "draining", "dead"]
    detail: str = ""


@dataclass(slots=True)
class Load:
    """What a model's engine is doing now, for /metrics. Token counts are since the start.

    `drafts` counts tokens drafted ahead, by where they came from ("prediction", "lookup") and what became of them
    ("accepted", "rejected").
    """

    running: int = 0
    waiting: int = 0
    blocks_total: int = 0
    blocks_used: int = 0
    blocks_cached: int = 0
    preemptions: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0
    steps: int = 0
    drafts: dict[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What /tokenizer_info tells of a model's tokenizer."""

    eos_token: str | None
    bos_token: str | None
    vocab_size: int
    context_length: int
    special_tokens: tuple[str, ...] = ()
    infill: bool = False
    extra: dict[str, object] = field(default_factory=dict)


class Backend(Protocol):
    """Answers completion requests for one or more models. Called from one asyncio event loop."""

    def models(self) -> list[Model]:
        """Every name that can be asked for, aliases included, in the order given at the start."""
        ...

    async def complete(self, request: CompletionRequest) -> Answer:
        """Check the request against the model, queue it, and give its running answer.

        Cancelling this call leaves nothing running. Raises ModelNotFound, InvalidRequest (context length, token
        ids, suffix), Overloaded, EngineStopped.
        """
        ...

    def tokenizer_info(self, model: str | None) -> TokenizerInfo: ...

    def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. May be called from a thread."""
        ...

    def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        """The exact bytes of each token. Raises InvalidRequest for an id outside the vocabulary."""
        ...

    def health(self) -> Health: ...

    def load(self) -> dict[str, Load]:
        """Load by model id."""
        ...

    def drain(self) -> None:
        """Refuse new requests from now on (EngineStopped); let those that run go on."""
        ...

    async def aclose(self) -> None:
        """End every running request with EngineStopped, stop the engines, free the memory."""
        ...
