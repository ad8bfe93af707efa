"""`CompletionRequest`: a checked request in which every field has a value."""

from __future__ import annotations

import secrets
from operator import attrgetter

import msgspec

CONSTRAINTS = ("response_format", "json_schema", "json_object", "regex", "choice", "grammar")
"""Parameters that constrain the text, of which a request may have one."""
_constraints = attrgetter(*CONSTRAINTS)
ANY_OBJECT = '{"type":"object"}'
"""The JSON Schema of any object."""

MAX_RANDOM_SEED = (1 << 53) - 1
"""JavaScript reads no larger integers."""

Prompt = str | list[str] | list[int] | list[list[int]]
"""The four prompt forms of the API (behaviour §2.2)."""


class InfillContext(msgspec.Struct, frozen=True):
    """What surrounds an infill in addition to prompt and suffix, for models with fill-in-the-middle tokens.

    `files` are (name, text) of other files, the least important first: those are left out where the context has no
    room. `beginning` is text that the infill begins with, already known: it comes last in the model's prompt, so that a
    prompt that grows as someone types shares all that is before it with the last one.
    """

    files: tuple[tuple[str, str], ...] = ()
    beginning: str = ""


class CompletionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that has passed the checks of its API; nulls are replaced by defaults.

    Defaults are those of OpenAI's parameters; a test compares them. `prompt` None means the start of a document.
    `logit_bias` maps token ids to -100 … 100. `stop` is () if there are no stop strings.
    """

    model: str | None = None
    prompt: Prompt | None = None
    best_of: int | None = None
    echo: bool = False
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    logprobs: int | None = None
    max_tokens: int = 16
    n: int = 1
    presence_penalty: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    include_obfuscation: bool = False
    continuous_usage_stats: bool = False
    resumable: bool = False
    suffix: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    user: str | None = None
    # Extensions that real clients send.
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    return_tokens_as_token_ids: bool = False
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: str | None = None
    prediction: str | None = None
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    banned_tokens: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    ban_eos_token: bool = False
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool = False
    top_n_sigma: float = -1.0
    typical_p: float = 1.0
    tfs: float = 1.0
    top_a: float = 0.0
    epsilon_cutoff: float = 0.0
    eta_cutoff: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] | None = None
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    repeat_last_n: int = -1
    penalize_nl: bool = True
    samplers: tuple[str, ...] | None = None
    temperature_last: bool = False
    # What the text must match: at most one of the first six is set. Schemas are JSON.
    response_format: str | None = None
    json_schema: str | None = None
    json_object: bool = False
    regex: str | None = None
    choice: tuple[str, ...] = ()
    grammar: str | None = None
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False
    # Set by the APIs of other servers; OpenAI's has no field for them.
    fill_context: bool = False
    """Lower `max_tokens` to what the model's context has room for, instead of rejecting the request."""
    infill: InfillContext | None = None
    """Generate an infill, also where `suffix` is not set."""
    weight: int = 1
    """Set by the server: that of the client among others, by which it has its share."""
    is_background: bool = False
    """Nobody waits for the answer: give way to all requests whose clients do."""
    random_seed: int = msgspec.field(default_factory=lambda: secrets.randbits(MAX_RANDOM_SEED.bit_length()))
    """The seed if `seed` is None: the first prompt's, from which those of the others are derived. The same request with
    the same one has the same answer, however many prompts and choices it has."""

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts, one entry per prompt, in order. A missing prompt is an empty string."""
        match self.prompt:
            case None | []:
                return [""]
            case str():
                return [self.prompt]
            case [int(), *_]:
                return [self.prompt]  # type: ignore[list-item]
            case _:
                return list(self.prompt)  # type: ignore[arg-type]

    @property
    def used_seed(self) -> int:
        """The seed of its sampling: the one that it names, or the one that was drawn."""
        return self.random_seed if self.seed is None else self.seed

    @property
    def constraints(self) -> list[str]:
        """The names of the parameters that constrain the text; more than one are refused."""
        if not any(_constraints(self)):
            return []
        return [name for name in CONSTRAINTS if getattr(self, name)]

    @property
    def constraint(self) -> str | None:
        """The name of the parameter that constrains the text, None if there is none."""
        return next(iter(self.constraints), None)

    @property
    def candidates(self) -> int:
        """The number of choices to generate per prompt: `best_of` if it is set, otherwise `n`."""
        return max(self.n, self.best_of or 0)
