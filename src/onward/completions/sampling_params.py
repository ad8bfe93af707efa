"""From the fields of a request to the sampling parameters of its jobs."""

from __future__ import annotations

import re
from weakref import WeakKeyDictionary

from msgspec import structs

from onward.completions.request import CompletionRequest
from onward.completions.token_rules import TokenRules
from onward.engine.model import Tokenizer
from onward.offload import breathe
from onward.sampling.params import DEFAULT_ORDER, Dry, Mirostat, SamplingParams, Shaping
from onward.sampling.rng import GOLDEN_GAMMA, mix

CUTOFF_UNIT = 1e-4
"""The unit of `epsilon_cutoff` and `eta_cutoff`, as in Aphrodite and text-generation-webui."""
DRY_SEQUENCE_BREAKERS = ("\n", ":", '"', "*")
"""Those of DRY's author, of llama.cpp and of text-generation-webui."""
MAX_CACHED_BREAKERS = 16
"""Lists of `dry_sequence_breakers` per tokenizer whose tokens are remembered."""

_SEED_MASK = (1 << 64) - 1
_PLAIN = Shaping()
_breaking: WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], tuple[int, ...]]] = WeakKeyDictionary()


def sampling_params(
    request: CompletionRequest, prompt_index: int, rules: TokenRules, breakers: tuple[int, ...]
) -> SamplingParams:
    """Return the sampling parameters of one prompt's choices. `breakers`: see `breaking_tokens`."""
    ranks_candidates = request.candidates > request.n
    listed = None if request.samplers is None else {_own_name(name) for name in request.samplers}

    def acts(name: str) -> bool:
        return listed is None or name in listed

    has_penalties = acts("penalties")
    if request.mirostat:
        request = structs.replace(request, top_p=1.0, top_k=0, min_p=0.0)
    return SamplingParams(
        temperature=request.temperature if acts("temperature") else 1.0,
        top_p=request.top_p if acts("top_p") else 1.0,
        top_k=request.top_k if acts("top_k") else 0,
        min_p=request.min_p if acts("min_p") else 0.0,
        presence_penalty=request.presence_penalty if has_penalties else 0.0,
        frequency_penalty=request.frequency_penalty if has_penalties else 0.0,
        repetition_penalty=request.repetition_penalty if has_penalties else 1.0,
        penalty_last_n=request.repeat_last_n,
        unpenalized_tokens=rules.unpenalized,
        logit_bias=tuple(sorted(request.logit_bias.items())),
        allowed_tokens=rules.allowed,
        banned_tokens=rules.banned,
        banned_sequences=rules.sequences,
        shaping=None if request.mirostat else _shaping(request),
        dry=_dry(request, breakers) if acts("dry") else None,
        mirostat=_mirostat(request),
        seed=_seed(request, prompt_index),
        logprobs=0 if ranks_candidates and request.logprobs is None else request.logprobs,
    )


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


def _own_name(sampler: str) -> str:
    return "typical_p" if sampler == "typ_p" else sampler


def _seed(request: CompletionRequest, prompt_index: int) -> int:
    """Return the seed of one prompt's choices: the request's seed for every prompt, or a different one for each."""
    if request.seed is not None:
        return request.seed & _SEED_MASK
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


def _shaping(request: CompletionRequest) -> Shaping | None:
    """Return the samplers beside temperature, min_p, top_k and top_p, and their order; None if none of them acts and
    the order is the usual one."""
    shaping = Shaping(
        top_n_sigma=max(0.0, request.top_n_sigma),
        typical_p=request.typical_p,
        tfs=request.tfs,
        top_a=request.top_a,
        epsilon_cutoff=request.epsilon_cutoff * CUTOFF_UNIT,
        eta_cutoff=request.eta_cutoff * CUTOFF_UNIT,
        xtc_probability=request.xtc_probability,
        xtc_threshold=request.xtc_threshold if request.xtc_probability else _PLAIN.xtc_threshold,
        dynatemp_range=request.dynatemp_range,
        dynatemp_exponent=request.dynatemp_exponent if request.dynatemp_range else _PLAIN.dynatemp_exponent,
        order=_order(request),
    )
    return None if shaping == _PLAIN else shaping


def _order(request: CompletionRequest) -> tuple[str, ...]:
    """Return the order of the request's samplers, the usual one where it makes no difference."""
    order: tuple[str, ...] = DEFAULT_ORDER
    if request.samplers is not None:
        listed = dict.fromkeys(_own_name(name) for name in request.samplers)
        order = tuple(name for name in listed if name in DEFAULT_ORDER)
    elif request.temperature_last:
        order = (*(name for name in DEFAULT_ORDER if name != "temperature"), "temperature")
    active = _active(request)
    in_order = [name for name in order if name in active]
    return DEFAULT_ORDER if in_order == [name for name in DEFAULT_ORDER if name in active] else order


def _active(request: CompletionRequest) -> set[str]:
    """Return the samplers whose parameters have an effect."""
    effects = {
        "temperature": request.temperature != 1 or request.dynatemp_range > 0,
        "top_n_sigma": request.top_n_sigma > 0,
        "min_p": request.min_p > 0,
        "top_k": request.top_k > 0,
        "top_p": request.top_p < 1,
        "typical_p": request.typical_p < 1,
        "tfs": request.tfs < 1,
        "top_a": request.top_a > 0,
        "epsilon_cutoff": request.epsilon_cutoff > 0,
        "eta_cutoff": request.eta_cutoff > 0,
        "xtc": request.xtc_probability > 0,
    }
    return {name for name, acts in effects.items() if acts}
