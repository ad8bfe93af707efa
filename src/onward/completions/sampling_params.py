"""From the fields of a request to the sampling parameters of its jobs."""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

from onward.completions.request import CompletionRequest
from onward.completions.token_rules import TokenRules
from onward.engine.model import Tokenizer
from onward.offload import breathe
from onward.sampling.filters import ALIASES, COMMON, DEFAULT_ORDER, FILTERS, OPTIONAL, PARAMETERS, optional_values
from onward.sampling.params import Dry, Mirostat, SamplingParams
from onward.sampling.rng import GOLDEN_GAMMA, mix

DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")
"""Those of DRY's author, of llama.cpp and of text-generation-webui."""
MAX_CACHED_BREAKERS = 16
"""Lists of `dry_sequence_breakers` per tokenizer whose tokens are remembered."""

_SEED_MASK = (1 << 64) - 1
_optional = attrgetter(*OPTIONAL)
_NO_FILTERS = _optional(CompletionRequest())
"""The values of a request that sets none of them: most do, and need not be asked filter by filter."""
_breaking: WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], tuple[int, ...]]] = WeakKeyDictionary()


def sampling_params(
    request: CompletionRequest, prompt_index: int, rules: TokenRules, breakers: tuple[int, ...]
) -> SamplingParams:
    """Return the sampling parameters of one prompt's choices. `breakers`: see `breaking_tokens`."""
    ranks_candidates = request.candidates > request.n

    def acts(name: str) -> bool:
        return request.samplers is None or name in request.samplers

    def common(name: str) -> Any:
        keeps_tokens = request.mirostat and name != "temperature"
        return getattr(request, name) if acts(name) and not keeps_tokens else PARAMETERS[name].neutral

    has_penalties = acts("penalties")
    return SamplingParams(
        **{name: common(name) for name in COMMON},
        presence_penalty=request.presence_penalty if has_penalties else 0.0,
        frequency_penalty=request.frequency_penalty if has_penalties else 0.0,
        repetition_penalty=request.repetition_penalty if has_penalties else 1.0,
        penalty_last_n=request.repeat_last_n,
        unpenalized_tokens=rules.unpenalized,
        logit_bias=tuple(sorted(request.logit_bias.items())),
        allowed_tokens=rules.allowed,
        banned_tokens=rules.banned,
        banned_sequences=rules.sequences,
        filters=_filters(request),
        order=DEFAULT_ORDER if request.mirostat else filter_order(request),
        dry=_dry(request, breakers) if acts("dry") else None,
        mirostat=_mirostat(request),
        seed=_seed(request, prompt_index),
        logprobs=0 if ranks_candidates and request.logprobs is None else request.logprobs,
    )


def _filters(request: CompletionRequest) -> tuple[tuple[str, float], ...]:
    if request.mirostat or _optional(request) == _NO_FILTERS:
        return ()
    return optional_values(partial(getattr, request))


def breaking_tokens(request: CompletionRequest, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that contain one of the request's `dry_sequence_breakers`, in ascending order.

    Searches the vocabulary once for each list, which takes tens of milliseconds.
    """
    if request.dry_multiplier == 0:
        return ()
    texts = DRY_SEQUENCE_BREAKERS if request.dry_sequence_breakers is None else request.dry_sequence_breakers
    known = _breaking.setdefault(tokenizer, {})
    if texts not in known:
        if len(known) >= MAX_CACHED_BREAKERS:
            known.clear()
        known[texts] = tuple(_tokens_with(tuple(text.encode() for text in texts if text), tokenizer))
    return known[texts]


def _tokens_with(parts: tuple[bytes, ...], tokenizer: Tokenizer) -> list[int]:
    found: list[int] = []
    if not parts:
        return found
    search = re.compile(b"|".join(re.escape(part) for part in parts)).search
    for token in range(tokenizer.size):
        if token % 4096 == 0:
            breathe()
        if search(tokenizer.token_bytes(token)):
            found.append(token)
    return found


def _seed(request: CompletionRequest, prompt_index: int) -> int:
    """Return the seed of one prompt's choices: the request's seed for every prompt, or a different one for each. The
    first prompt's is the one that was drawn: sent as `seed`, it has the same tokens (behaviour §2.10)."""
    if request.seed is not None:
        return request.seed & _SEED_MASK
    if prompt_index == 0:
        return request.random_seed & _SEED_MASK
    return mix((request.random_seed + GOLDEN_GAMMA * prompt_index) & _SEED_MASK)


def _dry(request: CompletionRequest, breakers: tuple[int, ...]) -> Dry | None:
    if request.dry_multiplier == 0:
        return None
    return Dry(
        request.dry_multiplier, request.dry_base, request.dry_allowed_length, request.dry_penalty_last_n, breakers
    )


def _mirostat(request: CompletionRequest) -> Mirostat | None:
    if request.mirostat == 0:
        return None
    return Mirostat(request.mirostat, request.mirostat_tau, request.mirostat_eta)


def filter_order(request: CompletionRequest) -> tuple[str, ...]:
    """Return the order of the request's filters, the default one where it makes no difference."""
    order = _stated_order(request)
    if order == DEFAULT_ORDER:
        return order
    active = _active(request)
    in_order = [name for name in order if name in active]
    return DEFAULT_ORDER if in_order == [name for name in DEFAULT_ORDER if name in active] else order


def acting_filters(request: CompletionRequest) -> tuple[str, ...]:
    """Return the request's filters that act, in their order."""
    active = _active(request)
    return tuple(name for name in _stated_order(request) if name in active)


def _active(request: CompletionRequest) -> set[str]:
    return {name for name, each in FILTERS.items() if each.acts(partial(getattr, request))}


def _stated_order(request: CompletionRequest) -> tuple[str, ...]:
    if request.samplers is not None:
        names = (ALIASES.get(each, each) for each in request.samplers)
        return tuple(name for name in dict.fromkeys(names) if name in FILTERS)
    if request.temperature_last:
        return (*(name for name in DEFAULT_ORDER if name != "temperature"), "temperature")
    return DEFAULT_ORDER
