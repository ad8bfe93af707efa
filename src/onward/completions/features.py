"""What a request may need that not every engine has: refused by name before a job is submitted, never imitated."""

from __future__ import annotations

from collections.abc import Callable, Collection

from onward.protocol import refusals
from onward.protocol.request import CompletionRequest


def _has_penalties(request: CompletionRequest) -> bool:
    return request.presence_penalty != 0 or request.frequency_penalty != 0 or request.repetition_penalty != 1


def _needs_raw_logprobs(request: CompletionRequest) -> bool:
    is_reported = request.logprobs is not None or request.candidates > request.n
    is_changed = request.temperature not in (0, 1) or request.min_tokens or request.logit_bias or request.banned_tokens
    return bool(is_reported and (is_changed or _has_penalties(request) or request.ban_eos_token))


def _has_several_filters(request: CompletionRequest) -> bool:
    return (request.top_p < 1) + (request.top_k > 1) + (request.min_p > 0) > 1


FEATURES: dict[str, tuple[str, Callable[[CompletionRequest], bool]]] = {
    "prompt_logprobs": ("echo", lambda request: request.echo and request.logprobs is not None),
    "raw_logprobs": ("logprobs", _needs_raw_logprobs),
    "several_filters": ("top_p", _has_several_filters),
    "repetition_penalty": ("repetition_penalty", lambda request: request.repetition_penalty != 1),
    "repetition_penalty_with_bias": (
        "repetition_penalty",
        lambda request: request.repetition_penalty != 1 and bool(request.logit_bias),
    ),
    "repeat_last_n": ("repeat_last_n", lambda request: request.repeat_last_n >= 0 and _has_penalties(request)),
    "allowed_token_ids": ("allowed_token_ids", lambda request: bool(request.allowed_token_ids)),
    "bad_words": ("bad_words", lambda request: bool(request.bad_words)),
    "top_n_sigma": ("top_n_sigma", lambda request: request.top_n_sigma > 0),
    "typical_p": ("typical_p", lambda request: request.typical_p < 1),
    "tfs": ("tfs", lambda request: request.tfs < 1),
    "top_a": ("top_a", lambda request: request.top_a > 0),
    "epsilon_cutoff": ("epsilon_cutoff", lambda request: request.epsilon_cutoff > 0),
    "eta_cutoff": ("eta_cutoff", lambda request: request.eta_cutoff > 0),
    "xtc": ("xtc_probability", lambda request: request.xtc_probability > 0),
    "dynatemp": ("dynatemp_range", lambda request: request.dynatemp_range > 0),
    "dry": ("dry_multiplier", lambda request: request.dry_multiplier > 0),
    "constraint": ("response_format", lambda request: request.constraint is not None),
    "samplers": ("samplers", lambda request: request.samplers is not None or request.temperature_last),
}
"""Name → the parameter that an error names, and whether a request needs it. Of a constraint the error names the
parameter that was sent."""


def check_features(request: CompletionRequest, lacks: Collection[str]) -> None:
    """Raise InvalidRequest for the first feature that the request needs and the engine lacks."""
    for name in lacks:
        parameter, is_needed = FEATURES[name]
        if is_needed(request):
            parameter = request.constraint or parameter if name == "constraint" else parameter
            what = {
                "raw_logprobs": "log-probabilities of the raw distribution beside a temperature, penalties or biases",
                "several_filters": "more than one of `top_p`, `top_k` and `min_p` one after the other",
                "prompt_logprobs": "log-probabilities of the prompt's tokens (`echo` with `logprobs`)",
                "repetition_penalty_with_bias": "`repetition_penalty` together with `logit_bias`",
            }.get(name, f"`{parameter}`")
            raise refusals.unavailable(parameter, f"The engine behind this model does not have {what}.")
