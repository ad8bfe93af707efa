"""Why a request cannot be completed, as facts: each API says them in its own words."""

from __future__ import annotations

from dataclasses import dataclass

from onward.errors import RequestRejected


@dataclass(eq=False)
class UnknownModel(RequestRejected):
    """No model of this name is served."""

    name: str


@dataclass(eq=False)
class ContextExceeded(RequestRejected):
    """Prompt and completion do not fit into the model's context of `limit` tokens.

    `is_minimum`: the prompt has at least `prompt_tokens` tokens; it was too long to be tokenized.
    """

    prompt_tokens: int
    max_tokens: int
    limit: int
    is_minimum: bool = False


@dataclass(eq=False)
class TooManyChoices(RequestRejected):
    """`num_prompts` with `num_candidates` each are more than `limit`. `is_scoring`: they generate nothing."""

    num_prompts: int
    num_candidates: int
    limit: int
    is_scoring: bool


@dataclass(eq=False)
class TooManyPromptTokens(RequestRejected):
    """The prompts have at least `num_tokens` tokens together."""

    num_tokens: int
    limit: int


@dataclass(eq=False)
class TooManyLogprobs(RequestRejected):
    """The answer could have `num_logprobs` log probabilities: most of them for `parameter`, `num_top` and the token's
    own for each of `num_tokens`."""

    parameter: str
    num_logprobs: int
    num_tokens: int
    num_top: int
    limit: int


@dataclass(eq=False)
class TokenOutOfRange(RequestRejected):
    """A token id of `parameter` is not in the vocabulary, whose last id is `last`. `index`: its place in a list."""

    parameter: str
    token: int
    last: int
    index: int | None = None


@dataclass(eq=False)
class NotAvailable(RequestRejected):
    """The engine behind this model does not have `what` (words), for which `parameter` asks."""

    parameter: str
    what: str


@dataclass(eq=False)
class NoLineBreakToken(RequestRejected):
    """`penalize_nl` is false, and the vocabulary has no token for a line break alone."""


@dataclass(eq=False)
class NoInfillTokens(RequestRejected):
    """There is a suffix, and the vocabulary has no fill-in-the-middle tokens."""


@dataclass(eq=False)
class NoStartToken(RequestRejected):
    """The prompt is empty, and the model has no start-of-text token."""


@dataclass(eq=False)
class SuffixExcludesScores(RequestRejected):
    """A prompt with a suffix cannot be echoed with its log probabilities."""


@dataclass(eq=False)
class ParametersExclude(RequestRejected):
    """Two parameters cannot act together. `parameter` is the one of both to remove."""

    both: tuple[str, str]
    parameter: str


@dataclass(eq=False)
class InvalidBadWord(RequestRejected):
    """A word to ban is empty, all spaces, or longer than `max_characters`."""

    max_characters: int


@dataclass(eq=False)
class BadWordTooLong(RequestRejected):
    """A word to ban has too many tokens."""

    num_tokens: int
    limit: int


@dataclass(eq=False)
class NoTokenLeft(RequestRejected):
    """The tokens that the request allows and bans could leave none to generate. `parameter` is the main reason."""

    parameter: str


@dataclass(eq=False)
class InvalidConstraint(RequestRejected):
    """The constraint of `parameter` cannot be used, which was found before or while the text was generated. `reason`
    has no full stop."""

    parameter: str
    reason: str
