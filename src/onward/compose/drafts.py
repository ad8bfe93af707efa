"""What drafts for which model, according to the settings, and whether a draft model has the same tokens."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from onward.errors import SetupError
from onward.model_files.checkpoint import CheckpointFiles
from onward.model_files.vocabulary import difference
from onward.models.resolve import ResolvedModel
from onward.settings import Settings, model_words, upstreams_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from onward.engine.model import Tokenizer

PREDICTOR = "mtp"
"""In place of the name of a draft model: the layers of the model itself that predict several tokens at once."""


def draft_words(settings: Settings) -> dict[str, str]:
    """Return the names of draft models by the model that each drafts for, as the settings call them. Raises
    SetupError."""
    names = model_words(settings)
    found: dict[str, str] = {}
    for name, word in settings.draft:
        model = name or names[0]
        if model not in names:
            raise SetupError(f"--draft {name}=… names a model that is not served. The models are: {', '.join(names)}.")
        if model in found:
            raise SetupError(f"{model} has two draft models, {found[model]} and {word}: pass --draft once for it.")
        if model in upstreams_of(settings):
            raise SetupError(_not_computed_here(model))
        found[model] = word
    if found and settings.speculation == "off":
        raise SetupError("--speculation off turns all drafts off, those of --draft too: leave out one.")
    return found


def with_drafts(
    models: dict[str, ResolvedModel],
    settings: Settings,
    resolve: Callable[[str], ResolvedModel],
) -> dict[str, ResolvedModel]:
    """Return models, by the names of the settings, with what drafts for them. Raises SetupError."""
    words = draft_words(settings)
    return {
        name: replace(found, draft=draft_named(words[name], found, resolve)) if name in words else found
        for name, found in models.items()
    }


def draft_named(word: str, found: ResolvedModel, resolve: Callable[[str], ResolvedModel]) -> ResolvedModel:
    """Return what drafts for a model, by its name in --draft. Raises SetupError."""
    return replace(found.base, draft=None, is_predictor=True) if word == PREDICTOR else resolve(word)


def refuse_drafts(models: Mapping[str, ResolvedModel], elsewhere: Container[str]) -> None:
    """Raise SetupError for a draft model of a model that another program computes."""
    for name, found in models.items():
        if found.draft is not None and name in elsewhere:
            raise SetupError(_not_computed_here(name))


def require_same_tokens(found: ResolvedModel, tokenizer: Tokenizer, cache_dir: Path) -> None:
    """Raise SetupError where the draft model of a model, if it has one, has an adapter, or other tokens. Slow."""
    if found.draft is None or found.draft.is_predictor:
        return
    if found.draft.adapter is not None:
        raise SetupError(f"{found.draft.id} cannot draft for {found.id}, because it has an adapter: merge it.")
    if other := difference(tokenizer, found.draft.files.load_tokenizer(cache_dir)):
        raise SetupError(
            f"{found.draft.id} cannot draft for {found.id}, because its tokenizer is another one ({other}): a draft "
            "model needs the same tokens."
        )


def require_predictor(found: ResolvedModel) -> None:
    """Raise SetupError for a model that --draft mtp is not for."""
    from onward.checkpoints.architectures import architecture_of
    from onward.checkpoints.predictions import with_prediction

    if not isinstance(found.files, CheckpointFiles):
        raise SetupError(f"--draft mtp is for GGUF and safetensors models, and {found.id} is {found.files.format}.")
    checkpoint = found.files.checkpoint()
    with_prediction(architecture_of(checkpoint), checkpoint)


def _not_computed_here(name: str) -> str:
    return f"--draft is for models that Onward itself computes, and {name} is computed by another program."


def drafter_of(found: ResolvedModel) -> tuple[Path, bool] | None:
    """Return what identifies the draft model of a model: where it is, and whether only layers of it draft."""
    return None if found.draft is None else (found.draft.path.absolute(), found.draft.is_predictor)


def draft_of(models: Sequence[ResolvedModel]) -> ResolvedModel | None:
    """Return the draft model of models that differ in their adapters, and have one engine. Raises SetupError where it
    is not the same for those that have one."""
    found = {drafter: each for each in models if (drafter := drafter_of(each)) is not None}
    if len(found) > 1:
        raise SetupError(
            f"{' and '.join(each.id for each in found.values())} have one engine, and so one draft model: pass "
            "--draft once for them."
        )
    return next((each.draft for each in found.values()), None)
