"""Extensions of this API: fields that OpenAI does not have, under the names that most clients send (behaviour
§10)."""

from __future__ import annotations

from onward.api.parameter import Parameter

OWN_EXTENSIONS = (
    Parameter(
        name="top_k",
        kind="integer",
        default=0,
        minimum=-1,
        origin="extension",
        group="sampling",
        example=40,
        help="Sample only from this many of the most likely tokens. 0 and -1 mean no limit.",
    ),
    Parameter(
        name="min_p",
        kind="number",
        default=0,
        minimum=0,
        maximum=1,
        origin="extension",
        group="sampling",
        example=0.05,
        help="Sample only from tokens that are at least this fraction as likely as the most likely token. 0 means no "
        "limit.",
    ),
    Parameter(
        name="repetition_penalty",
        kind="number",
        default=1,
        minimum=0.01,
        maximum=100,
        origin="extension",
        group="sampling",
        example=1.1,
        help="Scale the logits of tokens that have been generated: values above 1 make repetition less likely, values "
        "below 1 more likely; 1 has no effect.",
    ),
    Parameter(
        name="min_tokens",
        kind="integer",
        default=0,
        minimum=0,
        origin="extension",
        group="length",
        example=8,
        help="Do not end a choice before it has this many tokens. At most `max_tokens`.",
    ),
    Parameter(
        name="ignore_eos",
        kind="boolean",
        default=False,
        origin="extension",
        group="length",
        example=True,
        help="Continue after the model's end token, up to `max_tokens`. For benchmarks.",
    ),
    Parameter(
        name="skip_special_tokens",
        kind="boolean",
        default=True,
        origin="extension",
        group="output",
        example=False,
        help="Omit special tokens from the text. Their log probabilities are returned anyway.",
    ),
    Parameter(
        name="include_stop_str_in_output",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="Include the stop string that ended the completion at the end of the text.",
    ),
    Parameter(
        name="return_tokens_as_token_ids",
        kind="boolean",
        default=False,
        origin="extension",
        group="output",
        example=True,
        help="Name tokens in `logprobs` as `token_id:123` instead of by their text. Only has an effect with "
        "`logprobs`.",
    ),
    Parameter(
        name="max_completion_tokens",
        kind="integer",
        minimum=0,
        origin="extension",
        group="length",
        example=64,
        alias_of="max_tokens",
        overrides=True,
        help="The newer name of `max_tokens`, which it overrides.",
    ),
    Parameter(
        name="add_special_tokens",
        kind="boolean",
        default=True,
        origin="extension",
        group="prompt",
        example=False,
        help="Let the tokenizer add its start token to a text prompt, if the model has one. Prompts of token ids are "
        "never changed.",
    ),
    Parameter(
        name="cache_salt",
        kind="string",
        origin="extension",
        group="prompt",
        example="hq9Tbb1pZz0gWm5xJb1t0w",
        help="Share cached prefixes of the prompt only with requests that have the same secret, so that nobody else "
        "can find out by the time to the first token, or by `cached_tokens`, what was asked. It changes no token.",
    ),
    Parameter(
        name="priority",
        kind="integer",
        default=0,
        origin="extension",
        group="other",
        example=-1,
        help="Of a client's own requests that wait for a place in the batch, those with the lowest number begin first; "
        "equal ones take turns. It does not place a request before those of other clients, and interrupts none.",
    ),
    Parameter(
        name="prediction",
        kind="prediction",
        origin="extension",
        group="prompt",
        example={"type": "content", "content": "def add(a, b):\n    return a + b\n"},
        help="Text that the completion is expected to repeat in large part, such as the old version of a file being "
        'edited: `{"type": "content", "content": "…"}`, as in OpenAI\'s Chat API. Where it is correct, several '
        "tokens are generated per step. It changes no token, only the speed.",
    ),
    Parameter(
        name="$schema",
        kind="link",
        origin="extension",
        group="other",
        example="https://example.com/schemas/CompletionRequest.json",
        help="A link to a JSON Schema of the request, for editors. It has no effect on the completion.",
    ),
)
