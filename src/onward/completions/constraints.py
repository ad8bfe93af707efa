"""The constraint of a request: whichever parameter constrains its text, as it is checked before anything runs."""

from __future__ import annotations

from onward.completions.rejections import InvalidConstraint, ParametersExclude
from onward.completions.request import ANY_OBJECT, CompletionRequest
from onward.constraints.grammar import (
    DEFAULT_WHITESPACE,
    bounded,
    choice_grammar,
    regex_grammar,
)
from onward.constraints.process.messages import Check
from onward.constraints.references import References

MAX_GRAMMARS_BYTES = 8_000_000
"""Of a request: every prompt's job has the grammar."""

_EXCLUDED = ("ignore_eos", "ban_eos_token", "min_tokens", "allowed_token_ids", "banned_tokens", "bad_words")
"""Parameters that could leave no token that the grammar allows, or continue the text after its end."""


def check_combination(request: CompletionRequest) -> None:
    """Raise ParametersExclude for parameters that contradict a constraint."""
    name = request.constraint
    if name is None:
        return
    for other in request.constraints[1:2]:
        raise ParametersExclude((name, other), other)
    for other in _EXCLUDED:
        if getattr(request, other):
            raise ParametersExclude((other, name), other)


def identity(request: CompletionRequest, model: str) -> list[str]:
    """Return texts that are the same for requests with the same constraint."""
    name = request.constraint or ""
    whitespace = "" if request.disable_any_whitespace else request.whitespace_pattern or DEFAULT_WHITESPACE
    value = getattr(request, name)
    return [model, name, whitespace, *(value if isinstance(value, tuple) else [str(value)])]


def constraint_check(request: CompletionRequest, references: References) -> Check:
    """Return what is to be checked of a request with a constraint. `references` knows the tokens of the model that it
    may name. Raises GrammarError."""
    match request.constraint:
        case "regex":
            return Check(regex_grammar(request.regex or ""))
        case "choice":
            return Check(choice_grammar(request.choice))
        case "grammar":
            grammar = bounded(request.grammar or "")
            return Check(grammar, references=references.table(grammar))
        case "json_object":
            schema = ANY_OBJECT
        case name:
            schema = getattr(request, name or "")
    whitespace = None if request.disable_any_whitespace else request.whitespace_pattern or DEFAULT_WHITESPACE
    return Check("", bounded(schema), whitespace)


def check_total(request: CompletionRequest, grammar: str) -> None:
    """Raise InvalidConstraint where a grammar is too large for the request's number of prompts."""
    if len(grammar.encode()) * len(request.prompts) > MAX_GRAMMARS_BYTES:
        reason = f"it is too large for {len(request.prompts)} prompts; send fewer of them per request"
        raise InvalidConstraint(request.constraint or "", reason)
