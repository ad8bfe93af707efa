"""Extensions about token ids: which tokens may be generated, which end the completion, and their ids in the answer."""

from __future__ import annotations

from onward.api.parameter import Parameter

TOKEN_PARAMETERS = (
    Parameter(
        name="stop_token_ids",
        kind="token_ids",
        max_items=256,
        origin="extension",
        group="length",
        example=[198],
        help="Tokens that end the completion, as the model's end token does, also with `ignore_eos`. They are not part "
        "of the text.",
    ),
    Parameter(
        name="allowed_token_ids",
        kind="token_ids",
        text="commas",
        max_items=4096,
        origin="extension",
        group="sampling",
        example=[9891, 2201],
        help="Generate only these tokens; an empty array means all. The model's end token is allowed only if it is "
        "among them.",
    ),
    Parameter(
        name="banned_tokens",
        kind="token_ids",
        text="commas",
        max_items=4096,
        origin="extension",
        group="sampling",
        example=[128, 330],
        help="Never generate these tokens.",
    ),
    Parameter(
        name="bad_words",
        kind="strings",
        max_items=128,
        origin="extension",
        group="sampling",
        example=["however"],
        help="Words that are not generated, each with and without a space before it: the last token of its usual "
        "tokenization is banned where the tokens before it have been generated. Other tokens may still spell it.",
    ),
    Parameter(
        name="ban_eos_token",
        kind="boolean",
        default=False,
        origin="extension",
        group="length",
        example=True,
        help="Never generate the model's end token. `ignore_eos` goes on behind it instead.",
    ),
    Parameter(
        name="truncate_prompt_tokens",
        kind="integer",
        minimum=-1,
        origin="extension",
        group="prompt",
        example=1024,
        help="Keep only this many of a prompt's last tokens; a start token that the tokenizer adds is kept, and "
        "counts. -1: as many as the context has room for beside `max_tokens`.",
    ),
    Parameter(
        name="prompt_logprobs",
        kind="integer",
        minimum=0,
        maximum=20,
        origin="extension",
        group="output",
        example=1,
        help="Return the log probability and the rank of each token of the model's whole prompt, and of this many of "
        "the most likely ones in its place, as `prompt_logprobs` of each choice, by token id; null for the first "
        "token. Not with `stream`; `echo` with `logprobs` streams them by their text.",
    ),
    Parameter(
        name="return_token_ids",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="Return the ids of the generated tokens as `token_ids` of each choice, with the end token or those of a "
        "stop string, and those of the model's whole prompt as `prompt_token_ids`; in a stream in the first chunk of "
        "a choice.",
    ),
)
