"""How the settings name models: those here, those that other servers compute, those with adapters; and aliases."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from onward.errors import SetupError
from onward.folders import exists, expanded
from onward.network import without_secrets
from onward.settings.declared import Settings

MODEL_SETTINGS = ("model", "alias", "lora", "draft", "tokenizer", "engine", "openai_names")
"""Settings that say which models are served, which a running server may apply."""
OPENAI_NAMES = ("gpt-3.5-turbo-instruct", "davinci-002", "babbage-002")
"""OpenAI's completions models, the last ones, which examples and other people's programs name. The first model answers,
unless a model or alias has the name, or the setting `openai_names` is off."""


class UpstreamName(NamedTuple):
    """A model whose engine is another server, or several of the same: `kind` is which one, `urls` without paths."""

    name: str
    kind: str
    urls: tuple[str, ...]


UPSTREAM_KINDS = {"llama": "llama-server", "vllm": "vLLM", "sglang": "SGLang"}
_UPSTREAM = re.compile(r"(?:(?P<name>[^=/+]*)=)?(?P<kind>[a-z]+)\+(?P<url>https?://\S+)")
_WITHOUT_SCHEME = re.compile(rf"([^=/+]+)=(?:{'|'.join(UPSTREAM_KINDS)})\+[\w.-]+:[0-9]+\S*")


def upstream_of(model: str) -> UpstreamName | None:
    """Return what a model of the settings stands for if its engine is another server, NAME=KIND+URL; None otherwise.
    It has one address; see `upstreams_of`.

    Raises SetupError.
    """
    if (match := _WITHOUT_SCHEME.fullmatch(model)) is not None:
        raise SetupError(f"The address of {match[1]} must be http://HOST:PORT.")
    match = _UPSTREAM.fullmatch(model)
    if match is None:
        return None
    if not match["name"]:
        address = f"{match['kind']}+{without_secrets(match['url'])}"
        raise SetupError(f"{address} needs a name: pass --model NAME={address}.")
    if not match["name"].isprintable():
        raise SetupError(f"{match['name']!a} is not a name for a model: it must consist of printable characters.")
    if match["kind"] not in UPSTREAM_KINDS:
        known = ", ".join(f"{kind}+ ({server})" for kind, server in UPSTREAM_KINDS.items())
        raise SetupError(f"{match['kind']}+ is not a kind of server that can be an engine; these are: {known}.")
    url = match["url"].rstrip("/")
    if "," in url:
        raise SetupError(
            f"The address of {match['name']} has a comma: pass --model {match['name']}=… once for each of several "
            "addresses."
        )
    if not _is_host_and_port(url):
        raise SetupError(
            f"The address of {match['name']} must be http://HOST:PORT, without a path or a password "
            "(ONWARD_UPSTREAM_KEY is sent as its API key)."
        )
    return UpstreamName(match["name"], match["kind"], (url,))


def _is_host_and_port(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0 and url == f"{parts.scheme}://{parts.netloc}" and "@" not in url
    except ValueError:  # a port that is not one, or half an IPv6 address
        return False


def upstreams_of(settings: Settings) -> dict[str, UpstreamName]:
    """Return the models whose engine is another server, by name, each with all its addresses. Raises SetupError."""
    found: dict[str, UpstreamName] = {}
    for upstream in filter(None, map(upstream_of, settings.model)):
        before = found.get(upstream.name, upstream)
        if before.kind != upstream.kind:
            raise SetupError(
                f"{upstream.name} has addresses of {UPSTREAM_KINDS[before.kind]} and {UPSTREAM_KINDS[upstream.kind]}: "
                "all addresses of a model must be of one kind, because results differ. Use two names."
            )
        if before is not upstream and upstream.urls[0] in before.urls:
            raise SetupError(f"{upstream.name} has the address {upstream.urls[0]} twice; pass it once.")
        urls = before.urls if before is upstream else before.urls + upstream.urls
        found[upstream.name] = before._replace(urls=urls)
    return found


def served_names(settings: Settings) -> list[str]:
    """Return the names of the models of the settings, in order."""
    return list(dict.fromkeys(map(served_name, settings.model)))


def served_name(model: str) -> str:
    """Return the name of a model of the settings, without the address of its engine."""
    upstream = upstream_of(model)
    return model if upstream is None else upstream.name


def adapted_models(settings: Settings) -> dict[str, str]:
    """Return the models of `--lora` by name, each as BASE+PATH, which can be loaded."""
    found: dict[str, str] = {}
    for name, value in settings.lora:
        path, at, base = value.rpartition("@")
        if not at or exists(value):  # an @ may be part of the path
            path, base = value, settings.model[0]
        found[name] = f"{base}+{expanded(path)}"
    return found


def model_words(settings: Settings) -> list[str]:
    """Return the words by which the settings name their models, in order, those of `--lora` last."""
    return [*served_names(settings), *adapted_models(settings)]


def model_named(name: str, settings: Settings) -> str:
    """Return the model that `name` stands for, as a path or a name that can be loaded; by default `name` itself."""
    if (target := dict(settings.alias).get(name)) is not None:
        return target
    if (target := adapted_models(settings).get(name)) is not None:
        return target
    return settings.model[0] if is_openai_name(name, settings) else name


def is_openai_name(name: str, settings: Settings) -> bool:
    """Return whether the first model answers to `name` as OpenAI's: no model, alias or folder has that name."""
    return (
        settings.openai_names
        and name in OPENAI_NAMES
        and name not in settings.model
        and name not in dict(settings.alias)
        and not Path(name).exists()
    )
