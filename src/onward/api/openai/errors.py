"""Errors in OpenAI's words and shapes: the facts of `completions.rejections`, HTTP bodies and stream events (behaviour
§11, W2, W6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from onward.api import refusals
from onward.completions import rejections as facts
from onward.errors import (
    ApiError,
    AuthenticationFailed,
    BodyTimeout,
    Forbidden,
    HeadTooLarge,
    InvalidRequest,
    MethodNotAllowed,
    ModelNotFound,
    NotFound,
    RateLimited,
    RequestRejected,
    RequestTooLarge,
    ServerError,
    TextNotEncodable,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)


@contextmanager
def openai_words() -> Iterator[None]:
    """Convert rejections raised in the block to the ApiError that OpenAI's API has for them."""
    try:
        yield
    except RequestRejected as fact:
        raise openai_error(fact) from None


def openai_error(fact: RequestRejected) -> ApiError:
    """Return the error of a request that cannot be completed, with OpenAI's message where there is one."""
    match fact:
        case facts.UnknownModel(name):
            return ModelNotFound(f"The model `{name}` does not exist or you do not have access to it.")
        case facts.ContextExceeded():
            return _context_exceeded(fact)
        case facts.TooManyChoices():
            return _too_many_choices(fact)
        case facts.TooManyPromptTokens(num_tokens, limit):
            return InvalidRequest(
                f"The prompts of this request have at least {num_tokens} tokens together, but this server accepts at "
                f"most {limit} per request. Send the prompts in several requests.",
                param="prompt",
            )
        case facts.TooManyLogprobs():
            return _too_many_logprobs(fact)
        case facts.TokenOutOfRange():
            return _token_out_of_range(fact)
        case facts.InvalidConstraint(parameter, reason):
            return InvalidRequest(f"Invalid '{parameter}': {reason}.".replace("..", "."), param=parameter)
        case TextNotEncodable():
            return InvalidRequest(f"The tokenizer of this model cannot encode this text: {fact}")
    return _excluded(fact)


def _excluded(fact: RequestRejected) -> ApiError:
    """Return the error of parameters that the model, its engine or other parameters exclude."""
    match fact:
        case facts.NotAvailable(parameter, what):
            return refusals.unavailable(parameter, f"The engine behind this model does not have {what}.")
        case facts.NoLineBreakToken():
            return refusals.unavailable("penalize_nl", "This model has no token for a line break alone.")
        case facts.NoInfillTokens():
            return InvalidRequest(
                "This model does not support 'suffix': its vocabulary has no fill-in-the-middle tokens.", param="suffix"
            )
        case facts.NoStartToken():
            return InvalidRequest("This model has no start-of-text token: its prompt cannot be empty.", param="prompt")
        case facts.SuffixExcludesScores():
            return InvalidRequest("Setting 'echo' and 'logprobs' at the same time is not supported with 'suffix'.")
        case facts.ParametersExclude((first, second), parameter):
            return InvalidRequest(
                f"Setting '{first}' and '{second}' at the same time is not supported.", param=parameter
            )
        case facts.InvalidBadWord(max_characters):
            return InvalidRequest(
                f"Invalid 'bad_words': each needs 1 to {max_characters} characters that are not all spaces.",
                param="bad_words",
            )
        case facts.BadWordTooLong(num_tokens, limit):
            return InvalidRequest(
                f"Invalid 'bad_words': a word has {num_tokens} tokens; at most {limit} are supported.",
                param="bad_words",
            )
        case facts.NoTokenLeft(parameter):
            return InvalidRequest(
                "No token would be left to generate: 'allowed_token_ids' without 'banned_tokens', the last tokens of "
                "'bad_words', and, with 'min_tokens' or 'ban_eos_token', the end tokens, must not be empty.",
                param=parameter,
            )
    return ServerError()  # a rejection without a message is a bug; a test covers all of them


