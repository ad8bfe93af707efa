"""The first waist: who answers a CompletionRequest. Faces above it cannot tell one backend from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

from onward.completions.answer import Answer
from onward.engine.client import DraftCounts, EngineLoad
from onward.protocol.models import Model
from onward.protocol.request import CompletionRequest

__all__ = ["Backend", "DraftCounts", "EngineLoad", "Health", "TokenizerInfo"]


@dataclass(frozen=True, slots=True)
class Health:
    """`detail` says why in a sentence for people."""

    state: Literal["ready", "draining", "dead"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """What /tokenizer_info reports about a model's tokenizer."""

    eos_token: str | None
    bos_token: str | None
    vocab_size: int
    context_length: int
    special_tokens: tuple[str, ...] = ()
    infill: bool = False
    extra: dict[str, object] = field(default_factory=dict)


class Backend(Protocol):
    """Answers completion requests for one or more models. Called from one asyncio event loop, which no call blocks.

    What a model's engine or tokenizer has to work for is awaited; `models`, `health` and `load` return snapshots that
    are at hand, so a backend may be remote.
    """

    def models(self) -> list[Model]:
        """Every name that can be requested, aliases included, in the order of the settings. A snapshot."""
        ...

    async def complete(self, request: CompletionRequest) -> Answer:
        """Check the request against the model, queue it, and return its running answer.

        Cancelling this call leaves nothing running. Raises ModelNotFound, InvalidRequest (context length, token
        ids, suffix), Overloaded, EngineStopped.
        """
        ...

    async def tokenizer_info(self, model: str | None) -> TokenizerInfo:
        """Raises ModelNotFound."""
        ...

    async def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        """Token ids of a text. Raises ModelNotFound."""
        ...

    async def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        """The exact bytes of each token. Raises ModelNotFound, InvalidRequest for an id outside the vocabulary."""
        ...

    def health(self) -> Health:
        """A snapshot."""
        ...

    def load(self) -> dict[str, EngineLoad]:
        """What each engine published last, by model id. A snapshot."""
        ...

    def drain(self) -> None:
        """Refuse new requests from now on (EngineStopped); running ones go on."""
        ...

    async def aclose(self) -> None:
        """End every running request with EngineStopped, stop the engines, free the memory."""
        ...
