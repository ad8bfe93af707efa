"""Settings that are stated and on which nothing would act: they are refused, since to accept one is to say that it
acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from onward.compose.programs import AUTO, ONWARD, wanted_engines
from onward.errors import SetupError
from onward.settings import Settings, model_words, options, upstreams_of
from onward.values import ENGINES, PROGRAMS

SERVER, CLUSTER = "server", "cluster"
"""What computes models besides the words of --engine: other servers, and the replicas of a cluster."""
OWN_SETTINGS = (
    *("precision", "weights", "runtime", "kv_memory", "prefix_cache", "prefix_cache_dir", "prefix_cache_disk"),
    *("speculation", "engine_process"),
)
"""Settings of Onward's own engine, which are passed on to no other program."""


Naming = Callable[[str, object], str]
"""What a message calls a setting: from its name in `Settings`, and its value, None where that is another one."""


def flag_of(name: str, value: object) -> str:
    """Return the flag that states a setting."""
    return f"--{'no-' if value is False else ''}{name.replace('_', '-')}"


class _Rule(NamedTuple):
    """`acts`: whether these settings act, where models are computed by what its second argument lists. `otherwise`
    follows the setting in a sentence: {names} of settings are replaced as a message calls them; {program} is what to do
    where programs compute."""

    names: tuple[str, ...]
    acts: Callable[[Settings, frozenset[str]], bool]
    otherwise: str


_NOT_OWN = (
    "is for models that Onward itself computes, and another program computes all of these: leave it out; {program}."
)
_RULES = (
    _Rule(OWN_SETTINGS, lambda _, computing: ONWARD in computing, _NOT_OWN),
    _Rule(("threads",), lambda _, computing: not computing.isdisjoint((ONWARD, "llama.cpp")), _NOT_OWN),
    _Rule(
        ("prefix_cache_disk",),
        lambda settings, _: settings.prefix_cache_dir is not None,
        "limits the files in {prefix_cache_dir}: pass that too, or leave it out.",
    ),
    _Rule(
        ("engine_timeout",),
        lambda settings, computing: settings.engine_process == "on" or computing != {ONWARD},
        "is how long an engine's process may be silent, and {engine_process} off starts none: leave one of them out.",
    ),
    _Rule(
        ("engine_wait",),
        lambda _, computing: not computing.isdisjoint((SERVER, CLUSTER)),
        "is for models that servers at addresses of their own compute, and for {cluster}: leave it out; requests wait "
        "for an engine that Onward starts as long as it loads.",
    ),
    _Rule(
        ("resume_memory",),
        lambda settings, _: settings.resume_window > 0,
        "is for streams that are kept for a while, and {resume_window} 0 keeps none: leave one of them out.",
    ),
)


def unused_settings(settings: Settings, *, is_server: bool, naming: Naming = flag_of) -> dict[str, str]:
    """Return the settings that are stated and have no effect, each with what to do, as a sentence. `is_server`: also
    those that only affect `onward serve`, which other commands never use. Raises SetupError."""
    computing = _computing(settings, naming)
    words = {option.name: naming(option.name, None) for option in options()}
    words["program"] = (
        f"{words['engine_arg']} passes a flag of that program's own"
        if settings.engine
        else "that program has its own flags"
    )
    considered = {option.name for option in options() if is_server or not option.is_server_only}
    found: dict[str, str] = {}
    for names, acts, otherwise in _RULES:
        for name in names:
            value = getattr(settings, name)
            is_stated = name in considered and value != getattr(Settings, name)
            if is_stated and name not in found and not acts(settings, computing):
                found[name] = f"{naming(name, value)} {otherwise.format_map(words)}"
    return found


def refuse_unused(settings: Settings, *, is_server: bool, naming: Naming = flag_of) -> None:
    """Raise SetupError for a setting that has no effect; see `unused_settings`."""
    for sentence in unused_settings(settings, is_server=is_server, naming=naming).values():
        raise SetupError(sentence)
    if not is_server:
        return
    computing = _computing(settings, naming)
    paths, arguments = ({word for word, _ in pairs} for pairs in (settings.engine_path, settings.engine_arg))
    for name, words in (("engine_path", paths), ("engine_arg", arguments)):
        for word in sorted(words):
            if computing.isdisjoint((word,) if word else PROGRAMS):
                stated = f"{naming(name, None)} {word}=…" if word else f"{naming(name, None)} …"
                raise SetupError(
                    f"{stated} is for models that {word or 'a program'} computes, and there is none: pass "
                    f"{naming('engine', None)} {word or PROGRAMS[0]}, or leave it out."
                )


def _computing(settings: Settings, naming: Naming) -> frozenset[str]:
    """Return what computes the models, or may: words of --engine, SERVER, CLUSTER. Raises SetupError."""
    if settings.cluster is not None:  # `compose.cluster` refuses what belongs to its replicas, whatever computes there
        return frozenset({CLUSTER, *ENGINES})
    upstreams, wanted = upstreams_of(settings), wanted_engines(settings, naming("engine", None))
    words = {wanted.get(name, ONWARD) for name in model_words(settings) if name not in upstreams}
    if settings.model_folder:  # of models that are added while the server runs
        words.add(dict(settings.engine).get("", ONWARD))
    if AUTO in words:
        words.update(ENGINES)
    return frozenset(words - {AUTO} | ({SERVER} if upstreams else set()))
