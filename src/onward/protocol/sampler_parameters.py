"""Extensions: samplers that other servers have beside top_p, top_k and min_p (see `sampling.shaping`)."""

from __future__ import annotations

from onward.protocol.parameter import Parameter


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
)  # fmt: skip
