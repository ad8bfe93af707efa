"""What a request allows, bans and ends at, as the token ids that the engine needs."""

from __future__ import annotations

from dataclasses import dataclass

from onward.completions.rejections import BadWordTooLong, InvalidBadWord, NoLineBreakToken, NoTokenLeft, TokenOutOfRange
from onward.completions.request import CompletionRequest
from onward.engine.model import Tokenizer

MAX_BAD_WORD_TOKENS = 32
MAX_BAD_WORD_CHARACTERS = 1024


@dataclass(frozen=True, slots=True)
class TokenRules:
    """`allowed` () means all tokens. `sequences` have two tokens at least (see sampling.params). Penalties do not count
    those of `unpenalized`."""

    allowed: tuple[int, ...] = ()
    banned: tuple[int, ...] = ()
    sequences: tuple[tuple[int, ...], ...] = ()
    stops: frozenset[int] = frozenset()
    unpenalized: tuple[int, ...] = ()


NO_RULES = TokenRules()


def token_rules(request: CompletionRequest, tokenizer: Tokenizer, ends: frozenset[int], vocab_size: int) -> TokenRules:
    """Return the rules of a request. `ends` are the tokens that end its completions without `stop_token_ids`.

    Tokens that the model's files suppress are banned, too. Raises RequestRejected for a token outside of the
    vocabulary, a word that has too many tokens, and rules that could leave no token to generate; and `penalize_nl`
    where the vocabulary has no line break.
    """
    if not (
        request.stop_token_ids
        or request.allowed_token_ids
        or request.banned_tokens
        or request.bad_words
        or request.ban_eos_token
        or not request.penalize_nl
        or tokenizer.suppressed_tokens
    ):
        return NO_RULES
    for name in ("stop_token_ids", "allowed_token_ids", "banned_tokens"):
        _check_vocabulary(name, getattr(request, name), vocab_size)
    words = [ids for word in request.bad_words for ids in _word_tokens(word, tokenizer, vocab_size)]
    banned = {*request.banned_tokens, *(ids[0] for ids in words if len(ids) == 1)}
    banned |= {token for token in tokenizer.suppressed_tokens if 0 <= token < vocab_size}
    if request.ban_eos_token:
        banned |= {token for token in ends if token < vocab_size}
    rules = TokenRules(
        allowed=tuple(sorted(set(request.allowed_token_ids))),
        banned=tuple(sorted(banned)),
        sequences=tuple(dict.fromkeys(ids for ids in words if len(ids) > 1)),
        stops=frozenset(request.stop_token_ids),
        unpenalized=() if request.penalize_nl else (_newline(tokenizer),),
    )
    _check_one_is_left(rules, ends | rules.stops if request.min_tokens else frozenset(), vocab_size)
    return rules


def _newline(tokenizer: Tokenizer) -> int:
    """Return the token of a line break alone, as it follows a letter: at the start of a text, some add a space."""
    token = tokenizer.encode("a\n", add_special_tokens=False)[-1]
    if tokenizer.token_bytes(token) != b"\n":
        raise NoLineBreakToken
    return token


def _check_vocabulary(name: str, tokens: tuple[int, ...], vocab_size: int) -> None:
    if tokens and max(tokens) >= vocab_size:
        index = tokens.index(max(tokens))
        raise TokenOutOfRange(name, tokens[index], vocab_size - 1, index)


def _word_tokens(word: str, tokenizer: Tokenizer, vocab_size: int) -> list[tuple[int, ...]]:
    """Return the usual tokens of a word with and without a space before it, at the start of a text and inside of it.

    vLLM bans the form with a space only where it has as many tokens; but " dragon" is often one, "dragon" two.
    """
    if not word.strip() or len(word) > MAX_BAD_WORD_CHARACTERS:
        raise InvalidBadWord(MAX_BAD_WORD_CHARACTERS)
    bare = word.lstrip(" ")
    forms = dict.fromkeys(ids for text in (bare, " " + bare) for ids in _forms(text, tokenizer))
    for ids in forms:
        if len(ids) > MAX_BAD_WORD_TOKENS:
            raise BadWordTooLong(len(ids), MAX_BAD_WORD_TOKENS)
    return [ids for ids in forms if ids and max(ids) < vocab_size]


def _forms(text: str, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    """Return the tokens of a text at the start of another, and inside of it, where vocabularies of SentencePiece add no
    space."""
    found = [tuple(tokenizer.encode(text, add_special_tokens=False))]
    before = tokenizer.encode("\n", add_special_tokens=False)
    inside = tokenizer.encode("\n" + text, add_special_tokens=False)
    if inside[: len(before)] == before:
        found.append(tuple(inside[len(before) :]))
    return found


def _check_one_is_left(rules: TokenRules, never: frozenset[int], vocab_size: int) -> None:
    """Raise NoTokenLeft if at some position every token could be banned. `never` are banned at some positions."""
    gone = never.union(rules.banned, (ids[-1] for ids in rules.sequences))
    candidates = rules.allowed or range(vocab_size)
    if all(token in gone for token in candidates):
        raise NoTokenLeft("allowed_token_ids" if rules.allowed else "banned_tokens")
