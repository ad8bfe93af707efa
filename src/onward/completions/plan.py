"""Plans a request: checks what depends on the model, and returns the jobs that the engine runs without checks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

from msgspec import structs

from onward.completions.constraints import check_combination, check_total
from onward.completions.encode import encode_beginning, encode_fitting, without_dummy_spaces
from onward.completions.features import check_features
from onward.completions.infill import Infill, encode_files, find_infill, require_infill
from onward.completions.limits import RequestLimits
from onward.completions.reasoning import Markers, find_reasoning_markers
from onward.completions.rejections import ContextExceeded, NoStartToken, SuffixExcludesScores, TokenOutOfRange
from onward.completions.request import CompletionRequest, InfillContext
from onward.completions.sampling_params import breaking_tokens, sampling_params
from onward.completions.token_rules import token_rules
from onward.constraints.references import References
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.offload import breathe
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules
from onward.text.decoding import decode_tokens

MAX_TRUNCATED_CONTEXTS = 8
"""A text that cannot fit into this many contexts is rejected, not truncated: tokenizing it would take too long."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a plan needs to know about a model. `context_length` is in tokens, prompt and completion together; `lacks`
    are the names of features that its engine does not have (`completions.features`); `adapter`: the id of its adapter,
    "" if it has none."""

    id: str
    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    infill: Infill | None
    reasoning_markers: Markers | None = None
    lacks: tuple[str, ...] = ()
    adapter: str = ""

    @property
    def references(self) -> References:
        """Knows the tokens that a grammar names."""
        ends = self.tokenizer.end_tokens | (frozenset() if self.infill is None else self.infill.ends)
        return References(self.tokenizer, self.vocab_size, ends)

    @classmethod
    def create(
        cls, model_id: str, tokenizer: Tokenizer, vocab_size: int, context_length: int, lacks: tuple[str, ...] = ()
    ) -> Self:
        """Return a model with the infill tokens and reasoning markers of its tokenizer."""
        markers = find_reasoning_markers(tokenizer)
        return cls(model_id, tokenizer, vocab_size, context_length, find_infill(tokenizer), markers, lacks)


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One prompt of a request: its job, and the prompt as the client knows it.

    `text`, `tokens` and the tokens' `token_bytes` contain neither an implicit start token nor infill tokens.
    `num_prompt_tokens` is the prompt's part of `usage.prompt_tokens`.
    """

    job: Job
    text: str
    tokens: tuple[int, ...]
    token_bytes: tuple[bytes, ...]
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a request. `reasoning_markers` are the model's, for `reasoning_tokens`; `warning` is a sentence for
    the client."""

    request: CompletionRequest
    prompts: tuple[PlannedPrompt, ...]
    reasoning_markers: Markers | None = None
    warning: str = ""

    @property
    def jobs(self) -> list[Job]:
        """The jobs, one per prompt, in order."""
        return [prompt.job for prompt in self.prompts]

    def constrained(self, grammar: str) -> Plan:
        """Return the plan whose jobs have a grammar, which was checked. Raises InvalidConstraint if it is too large
        for them."""
        check_total(self.request, grammar)
        jobs = [replace(prompt.job, grammar=grammar) for prompt in self.prompts]
        prompts = (replace(prompt, job=job) for prompt, job in zip(self.prompts, jobs, strict=True))
        return replace(self, prompts=tuple(prompts))


def plan(
    request: CompletionRequest,
    model: ServedModel,
    request_number: int,
    job_ids: Iterator[int],
    limits: RequestLimits,
    client: int = 0,
) -> Plan:
    """Return the plan of a request.

    `request_number` identifies the request in the engine, `job_ids` yields ids that the engine has not used,
    `client` is a number for whoever sent it. The plan depends only on the request (including its `random_seed`), except
    for these. Raises RequestRejected: one of `completions.rejections`, or TextNotEncodable.
    """
    if request.fill_context:
        request = structs.replace(request, max_tokens=min(request.max_tokens, model.context_length))
    prompts = request.prompts
    limits.check_choices(len(prompts), request, model.context_length)
    check_features(request, model.lacks)
    _check_bias(request, model)
    if request.suffix and request.echo and request.logprobs is not None:
        raise SuffixExcludesScores
    check_combination(request)
    rules = token_rules(request, model.tokenizer, _ends(request, model), model.vocab_size)
    breakers = breaking_tokens(request, model.tokenizer)
    prediction = _prediction(request, model)
    planned: list[PlannedPrompt] = []
    num_tokens = 0
    for index, prompt in enumerate(prompts):
        breathe()
        sampling = sampling_params(request, index, rules, breakers)
        planned.append(
            _plan_prompt(prompt, request, model, request_number, next(job_ids), sampling, prediction, client)
        )
        num_tokens += len(planned[-1].job.prompt)
        limits.check_prompts(len(prompts), num_tokens, request)
    return Plan(request, tuple(planned), model.reasoning_markers, _start_token_warning(request, model))


def _start_token_warning(request: CompletionRequest, model: ServedModel) -> str:
    """Return a warning if a prompt of token ids, which is used unchanged, has no start token although the model needs
    one."""
    start = model.tokenizer.start_token
    if not model.tokenizer.implicit_prefix(add_special_tokens=True):
        return ""
    if all(isinstance(prompt, str) or prompt[0] == start for prompt in request.prompts):
        return ""
    return (
        f"A prompt of token ids does not begin with the start token {start} ({model.tokenizer.bos_token!r}), which "
        "this model needs: its log-probabilities are far too low without it. Begin with it, or send the prompt as text."
    )


def _plan_prompt(
    prompt: str | list[int],
    request: CompletionRequest,
    model: ServedModel,
    request_number: int,
    job_id: int,
    sampling: SamplingParams,
    prediction: tuple[int, ...],
    client: int,
) -> PlannedPrompt:
    ids, num_implicit = _truncated(*_encode(prompt, request, model), request, model)
    job_prompt = _job_prompt(ids, num_implicit, request, model)
    _check_ids(job_prompt, model)
    max_tokens = _max_tokens(request, len(job_prompt), model)
    visible = tuple(ids[num_implicit:])
    token_bytes = tuple(map(model.tokenizer.token_bytes, visible))
    if isinstance(prompt, str):
        text, pending = prompt, b""
        token_bytes = without_dummy_spaces(visible, token_bytes, prompt, model.tokenizer)
        if b"".join(token_bytes) != prompt.encode("utf-8", "replace"):
            # The tokenizer normalises: offsets are those of the normalised text.
            text, pending = decode_tokens(token_bytes)
    else:
        text, pending = decode_tokens(token_bytes)
    job = Job(
        id=job_id,
        request=request_number,
        prompt=tuple(job_prompt),
        num_choices=request.candidates,
        max_tokens=max_tokens,
        sampling=sampling,
        rules=_rules(request),
        end_tokens=_end_tokens(request, model),
        min_tokens=request.min_tokens,
        score_top=_score_top(request),
        score_ranks=request.prompt_logprobs is not None,
        pending=pending,
        prediction=prediction,
        client=client,
        salt=_salt(request),
        priority=request.priority,
        is_background=request.is_background,
        adapter=model.adapter,
        weight=request.weight,
    )
    return PlannedPrompt(job, text, visible, token_bytes, max(1, len(job_prompt) - num_implicit))


def _score_top(request: CompletionRequest) -> int | None:
    """Return with how many alternatives the prompt's tokens are scored; None if they are not."""
    wanted = (request.prompt_logprobs, request.logprobs if request.echo else None)
    return max((top for top in wanted if top is not None), default=None)


