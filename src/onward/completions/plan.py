"""A request and a model become jobs: prompt forms, seeds, limits. Behind this gate nothing is checked again."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass

from onward.completions.infill import Infill, require_infill
from onward.completions.reasoning import Markers
from onward.engine.job import Job
from onward.engine.model import Tokenizer
from onward.errors import InvalidRequest
from onward.protocol.request import CompletionRequest
from onward.sampling.params import SamplingParams
from onward.text.assembler import TextRules
from onward.text.offsets import decode_tokens

SCORED = 8
"""So many times the usual number of prompts may be asked for where nothing is generated."""
_SEED_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a plan must know of a model. `context_length` is in tokens, prompt and completion together."""

    id: str
    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    infill: Infill | None
    reasoning_markers: Markers | None = None


@dataclass(frozen=True, slots=True)
class PlannedPrompt:
    """One prompt of a request: its job, and what an echo shows of it.

    `tokens` are the prompt's ids as the client sees them: without an implicit start token, without infill tokens.
    `pieces` are the bytes they stand for in `text`. `billed` is its share of `usage.prompt_tokens`.
    """

    job: Job
    text: str
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]
    billed: int

    @property
    def hidden(self) -> int:
        """Ids at the start of the job's prompt that the client never sees."""
        return len(self.job.prompt) - len(self.tokens)


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a request. `reasoning_markers` are the model's, for `reasoning_tokens`."""

    request: CompletionRequest
    prompts: tuple[PlannedPrompt, ...]
    reasoning_markers: Markers | None = None

    @property
    def jobs(self) -> list[Job]:
        return [prompt.job for prompt in self.prompts]


def plan(
    request: CompletionRequest, model: ServedModel, number: int, job_ids: Iterator[int], max_parallel: int
) -> Plan:
    """Decide everything. `number` identifies the request to the engine, `job_ids` gives process-unique ids.

    Raises InvalidRequest: token ids, context length, too many choices, a suffix that the model cannot use.
    """
    prompts = request.prompts
    _check_parallel(len(prompts), request, max_parallel)
    _check_bias(request, model)
    if request.suffix and request.echo and request.logprobs is not None:
        raise InvalidRequest("Setting 'echo' and 'logprobs' at the same time is not supported with 'suffix'.")
    prediction = _prediction(request, model)
    planned = [
        _plan_prompt(prompt, request, model, number, next(job_ids), _sampling(request), prediction)
        for prompt in prompts
    ]
    return Plan(request, tuple(planned), model.reasoning_markers)


def _plan_prompt(
    prompt: str | list[int],
    request: CompletionRequest,
    model: ServedModel,
    number: int,
    job_id: int,
    sampling: SamplingParams,
    prediction: tuple[int, ...],
) -> PlannedPrompt:
    ids, hidden = _encode(prompt, request, model)
    fed, ends = _feed(ids, hidden, request, model)
    _check_ids(fed, model)
    _check_context(len(fed), request.max_tokens, model)
    shown = tuple(ids[hidden:])
    pieces = tuple(map(model.tokenizer.token_bytes, shown))
    if isinstance(prompt, str):
        text, pending = prompt, b""
        pieces = _without_dummy_space(pieces, prompt)
    else:
        text, pending = decode_tokens(pieces)
    job = Job(
        id=job_id,
        request=number,
        prompt=tuple(fed),
        choices=request.candidates,
        max_tokens=request.max_tokens,
        sampling=sampling,
        rules=_rules(request),
        end_tokens=ends,
        min_tokens=request.min_tokens,
        score_top=request.logprobs if request.echo else None,
        text_base=len(text),
        pending=pending,
        prediction=prediction,
        repeatable=request.seed is not None or sampling.is_greedy,
    )
    return PlannedPrompt(job, text, shown, pieces, billed=max(1, len(fed) - hidden))


def _feed(
    ids: list[int], hidden: int, request: CompletionRequest, model: ServedModel
) -> tuple[list[int], frozenset[int]]:
    """What the engine reads: the prompt's ids, or these and the suffix's in the model's order; and the tokens that
    end a choice, of those that the model can write at all (a config may name others)."""
    fed, ends = ids, model.tokenizer.end_tokens
    if request.suffix:
        infill = require_infill(model.infill)
        suffix_ids = model.tokenizer.encode(request.suffix, add_special_tokens=False)
        fed = [*ids[:hidden], *infill.arrange(ids[hidden:], suffix_ids)]
        ends |= infill.ends
    vocabulary = range(model.vocab_size)
    return fed, frozenset(() if request.ignore_eos else (token for token in ends if token in vocabulary))


