"""Extensions: fields that OpenAI does not have, under the names that most clients send (behaviour §10)."""

from __future__ import annotations

from onward.api.parameter import Parameter, ParameterGroup, ParameterKind
from onward.sampling.filters import FILTERS

LOGIT_EDITS = ("penalties", "dry")
"""Samplers that can only be first: they change logits, which the others read."""
SAMPLERS = (*LOGIT_EDITS, *FILTERS)
SAMPLER_NAMES = (*LOGIT_EDITS, *(name for each in FILTERS.values() for name in (each.name, each.alias) if name))
"""What `samplers` may list: SAMPLERS, and other names of some."""


def _extension(
    name: str, kind: ParameterKind, group: ParameterGroup, example: object, help: str, **changes: object
) -> Parameter:
    return Parameter(name=name, kind=kind, origin="extension", group=group, example=example, help=help, **changes)  # type: ignore[arg-type]


EXTENSION_PARAMETERS = (
    _extension(
        "top_k", "integer", "sampling", 40,
        "Sample only from this many of the most likely tokens. 0 and -1 mean no limit.",
        default=0, minimum=-1,
    ),
    _extension(
        "min_p", "number", "sampling", 0.05,
        "Sample only from tokens that are at least this fraction as likely as the most likely token. 0 means no "
        "limit.",
        default=0, minimum=0, maximum=1,
    ),
    _extension(
        "repetition_penalty", "number", "sampling", 1.1,
        "Scale the logits of tokens that have been generated: values above 1 make repetition less likely, values "
        "below 1 more likely; 1 has no effect.",
        default=1, minimum=0.01, maximum=100,
    ),
    _extension(
        "min_tokens", "integer", "length", 8,
        "Do not end a choice before it has this many tokens. At most `max_tokens`.",
        default=0, minimum=0,
    ),
    _extension(
        "ignore_eos", "boolean", "length", True,
        "Continue after the model's end token, up to `max_tokens`. For benchmarks.",
        default=False,
    ),
    _extension(
        "skip_special_tokens", "boolean", "output", False,
        "Omit special tokens from the text. Their log probabilities are returned anyway.",
        default=True,
    ),
    _extension(
        "include_stop_str_in_output", "boolean", "output", True,
        "Include the stop string that ended the completion at the end of the text.",
        default=False,
    ),
    _extension(
        "return_tokens_as_token_ids", "boolean", "output", True,
        "Name tokens in `logprobs` as `token_id:123` instead of by their text. Only has an effect with "
        "`logprobs`.",
        default=False,
    ),
    _extension(
        "max_completion_tokens", "integer", "length", 64,
        "The newer name of `max_tokens`, which it overrides.",
        minimum=0, alias_of="max_tokens", overrides=True,
    ),
    _extension(
        "add_special_tokens", "boolean", "prompt", False,
        "Let the tokenizer add its start token to a text prompt, if the model has one. Prompts of token ids are "
        "never changed.",
        default=True,
    ),
    _extension(
        "cache_salt", "string", "prompt", "hq9Tbb1pZz0gWm5xJb1t0w",
        "Share cached prefixes of the prompt only with requests that have the same secret, so that nobody else "
        "can find out by the time to the first token, or by `cached_tokens`, what was asked. It changes no token.",
    ),
    _extension(
        "priority", "integer", "other", -1,
        "Among a client's own waiting requests, those with the lowest number start first; equal ones take turns. It "
        "neither moves a request ahead of those of other clients nor interrupts a running one.",
        default=0,
    ),
    _extension(
        "prediction", "prediction", "prompt", {"type": "content", "content": "def add(a, b):\n return a + b\n"},
        "Text that the completion is expected to repeat in large part, such as the old version of a file being "
        'edited: `{"type": "content", "content": "…"}`, as in OpenAI\'s Chat API. Where it is correct, several '
        "tokens are generated per step. It changes no token, only the speed.",
    ),
    _extension(
        "$schema", "link", "other", "https://example.com/schemas/CompletionRequest.json",
        "A link to a JSON Schema of the request, for editors. It has no effect on the completion.",
    ),
    _extension(
        "stop_token_ids", "token_ids", "length", [198],
        "Tokens that end the completion, as the model's end token does, also with `ignore_eos`. They are not part "
        "of the text.",
        max_items=256,
    ),
    _extension(
        "allowed_token_ids", "token_ids", "sampling", [9891, 2201],
        "Generate only these tokens; an empty array means all. The model's end token is allowed only if it is "
        "among them.",
        text="commas", max_items=4096,
    ),
    _extension(
        "banned_tokens", "token_ids", "sampling", [128, 330],
        "Never generate these tokens.",
        text="commas", max_items=4096,
    ),
    _extension(
        "bad_words", "strings", "sampling", ["however"],
        "Words that are not generated, each with and without a space before it: the last token of its usual "
        "tokenization is banned where the tokens before it have been generated. Other tokens may still spell it.",
        max_items=128,
    ),
    _extension(
        "ban_eos_token", "boolean", "length", True,
        "Never generate the model's end token. `ignore_eos` continues after it instead.",
        default=False,
    ),
    _extension(
        "truncate_prompt_tokens", "integer", "prompt", 1024,
        "Keep only this many of a prompt's last tokens; a start token that the tokenizer adds is kept, and "
        "counts. -1: as many as the context has room for in addition to `max_tokens`.",
        minimum=-1,
    ),
    _extension(
        "prompt_logprobs", "integer", "output", 1,
        "Return the log probability and the rank of each token of the model's whole prompt, and of this many of "
        "the most likely ones in its place, as `prompt_logprobs` of each choice, by token id; null for the first "
        "token. Not with `stream`; `echo` with `logprobs` streams them by their text.",
        minimum=0, maximum=20,
    ),
    _extension(
        "return_token_ids", "boolean", "output", True,
        "Return the ids of the generated tokens as `token_ids` of each choice, with the end token or those of a "
        "stop string, and those of the model's whole prompt as `prompt_token_ids`; in a stream in the first chunk of "
        "a choice.",
        default=False,
    ),
    _extension(
        "top_n_sigma", "number", "sampling", 1.5,
        "Sample only from tokens whose logit is within this many standard deviations of the highest. 0 and -1 mean no "
        "limit.",
        default=-1, minimum=-1, maximum=100,
    ),
    _extension(
        "typical_p", "number", "sampling", 0.95,
        "Locally typical sampling: only from the tokens whose surprise is closest to the average and whose "
        "probabilities add up to this. 1 means no limit.",
        default=1, minimum=0, maximum=1,
    ),
    _extension(
        "tfs", "number", "sampling", 0.95,
        "Tail-free sampling: leave out the tail of the distribution, where the sorted probabilities hardly bend. 1 "
        "means no limit.",
        default=1, minimum=0, maximum=1,
    ),
    _extension(
        "top_a", "number", "sampling", 0.2,
        "Sample only from tokens that are at least as likely as this times the square of the highest probability. 0 "
        "means no limit.",
        default=0, minimum=0, maximum=1,
    ),
    _extension(
        "epsilon_cutoff", "number", "sampling", 3,
        "Sample only from tokens that are at least this likely, in units of 0.0001. 0 means no limit.",
        default=0, minimum=0, maximum=1000,
    ),
    _extension(
        "eta_cutoff", "number", "sampling", 3,
        "As `epsilon_cutoff`, in the same units, but lower where the distribution is flat. 0 means no limit.",
        default=0, minimum=0, maximum=10000,
    ),
    _extension(
        "xtc_probability", "number", "sampling", 0.5,
        "With this probability at each token, leave out all but the least likely of the tokens that are at least as "
        "likely as `xtc_threshold`. 0 means never.",
        default=0, minimum=0, maximum=1,
    ),
    _extension(
        "xtc_threshold", "number", "sampling", 0.2,
        "The probability from which `xtc_probability` leaves tokens out; above 0.5 it has no effect.",
        default=0.1, minimum=0, maximum=1,
    ),
    _extension(
        "dynatemp_range", "number", "sampling", 0.5,
        "Dynamic temperature: up to this much below `temperature` where the model is sure of the next token, up to "
        "this much above it where it is not. 0 means off.",
        default=0, minimum=0, maximum=100,
    ),
    _extension(
        "dynatemp_exponent", "number", "sampling", 0.5,
        "Exponent of dynamic temperature: applied to the entropy, as a fraction of the largest possible one, to "
        "place the temperature within `dynatemp_range`.",
        default=1, minimum=0.01, maximum=100,
    ),
    _extension(
        "dry_multiplier", "number", "sampling", 0.8,
        "DRY: lower the logits of tokens that would continue to repeat a sequence of the prompt or the completion, by "
        "this times `dry_base` to the power of the sequence's length above `dry_allowed_length`. 0 means off.",
        default=0, minimum=0, maximum=1000,
    ),
    _extension(
        "dry_base", "number", "sampling", 2,
        "How the penalty of DRY grows with each repeated token.",
        default=1.75, minimum=1, maximum=1000,
    ),
    _extension(
        "dry_allowed_length", "integer", "sampling", 3,
        "From this many repeated tokens on, DRY lowers the logit of the next one.",
        default=2, minimum=1, maximum=64,
    ),
    _extension(
        "dry_penalty_last_n", "integer", "sampling", 1024,
        "How many of the last tokens DRY looks at, those of the prompt included. -1: all.",
        default=-1, minimum=-1,
    ),
    _extension(
        "dry_sequence_breakers", "strings", "sampling", ["\n", "\""],
        "A repeated sequence of DRY does not go beyond a token that contains one of these. By default a line "
        "break, a colon, a double quote and an asterisk.",
        text="json", max_items=64,
    ),
    _extension(
        "mirostat", "integer", "sampling", 2,
        "Mirostat 1 or 2: leave out more or fewer unlikely tokens, so that the surprise of the sampled ones stays "
        "near `mirostat_tau`. As in llama.cpp, no other sampler leaves tokens out then. `temperature`, "
        "biases and bans act as well and, unlike there, penalties and `dry_multiplier`. 0 means off.",
        default=0, minimum=0, maximum=2,
    ),
    _extension(
        "mirostat_tau", "number", "sampling", 3,
        "The surprise, in bits, that `mirostat` aims at.",
        default=5, minimum=0, maximum=100,
    ),
    _extension(
        "mirostat_eta", "number", "sampling", 0.2,
        "How much of each token's deviation from it `mirostat` corrects.",
        default=0.1, minimum=0, maximum=1,
    ),
    _extension(
        "repeat_last_n", "integer", "sampling", 64,
        "`presence_penalty`, `frequency_penalty` and `repetition_penalty` count this many of the last generated "
        "tokens. -1: all; 0: none.",
        default=-1, minimum=-1,
    ),
    _extension(
        "penalize_nl", "boolean", "sampling", False,
        "`false`: `presence_penalty`, `frequency_penalty` and `repetition_penalty` leave the token of a line "
        "break as it is, as in older versions of llama.cpp.",
        default=True,
    ),
    _extension(
        "samplers", "strings", "sampling", ["top_k", "top_p", "temperature"],
        "The samplers that act, in this order; those that are not listed do not. `penalties` and `dry` change "
        "logits and can only be first. By default all act, in the order of the allowed values.",
        max_items=32, only=SAMPLER_NAMES,
    ),
    _extension(
        "temperature_last", "boolean", "sampling", True,
        "Apply `temperature` after all other samplers: those see probabilities at temperature 1. Has no effect "
        "with `samplers`.",
        default=False,
    ),
    _extension(
        "response_format", "response_format", "constraint", {"type": "json_object"},
        'Generate JSON: `{"type": "json_object"}`, or `{"type": "json_schema", "json_schema": {"schema": {…}}}`, as in '
        'OpenAI\'s Chat API. `{"type": "text"}` means any text.',
    ),
    _extension(
        "json_schema", "json_schema", "constraint", {"type": "object", "properties": {"name": {"type": "string"}}},
        "Generate JSON that is valid by this JSON Schema, an object or its text.",
    ),
    _extension(
        "json_object", "boolean", "constraint", True,
        "Generate a JSON object.",
        default=False,
    ),
    _extension(
        "regex", "string", "constraint", r"\d{4}-\d{2}-\d{2}",
        "Generate text that matches this regular expression as a whole (Rust's syntax, without look-around).",
    ),
    _extension(
        "choice", "strings", "constraint", ["yes", "no"],
        "Generate one of these texts.",
        max_items=1024,
    ),
    _extension(
        "grammar", "string", "constraint", 'root ::= "yes" | "no"',
        "Generate text that this grammar describes: in GBNF, llama.cpp's notation, or in llguidance's Lark.",
    ),
    _extension(
        "whitespace_pattern", "string", "constraint", "[ ]?",
        "A regular expression of what may stand between the tokens of generated JSON. By default nothing or a "
        "space.",
    ),
    _extension(
        "disable_any_whitespace", "boolean", "constraint", True,
        "Generate JSON without white space between its tokens.",
        default=False,
    ),
)  # fmt: skip
