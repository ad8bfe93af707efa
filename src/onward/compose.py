"""The only wiring: Settings → Backend. Runtimes are imported here, when a model asks for them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from onward.backends.embedded import EmbeddedBackend, EmbeddedModel, Limits
from onward.errors import SetupError
from onward.models.registry import listed_models
from onward.settings import Settings

if TYPE_CHECKING:
    from onward.engine.model import Model as RuntimeModel
    from onward.engine.model import Tokenizer

TOY = "toy"
"""The weightless model, for tests and demonstrations."""

DRAWING_REVISION = 1
"""Raised with every change of `sampling` that may change a drawn token or a reported log-probability."""

Progress = Callable[[str], None]


def compose(settings: Settings, progress: Progress = lambda message: None) -> EmbeddedBackend:
    """Load every model and start its engine. Slow; blocks. `progress` gets a sentence for each stage.

    Raises SetupError (which names the model and what to do) with nothing left running.
    """
    limits = Limits(
        rows=settings.max_rows,
        max_waiting=settings.max_waiting,
        max_parallel=settings.max_parallel,
        share_prefixes=settings.prefix_cache,
    )
    served: dict[str, EmbeddedModel] = {}
    names: dict[str, str] = {}
    created: dict[str, int] = {}
    try:
        for name in settings.model:
            model, created_at = _load(name, settings, limits, progress)
            if model.id in served:
                model.thread.stop()
                raise SetupError(f"Two models are called {model.id!r}: give each folder a name of its own.")
            served[model.id] = model
            created[model.id] = created_at
            names[name] = model.id
        aliases = _aliases(settings, served, names)
    except BaseException:
        for model in served.values():
            model.thread.stop()
        raise
    return EmbeddedBackend(served, listed_models(created, aliases), names | aliases, limits)


def _load(name: str, settings: Settings, limits: Limits, progress: Progress) -> tuple[EmbeddedModel, int]:
    progress(f"Loading {name}")
    if name == TOY:
        runtime, tokenizer, fingerprint = _toy()
        return EmbeddedModel(TOY, runtime, tokenizer, fingerprint, limits), int(time.time())
    from onward.models.resolve import resolve

    folder = resolve(name, progress=progress)
    runtime, tokenizer, fingerprint = _openvino(folder.path, settings, progress)
    return EmbeddedModel(folder.id, runtime, tokenizer, fingerprint, limits), folder.created


def _toy() -> tuple[RuntimeModel, Tokenizer, str]:
    from onward.runtimes.toy import ToyModel, ToyTokenizer

    model = ToyModel()
    return model, ToyTokenizer(), model.fingerprint


def _aliases(settings: Settings, served: dict[str, EmbeddedModel], names: dict[str, str]) -> dict[str, str]:
    """Alias → model id. Raises SetupError for one that leads nowhere or hides a model."""
    aliases: dict[str, str] = {}
    for alias, target in settings.alias:
        model_id = names.get(target, target)
        if model_id not in served:
            raise SetupError(
                f"The alias {alias}={target} leads nowhere: {target!r} is not served. Served are: "
                f"{', '.join(served)}."
            )
        if alias in served:
            raise SetupError(f"The alias {alias!r} is already the name of a model.")
        aliases[alias] = model_id
    return aliases


def _openvino(path: Path, settings: Settings, progress: Progress) -> tuple[RuntimeModel, Tokenizer, str]:
    from onward.runtimes.openvino.load import load_model
    from onward.runtimes.openvino.options import RuntimeOptions
    from onward.runtimes.tokenizer import HuggingFaceTokenizer

    tokenizer = HuggingFaceTokenizer(path)
    options = RuntimeOptions(
        threads=settings.threads,
        precision=settings.precision,
        kv_memory=settings.kv_memory,
        cache_dir=settings.cache_dir,
        context_length=settings.context_length or None,
    )
    model = load_model(path, options)
    for note in model.notes:
        progress(note)
    return model, tokenizer, _fingerprint(model.fingerprint)


def _fingerprint(runtime: str) -> str:
    """`system_fingerprint`: what the runtime's results depend on, and the code that draws from them."""
    return "fp_" + hashlib.blake2b(f"{runtime} {DRAWING_REVISION}".encode(), digest_size=6).hexdigest()