def _salt(request: CompletionRequest) -> str:
    """Return a digest of the request's salt: short, and not the secret itself."""
    return hashlib.blake2b(request.cache_salt.encode(), digest_size=16).hexdigest() if request.cache_salt else ""


def _max_tokens(request: CompletionRequest, num_prompt_tokens: int, model: ServedModel) -> int:
    """Return how many tokens are generated at most. Raises ContextExceeded if they do not fit."""
    room = model.context_length - num_prompt_tokens
    needed = 0 if request.fill_context else request.max_tokens
    if needed > room:
        raise ContextExceeded(num_prompt_tokens, needed, model.context_length)
    return min(request.max_tokens, room)


def _ends(request: CompletionRequest, model: ServedModel) -> frozenset[int]:
    """Return the model's tokens that end a text or an infill. Those outside the vocabulary, which configurations may
    contain, are left out."""
    ends = model.tokenizer.end_tokens
    if model.infill is not None and (request.suffix or request.infill is not None):
        ends |= model.infill.ends
    vocabulary = range(model.vocab_size)
    return frozenset(token for token in ends if token in vocabulary)


def _end_tokens(request: CompletionRequest, model: ServedModel) -> frozenset[int]:
    """Return the tokens that finish a choice of the request when they are sampled."""
    ends = frozenset[int]() if request.ignore_eos else _ends(request, model)
    return ends.union(request.stop_token_ids)