def _without_dummy_space(pieces: tuple[bytes, ...], prompt: str) -> tuple[bytes, ...]:
    """SentencePiece vocabularies spell a text's first word with a space that the text does not have."""
    if pieces and pieces[0].startswith(b" ") and b"".join(pieces) == b" " + prompt.encode():
        return (pieces[0][1:], *pieces[1:])
    return pieces


def _encode(prompt: str | list[int], request: CompletionRequest, model: ServedModel) -> tuple[list[int], int]:
    """Token ids to feed, and how many of the first are implicit: an empty prompt is the start of a document,
    a token array is used verbatim (spec/completions §2.2)."""
    if isinstance(prompt, list):
        return list(prompt), 0
    tokenizer = model.tokenizer
    if prompt:
        ids = tokenizer.encode(prompt, add_special_tokens=request.add_special_tokens)
        hidden = tokenizer.implicit_prefix(add_special_tokens=request.add_special_tokens)
        if len(ids) > hidden:
            return ids, hidden
    if tokenizer.start_token is None:
        raise InvalidRequest("This model has no start-of-text token: its prompt cannot be empty.", param="prompt")
    return [tokenizer.start_token], 1


def _prediction(request: CompletionRequest, model: ServedModel) -> tuple[int, ...]:
    """The predicted text's tokens, as many as a context holds. They need not be those that the model would take."""
    if request.prediction is None or request.max_tokens == 0:
        return ()
    ids = model.tokenizer.encode(request.prediction, add_special_tokens=False)
    return tuple(token for token in ids[: model.context_length] if 0 <= token < model.vocab_size)


def _sampling(request: CompletionRequest) -> SamplingParams:
    seed = secrets.randbits(64) if request.seed is None else request.seed & _SEED_MASK
    ranking = request.candidates > request.n
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        min_p=request.min_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        repetition_penalty=request.repetition_penalty,
        logit_bias=tuple(sorted(request.logit_bias.items())),
        seed=seed,
        logprobs=0 if ranking and request.logprobs is None else request.logprobs,
    )


def _rules(request: CompletionRequest) -> TextRules:
    return TextRules(
        stops=request.stop,
        include_stop=request.include_stop_str_in_output,
        skip_special=request.skip_special_tokens,
        min_tokens=request.min_tokens,
        keep_terminators=request.echo and request.logprobs is not None,
    )


def _check_ids(ids: list[int], model: ServedModel) -> None:
    vocabulary = range(model.vocab_size)
    if min(ids) in vocabulary and max(ids) in vocabulary:
        return
    wrong = next(token for token in ids if token not in vocabulary)
    raise InvalidRequest(
        f"Invalid token in prompt: {wrong}. Minimum value is 0, maximum value is {vocabulary[-1]} (inclusive)."
    )


def _check_bias(request: CompletionRequest, model: ServedModel) -> None:
    highest = model.vocab_size - 1
    for token in request.logit_bias:
        if token > highest:
            raise InvalidRequest(
                f"Invalid key in 'logit_bias': {token}. Maximum value is {highest}.", param="logit_bias"
            )


def _check_context(prompt_tokens: int, max_tokens: int, model: ServedModel) -> None:
    """The words are OpenAI's, their punctuation included (spec/completions §2.3)."""
    asked = prompt_tokens + max_tokens
    if asked > model.context_length:
        raise InvalidRequest(
            f"This model's maximum context length is {model.context_length} tokens, however you requested "
            f"{asked} tokens ({prompt_tokens} in your prompt; {max_tokens} for the completion). "
            "Please reduce your prompt; or completion length."
        )


def _check_parallel(prompts: int, request: CompletionRequest, most: int) -> None:
    """The words are OpenAI's (spec/completions §2.2), their hint too, which holds here as it did there."""
    scoring = request.max_tokens == 0
    most *= SCORED if scoring else 1
    if prompts * request.candidates > most:
        hint = (
            " (HINT: if you want to just evaluate probabilities without generating new text, you can submit more "
            "prompts if you set 'max_tokens' to 0.)"
        )
        raise InvalidRequest(
            f"Too many parallel completions requested. You submitted {prompts} prompts with "
            f"{request.candidates} completions each, but you can currently request up to at most a total of "
            f"{most}.{'' if scoring else hint}"
        )
