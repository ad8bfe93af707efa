"""The grammar of a request: built from whichever parameter constrains its text, and checked before anything runs."""

from __future__ import annotations

import json

from onward.completions.rejections import InvalidConstraint, ParametersExclude
from onward.completions.request import ANY_OBJECT, CompletionRequest
from onward.constraints.grammar import (
    DEFAULT_WHITESPACE,
    GrammarError,
    check,
    choice_grammar,
    json_schema_grammar,
    regex_grammar,
    text_grammar,
)

MAX_GRAMMARS_BYTES = 8_000_000
"""Of a request: every prompt's job has the grammar."""

_EXCLUDED = ("ignore_eos", "ban_eos_token", "min_tokens", "allowed_token_ids", "banned_tokens", "bad_words")
"""Parameters that could leave no token that the grammar allows, or that would go on behind its end."""


def grammar_of(request: CompletionRequest) -> str:
    """Return what the text of the request's choices must match, for `Job.grammar`; "" if it may be anything.

    Raises InvalidConstraint for a grammar that cannot be compiled, ParametersExclude for parameters that contradict
    grammars.
    """
    name = request.constraint
    if name is None:
        return ""
    for other in request.constraints[1:2]:
        raise ParametersExclude((name, other), other)
    for other in _EXCLUDED:
        if getattr(request, other):
            raise ParametersExclude((other, name), other)
    try:
        grammar = _build(name, request)
    except GrammarError as error:
        raise InvalidConstraint(name, str(error)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidConstraint(name, f"the schema is not JSON: {error}") from None
    num_bytes = len(grammar.encode()) * len(request.prompts)
    if num_bytes > MAX_GRAMMARS_BYTES:
        raise InvalidConstraint(
            name, f"it is too large for {len(request.prompts)} prompts; send fewer of them per request"
        )
    problem = check(grammar)
    if problem:
        raise InvalidConstraint(name, problem)
    return grammar


def _build(name: str, request: CompletionRequest) -> str:
    whitespace = None if request.disable_any_whitespace else request.whitespace_pattern or DEFAULT_WHITESPACE
    match name:
        case "regex":
            return regex_grammar(request.regex or "")
        case "choice":
            return choice_grammar(request.choice)
        case "grammar":
            return text_grammar(request.grammar or "")
        case "json_object":
            schema = ANY_OBJECT
        case _:
            schema = getattr(request, name)
    return json_schema_grammar(json.loads(schema), whitespace=whitespace)