def _job_prompt(ids: list[int], num_implicit: int, request: CompletionRequest, model: ServedModel) -> list[int]:
    """Return the token ids of the job's prompt. With a suffix, it has the infill tokens and the suffix."""
    if request.suffix or request.infill is not None:
        infill = require_infill(model.infill)
        suffix_ids = _encode_text(request.suffix or "", request, model, add_special_tokens=False)
        own = infill.arrange(ids[num_implicit:], suffix_ids)
        if request.infill is not None:
            own = _with_context(own, num_implicit, infill, request.infill, request, model)
        return [*ids[:num_implicit], *own]
    return ids


def _with_context(
    own: list[int],
    num_implicit: int,
    infill: Infill,
    context: InfillContext,
    request: CompletionRequest,
    model: ServedModel,
) -> list[int]:
    """Return an infill's tokens with those of other files before them, and with the known beginning after them."""
    beginning = _encode_text(context.beginning, request, model, add_special_tokens=False)
    reserved = min(request.max_tokens, model.context_length // 4) if request.fill_context else request.max_tokens
    room = model.context_length - num_implicit - len(own) - len(beginning) - reserved
    return [*encode_files(context.files, infill, model.tokenizer, room), *own, *beginning]


def _encode(prompt: str | list[int], request: CompletionRequest, model: ServedModel) -> tuple[list[int], int]:
    """Return the token ids of a prompt, and how many of the first are implicit.

    An empty prompt is the start token; a token array is used unchanged (behaviour §2.2). Raises RequestRejected.
    """
    if isinstance(prompt, list):
        return list(prompt), 0
    tokenizer = model.tokenizer
    if prompt or request.infill is not None:
        ids = _encode_text(prompt, request, model, add_special_tokens=request.add_special_tokens)
        num_implicit = tokenizer.implicit_prefix(add_special_tokens=request.add_special_tokens)
        if num_implicit and ids[num_implicit:][:num_implicit] == ids[:num_implicit]:
            return ids[num_implicit:], 0  # the text begins with the start token's literal: one is enough
        if len(ids) > num_implicit or request.infill is not None:
            return ids, num_implicit
    if tokenizer.start_token is None:
        raise NoStartToken
    return [tokenizer.start_token], 1


def _truncated(
    ids: list[int], num_implicit: int, request: CompletionRequest, model: ServedModel
) -> tuple[list[int], int]:
    """Return the implicit tokens and as many of the last others as `truncate_prompt_tokens` keeps, one at least."""
    keep = request.truncate_prompt_tokens
    if keep is None:
        return ids, num_implicit
    room = model.context_length - request.max_tokens if keep < 0 else keep
    surplus = len(ids) - max(room, num_implicit + 1)
    return ([*ids[:num_implicit], *ids[num_implicit + surplus :]] if surplus > 0 else ids), num_implicit


def _encode_text(text: str, request: CompletionRequest, model: ServedModel, *, add_special_tokens: bool) -> list[int]:
    return encode_fitting(
        text,
        model.tokenizer,
        context_length=model.context_length * (1 if request.truncate_prompt_tokens is None else MAX_TRUNCATED_CONTEXTS),
        max_tokens=0 if request.fill_context else request.max_tokens,
        add_special_tokens=add_special_tokens,
    )


def _prediction(request: CompletionRequest, model: ServedModel) -> tuple[int, ...]:
    """Return the tokens of the predicted text, up to the context length. The model may use other tokens for it."""
    if request.prediction is None or request.max_tokens == 0:
        return ()
    ids = encode_beginning(request.prediction, model.tokenizer, model.context_length)
    return tuple(token for token in ids if 0 <= token < model.vocab_size)


def _rules(request: CompletionRequest) -> TextRules:
    return TextRules(
        stops=request.stop,
        include_stop=request.include_stop_str_in_output,
        skip_special=request.skip_special_tokens,
        min_tokens=request.min_tokens,
        keep_terminators=request.return_token_ids or (request.echo and request.logprobs is not None),
    )


def _check_ids(ids: list[int], model: ServedModel) -> None:
    vocabulary = range(model.vocab_size)
    if min(ids) in vocabulary and max(ids) in vocabulary:
        return
    raise TokenOutOfRange("prompt", next(token for token in ids if token not in vocabulary), vocabulary[-1])


def _check_bias(request: CompletionRequest, model: ServedModel) -> None:
    highest = model.vocab_size - 1
    for token in request.logit_bias:
        if token > highest:
            raise TokenOutOfRange("logit_bias", token, highest)
