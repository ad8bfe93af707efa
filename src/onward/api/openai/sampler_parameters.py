"""Extensions: samplers of other servers, in addition to top_p, top_k and min_p (`sampling.filters`)."""

from __future__ import annotations

from onward.api.parameter import Parameter
from onward.sampling.filters import FILTERS

LOGIT_EDITS = ("penalties", "dry")
"""Samplers that can only be first: they change logits, which the others read."""
SAMPLERS = (*LOGIT_EDITS, *FILTERS)
SAMPLER_NAMES = (*LOGIT_EDITS, *(name for each in FILTERS.values() for name in (each.name, each.alias) if name))
"""What `samplers` may list: SAMPLERS, and other names of some."""


def _sampler(name: str, default: float, minimum: float, maximum: float, example: float, help: str) -> Parameter:
    return Parameter(
        name=name,
        kind="number",
        default=default,
        minimum=minimum,
        maximum=maximum,
        origin="extension",
        group="sampling",
        example=example,
        help=help,
    )


SAMPLER_PARAMETERS = (
    _sampler(
        "top_n_sigma", -1, -1, 100, 1.5,
        "Sample only from tokens whose logit is within this many standard deviations of the highest. 0 and -1 mean no "
        "limit.",
    ),
    _sampler(
        "typical_p", 1, 0, 1, 0.95,
        "Locally typical sampling: only from the tokens whose surprise is closest to the average, with this mass "
        "together. 1 means no limit.",
    ),
    _sampler(
        "tfs", 1, 0, 1, 0.95,
        "Tail-free sampling: leave out the tail of the distribution, where the sorted probabilities hardly bend. 1 "
        "means no limit.",
    ),
    _sampler(
        "top_a", 0, 0, 1, 0.2,
        "Sample only from tokens that are at least as likely as this times the square of the highest probability. 0 "
        "means no limit.",
    ),
    _sampler(
        "epsilon_cutoff", 0, 0, 1000, 3,
        "Sample only from tokens that are at least this likely, in units of 0.0001. 0 means no limit.",
    ),
    _sampler(
        "eta_cutoff", 0, 0, 10000, 3,
        "As `epsilon_cutoff`, in the same units, but lower where the distribution is flat. 0 means no limit.",
    ),
    _sampler(
        "xtc_probability", 0, 0, 1, 0.5,
        "With this probability at each token, leave out all but the least likely of the tokens that are at least as "
        "likely as `xtc_threshold`. 0 means never.",
    ),
    _sampler(
        "xtc_threshold", 0.1, 0, 1, 0.2,
        "The probability from which `xtc_probability` leaves tokens out; above 0.5 it has no effect.",
    ),
    _sampler(
        "dynatemp_range", 0, 0, 100, 0.5,
        "Dynamic temperature: up to this much below `temperature` where the model is sure of the next token, up to "
        "this much above it where it is not. 0 means off.",
    ),
    _sampler(
        "dynatemp_exponent", 1, 0.01, 100, 0.5,
        "How `dynatemp_range` grows with the entropy, which is taken as a share of the largest possible one.",
    ),
    _sampler(
        "dry_multiplier", 0, 0, 1000, 0.8,
        "DRY: lower the logits of tokens that would go on repeating a sequence of the prompt or the completion, by "
        "this times `dry_base` to the power of the sequence's length above `dry_allowed_length`. 0 means off.",
    ),
    _sampler("dry_base", 1.75, 1, 1000, 2, "How the penalty of DRY grows with each repeated token."),
    Parameter(
        name="dry_allowed_length", kind="integer", default=2, minimum=1, maximum=64, origin="extension",
        group="sampling", example=3, help="From this many repeated tokens on, DRY lowers the logit of the next one.",
    ),
    Parameter(
        name="dry_penalty_last_n", kind="integer", default=-1, minimum=-1, origin="extension", group="sampling",
        example=1024, help="How many of the last tokens DRY looks at, those of the prompt included. -1: all.",
    ),
    Parameter(
        name="dry_sequence_breakers", kind="strings", text="json", max_items=64, origin="extension", group="sampling",
        example=["\n", "\""],
        help="A repeated sequence of DRY does not go beyond a token that contains one of these. By default a line "
        "break, a colon, a double quote and an asterisk.",
    ),
    Parameter(
        name="mirostat", kind="integer", default=0, minimum=0, maximum=2, origin="extension", group="sampling",
        example=2,
        help="Mirostat 1 or 2: leave out more or fewer unlikely tokens, so that the surprise of the sampled ones stays "
        "near `mirostat_tau`. As in llama.cpp, no other sampler leaves tokens out then. Beside it act `temperature`, "
        "biases and bans, and, other than there, penalties and `dry_multiplier`. 0 means off.",
    ),
    _sampler("mirostat_tau", 5, 0, 100, 3, "The surprise, in bits, that `mirostat` aims at."),
    _sampler("mirostat_eta", 0.1, 0, 1, 0.2, "How much of each token's deviation from it `mirostat` corrects."),
    Parameter(
        name="repeat_last_n", kind="integer", default=-1, minimum=-1, origin="extension", group="sampling", example=64,
        help="`presence_penalty`, `frequency_penalty` and `repetition_penalty` count this many of the last generated "
        "tokens. -1: all; 0: none.",
    ),
    Parameter(
        name="penalize_nl", kind="boolean", default=True, origin="extension", group="sampling", example=False,
        help="`false`: `presence_penalty`, `frequency_penalty` and `repetition_penalty` leave the token of a line "
        "break as it is, as in older versions of llama.cpp.",
    ),
    Parameter(
        name="samplers", kind="strings", max_items=32, only=SAMPLER_NAMES, origin="extension", group="sampling",
        example=["top_k", "top_p", "temperature"],
        help="The samplers that act, in this order; those that are not listed do not. `penalties` and `dry` change "
        "logits and can only be first. By default all act, in the order of the allowed values.",
    ),
    Parameter(
        name="temperature_last", kind="boolean", default=False, origin="extension", group="sampling", example=True,
        help="Let `temperature` act behind all other samplers: those see probabilities at temperature 1. Has no effect "
        "with `samplers`.",
    ),
)  # fmt: skip
