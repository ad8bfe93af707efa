"""The interface between the API surfaces (server, Python API, command line) and what answers completion requests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from onward.completions.answer import Answer
from onward.completions.request import CompletionRequest
from onward.engine_load import EngineLoad
from onward.models.registry import ListedModel
from onward.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelHealth:
    """Whether a model's engine runs. While it is `recovering`, requests are accepted and wait. `dead` is final.
    `detail` is a sentence that says why it is not ready, or how many of its engines answer if some do not."""

    state: Literal["ready", "recovering", "dead"]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a backend serves: `ready` if all its models are. `detail` is a sentence without names that says why not.
    `models` has the health of each, by id."""

    state: Literal["ready", "recovering", "draining", "dead"]
    detail: str = ""
    models: dict[str, ModelHealth] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A model's tokenizer, as /tokenizer_info reports it."""

    eos_token: str | None
    bos_token: str | None
    vocab_size: int
    context_length: int
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    adds_bos: bool = False
    """Whether the model needs the start token at the beginning, so that it is added to every text."""
    special_tokens: tuple[str, ...] = ()
    infill: bool = False
    chat_template: str = ""
    """Of the model's files; a stranger's program, which `templates.render` runs."""
    extra: dict[str, object] = field(default_factory=dict)


class Needs(NamedTuple):
    """What a planned request is about to use: at most `completion_tokens` are generated, all candidates together."""

    model: str
    fingerprint: str
    prompt_tokens: int
    completion_tokens: int
    seed: int


Admit = Callable[[Needs], Awaitable[None]]
"""Admits a planned request before anything of it is computed, or raises what refuses it."""


class Backend(Protocol):
    """Answers completion requests for one or more models. Called on one asyncio event loop, which no method blocks.

    Work of an engine or a tokenizer is awaited. `models`, `health` and `load` return cached snapshots, so a backend may
    be remote.
    """

    def models(self) -> list[ListedModel]:
        """Return every model that can be requested, aliases included, in the order of the settings. A snapshot."""
        ...

    async def complete(self, request: CompletionRequest, *, client: str = "", admit: Admit | None = None) -> Answer:
        """Check the request against the model, queue it, and return its running answer. `client` is a name for whoever
        sent it: clients share the model. `admit` is awaited before it is queued.

        If this call is cancelled, nothing keeps running. Raises RequestRejected (`completions.rejections`),
        Overloaded, EngineStopped.
        """
        ...

    async def tokenizer_info(self, model: str | None) -> TokenizerInfo:
        """Return what /tokenizer_info reports. Raises UnknownModel."""
        ...

    async def tokenize(self, model: str | None, text: str, add_special_tokens: bool) -> list[int]:
        """Return the token ids of a text. Raises UnknownModel."""
        ...

    async def token_bytes(self, model: str | None, tokens: list[int]) -> list[bytes]:
        """Return the exact bytes of each token. Raises UnknownModel; TokenOutOfRange for an unknown id."""
        ...

    def health(self) -> Health:
        """Return whether it serves, and each model's health. A snapshot."""
        ...

    def load(self) -> dict[str, EngineLoad]:
        """Return the load that each engine published last, by model id. Of models that share an engine, which differ in
        their adapters, the first has all of it. A snapshot."""
        ...

    def drain(self) -> None:
        """Refuse new requests from now on (EngineStopped). Running ones continue."""
        ...

    async def aclose(self) -> None:
        """Stop the engines and free their memory. Running requests end with EngineStopped."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """A model of a running server. `source` is its path, or the servers that compute it; `is_added`: while the server
    ran, not by its settings. One that is `ending` was replaced or removed, and still has requests."""

    id: str
    status: Literal["ready", "recovering", "dead", "loading", "ending"]
    detail: str = ""
    source: str = ""
    is_added: bool = False
    num_running: int = 0
    num_waiting: int = 0


@dataclass(frozen=True, slots=True)
class ModelChange:
    """What is done to the models of a running server: their ids, with their paths where they are loaded."""

    added: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changes_names: bool = False
    """Whether requests may use other names than before, or another model is the default."""

    def __str__(self) -> str:
        parts = (("added", self.added), ("replaced", self.replaced), ("removed", self.removed))
        words = [f"{word} {', '.join(models)}" for word, models in parts if models]
        return "; ".join(words) or ("names were changed" if self.changes_names else "nothing has changed")


Permit = Callable[[ModelChange], Awaitable[None]]
"""Awaited before a change of models takes effect, when all that it needs is loaded; what it raises prevents it."""


class LiveModels(Protocol):
    """The models of a server while it runs: one change at a time, and either all of it or nothing. Called on the
    backend's event loop, which no method blocks. A request that has begun ends on the model that it began with."""

    @property
    def folders(self) -> tuple[str, ...]:
        """Where models that are added must be."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a change is being made."""
        ...

    def models(self) -> list[LiveModel]:
        """Return all models, in order: served ones, those that are loaded, those that end. A snapshot."""
        ...

    async def add(self, name: str, model_id: str | None, permit: Permit) -> LiveModel:
        """Load a model by its path in one of the folders, and serve it, in place of the one that has its id. Raises
        SetupError."""
        ...

    async def remove(self, model_id: str, permit: Permit) -> None:
        """Stop serving a model. Raises ModelNameError for one that is not served, SetupError for the last one."""
        ...

    async def load_adapter(self, name: str, path: str, base: str | None, permit: Permit, *, in_place: bool) -> None:
        """Load an adapter by its path in one of the folders, and serve it as a model; `in_place`: also in place of
        another adapter of this name. `base`: the model that it changes, None for the first. Raises ModelNameError where
        one of them does not exist, else SetupError."""
        ...

    async def unload_adapter(self, name: str, permit: Permit) -> None:
        """Stop serving an adapter. Raises ModelNameError for one that is not served, SetupError for the last model."""
        ...

    async def apply(self, settings: Settings, permit: Permit) -> ModelChange:
        """Serve the models of settings that were read again: what differs from those that were applied last, and what
        has other files than when it was loaded. What was added or removed otherwise stays so. Raises SetupError."""
        ...
