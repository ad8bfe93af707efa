"""What a request may need that not every engine has: refused by name before a job is submitted, never imitated."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple

from onward.completions.rejections import NotAvailable
from onward.completions.request import CompletionRequest
from onward.completions.sampling_params import acting_filters
from onward.sampling.filters import OPTIONAL, PARAMETERS, is_in_usual_order


def _has_penalties(request: CompletionRequest) -> bool:
    return request.presence_penalty != 0 or request.frequency_penalty != 0 or request.repetition_penalty != 1


def _needs_raw_logprobs(request: CompletionRequest) -> bool:
    is_reported = request.logprobs is not None or request.candidates > request.n
    is_changed = request.temperature not in (0, 1) or request.min_tokens or request.logit_bias or request.banned_tokens
    is_restricted = request.allowed_token_ids or request.bad_words or request.constraint or request.ban_eos_token
    return bool(is_reported and (is_changed or is_restricted or request.dry_multiplier or _has_penalties(request)))


def _is_greedy(request: CompletionRequest) -> bool:
    return request.temperature == 0 or request.top_p == 0 or request.top_k == 1


def _acts(name: str, request: CompletionRequest) -> bool:
    return PARAMETERS[name].acts(getattr(request, name)) and OPTIONAL[name] in acting_filters(request)


def _has_several_filters(request: CompletionRequest) -> bool:
    return (request.top_p < 1) + (request.top_k > 1) + (request.min_p > 0) > 1


class Feature(NamedTuple):
    """`parameter` is the one that an error names; None: whichever constrains the request's text. `what` is the feature
    in words."""

    parameter: str | None
    what: str
    is_needed: Callable[[CompletionRequest], bool]


def _named(parameter: str, is_needed: Callable[[CompletionRequest], bool]) -> Feature:
    return Feature(parameter, f"`{parameter}`", is_needed)


FEATURES: dict[str, Feature] = {
    "prompt_logprobs": Feature(
        "prompt_logprobs",
        "ranks of the prompt's tokens (`prompt_logprobs`)",
        lambda request: request.prompt_logprobs is not None,
    ),
    "echo_logprobs": Feature(
        "echo",
        "log-probabilities of the prompt's tokens (`echo` with `logprobs`)",
        lambda request: request.echo and request.logprobs is not None,
    ),
    "raw_logprobs": Feature(
        "logprobs",
        "log-probabilities of the raw distribution together with a temperature, penalties or biases",
        _needs_raw_logprobs,
    ),
    "several_filters": Feature(
        "top_p", "more than one of `top_p`, `top_k` and `min_p` one after the other", _has_several_filters
    ),
    "repetition_penalty": _named(
        "repetition_penalty", lambda request: request.repetition_penalty != 1 and request.repeat_last_n != 0
    ),
    "repetition_penalty_with_bias": Feature(
        "repetition_penalty",
        "`repetition_penalty` together with `logit_bias` or `dry_multiplier`",
        lambda request: request.repetition_penalty != 1 and bool(request.logit_bias or request.dry_multiplier),
    ),
    "repeat_last_n": _named("repeat_last_n", lambda request: request.repeat_last_n >= 0 and _has_penalties(request)),
    "penalize_nl": _named("penalize_nl", lambda request: not request.penalize_nl and _has_penalties(request)),
    "allowed_token_ids": _named("allowed_token_ids", lambda request: bool(request.allowed_token_ids)),
    "bad_words": _named("bad_words", lambda request: bool(request.bad_words)),
    **{name: _named(name, partial(_acts, name)) for name in OPTIONAL},
    "dry": _named("dry_multiplier", lambda request: request.dry_multiplier > 0),
    "mirostat": _named("mirostat", lambda request: request.mirostat > 0),
    "order_of_samplers": Feature(
        "samplers",
        "another order of `samplers` than temperature, `min_p`, `top_k`, `top_p`",
        lambda request: not _is_greedy(request) and not is_in_usual_order(acting_filters(request)),
    ),
    "samplers": _named("samplers", lambda request: request.samplers is not None or request.temperature_last),
    "seed": _named("seed", lambda request: request.seed is not None and not _is_greedy(request)),
    "cache_salt": _named("cache_salt", lambda request: request.cache_salt is not None),
    "constraint": Feature(None, "constrained output", lambda request: request.constraint is not None),
}
"""What `EngineInfo.lacks` may name."""


def check_features(request: CompletionRequest, lacks: Collection[str]) -> None:
    """Raise NotAvailable for the first feature that the request needs and the engine lacks."""
    for name in lacks:
        feature = FEATURES[name]
        if feature.is_needed(request):
            raise NotAvailable(feature.parameter or request.constraint or name, feature.what)