def _context_exceeded(fact: facts.ContextExceeded) -> ApiError:
    """OpenAI's message and punctuation (behaviour §2.3)."""
    at_least = "at least " if fact.is_minimum else ""
    return InvalidRequest(
        f"This model's maximum context length is {fact.limit} tokens, however you requested "
        f"{at_least}{fact.prompt_tokens + fact.max_tokens} tokens ({at_least}{fact.prompt_tokens} in your prompt; "
        f"{fact.max_tokens} for the completion). Please reduce your prompt; or completion length."
    )


def _too_many_choices(fact: facts.TooManyChoices) -> ApiError:
    """OpenAI's message (behaviour §2.2). Its hint applies here, too."""
    hint = (
        " (HINT: if you want to just evaluate probabilities without generating new text, you can submit more "
        "prompts if you set 'max_tokens' to 0.)"
    )
    return InvalidRequest(
        f"Too many parallel completions requested. You submitted {fact.num_prompts} prompts with "
        f"{fact.num_candidates} completions each, but you can currently request up to at most a total of "
        f"{fact.limit}.{'' if fact.is_scoring else hint}"
    )


def _too_many_logprobs(fact: facts.TooManyLogprobs) -> ApiError:
    name = fact.parameter
    lower = f"'{name}', 'max_tokens' or 'n'" if name == "logprobs" else f"'{name}' or 'n'"
    return InvalidRequest(
        f"The answer to this request could contain {fact.num_logprobs} log probabilities ({fact.num_tokens} tokens, "
        f"each with its own and {fact.num_top} alternatives), but this server returns at most {fact.limit} per "
        f"request. Lower {lower}, or send fewer prompts.",
        param=name,
    )


def _token_out_of_range(fact: facts.TokenOutOfRange) -> ApiError:
    match fact.parameter:
        case "prompt":
            return refusals.token_out_of_range(fact.token, fact.last)
        case "logit_bias":
            return refusals.logit_bias_key_too_large(str(fact.token), fact.last)
        case "tokens":
            return InvalidRequest(
                f"Invalid token: {fact.token}. Minimum value is 0, maximum value is {fact.last} (inclusive).",
                param="tokens",
            )
    return refusals.above_maximum(f"{fact.parameter}[{fact.index}]", "integer", fact.last, fact.token)


MAX_FIELD_CHARS = 2000
"""Maximum length of an error's `message` and `param`: both can contain text from the request."""
_GATEWAY = (
    AuthenticationFailed,
    BodyTimeout,
    Forbidden,
    NotFound,
    RateLimited,
    MethodNotAllowed,
    RequestTooLarge,
    HeadTooLarge,
    UnreadableBody,
    UnsupportedContentType,
    UnsupportedEncoding,
)


def error_envelope(error: ApiError) -> tuple[bytes, str]:
    """Return body and content type of an error response. All four keys are always present.

    The format follows OpenAI's two layers. Errors of the gateway (key, URL, method, content type, invalid JSON) have
    an indent of four, a final newline, escaped `<`, `>` and `&`, and a charset; other errors have an indent of two.
    """
    body = msgspec.json.encode({"error": _fields(error)})
    if isinstance(error, _GATEWAY):
        pretty = msgspec.json.format(body, indent=4) + b"\n"
        for raw, escaped in ((b"<", rb"\u003c"), (b">", rb"\u003e"), (b"&", rb"\u0026")):
            pretty = pretty.replace(raw, escaped)
        return pretty, "application/json; charset=utf-8"
    return msgspec.json.format(body, indent=2), "application/json"


def error_response(error: ApiError) -> tuple[int, bytes, str]:
    """Return status, body and content type of an error response in OpenAI's shape."""
    return error.status, *error_envelope(error)


def error_event(error: ApiError) -> bytes:
    """Return the last event of a stream that fails after it has begun."""
    return b"data: " + msgspec.json.encode({"error": _fields(error)}) + b"\n\n"


def _fields(error: ApiError) -> dict[str, str | None]:
    message, param = _truncate(error.message), error.param and _truncate(error.param)
    if error.code == "unknown_url":  # recorded with its keys in this order
        return {"type": error.type, "code": error.code, "message": message, "param": param}
    return {"message": message, "type": error.type, "param": param, "code": error.code}


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_FIELD_CHARS else text[: MAX_FIELD_CHARS - 1] + "…"
