"""OpenAI's fields of a completion request (behaviour §2), which every API here has under names of its own."""

from __future__ import annotations

from onward.api.parameter import Parameter

STREAM_OPTIONS = (
    Parameter(
        name="include_usage",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        help="Send one more chunk at the end of the stream with the token counts of the whole request. All other "
        "chunks then have a null `usage`.",
    ),
    Parameter(
        name="include_obfuscation",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        help="Pad every event with a random string, so that its size does not reveal the length of its text to "
        "observers of the encrypted connection. Has no effect in a program, which has no connection to observe.",
    ),
    Parameter(
        name="continuous_usage_stats",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        origin="extension",
        help="With `include_usage`, send the token counts so far in every chunk.",
    ),
    Parameter(
        name="resumable",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        origin="extension",
        help="Give every event an id, and continue for a while after the connection is lost: `GET "
        "/v1/completions/{id}` with the header `Last-Event-ID` sends the rest. Has no effect in a program, which has "
        "no connection to lose.",
    ),
)

OPENAI_PARAMETERS = (
    Parameter(
        name="model",
        kind="string",
        group="prompt",
        required=True,
        example="storyteller",
        help="The model that generates the completion: an id or alias from the models endpoint.",
    ),
    Parameter(
        name="prompt",
        kind="prompt",
        group="prompt",
        example="Once upon a time",
        help="The text to continue: a string, an array of strings, an array of token ids, or an array of such arrays. "
        "Without a prompt, the model begins a new document.",
    ),
    Parameter(
        name="best_of",
        kind="integer",
        minimum=0,
        maximum=20,
        group="choices",
        example=3,
        help="Generate this many candidates for each prompt and return the `n` with the highest mean log probability "
        "per token. At least `n`; 0 means not set. Candidates cannot be streamed.",
    ),
    Parameter(
        name="echo",
        kind="boolean",
        default=False,
        group="output",
        example=True,
        help="Return the prompt in front of the completion. With `logprobs`, the log probabilities of the prompt's "
        "tokens are returned too.",
    ),
    Parameter(
        name="frequency_penalty",
        kind="number",
        default=0,
        minimum=-2,
        maximum=2,
        group="sampling",
        example=0.5,
        help="Lower a token's logit by this much for each time it has been generated: positive values make repetition "
        "less likely.",
    ),
    Parameter(
        name="logit_bias",
        kind="logit_bias",
        minimum=-100,
        maximum=100,
        max_items=1024,
        group="sampling",
        example={"50256": -100},
        help="Values to add to the logits of tokens, by token id: -100 bans a token, 100 makes it almost certain.",
    ),
    Parameter(
        name="logprobs",
        kind="integer",
        minimum=0,
        strict_maximum=5,
        cap=20,
        group="output",
        example=5,
        help="Return the log probability of every token, and of this many of the most likely alternatives. 0 returns "
        "no alternatives. At most 5 in the strict profile; otherwise, values above 20 are lowered to 20.",
    ),
    Parameter(
        name="max_tokens",
        kind="integer",
        default=16,
        minimum=0,
        group="length",
        example=64,
        help="Maximum number of tokens to generate for each choice. Prompt and completion together must fit into the "
        "model's context. 0 generates nothing: use it with `echo` and `logprobs` to score a prompt.",
    ),
    Parameter(
        name="n",
        kind="integer",
        default=1,
        minimum=1,
        maximum=128,
        group="choices",
        example=2,
        help="Number of choices to return for each prompt.",
    ),
    Parameter(
        name="presence_penalty",
        kind="number",
        default=0,
        minimum=-2,
        maximum=2,
        group="sampling",
        example=0.5,
        help="Lower a token's logit by this much if it has been generated at all: positive values make new words more "
        "likely.",
    ),
    Parameter(
        name="seed",
        kind="integer",
        group="sampling",
        example=7,
        help="Seed of the random sampling: the same request with the same seed returns the same text. By default, each "
        "request uses a different seed.",
    ),
    Parameter(
        name="stop",
        kind="stop",
        max_items=4,
        lenient_max_items=64,  # each is searched for at every token of every choice
        group="length",
        example=["\n", "END"],
        help="Up to four strings; up to 64 in the lenient profile. The completion ends where one of them first "
        "appears; the text does not contain it.",
    ),
    Parameter(
        name="stream",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        help="Send the completion while it is generated, as server-sent events that end with `data: [DONE]`.",
    ),
    Parameter(
        name="stream_options",
        kind="object",
        group="stream",
        example={"include_usage": True},
        inner=STREAM_OPTIONS,
        help="Options of the stream. Only allowed with `stream`.",
    ),
    Parameter(
        name="suffix",
        kind="string",
        group="prompt",
        example=" and they lived happily ever after.",
        help="The text after the completion: the model generates what comes between prompt and suffix. Requires a "
        "model with fill-in-the-middle tokens.",
    ),
    Parameter(
        name="temperature",
        kind="number",
        default=1,
        minimum=0,
        maximum=2,
        group="sampling",
        example=0.7,
        help="Randomness of sampling: 0 always selects the most likely token, higher values flatten the distribution.",
    ),
    Parameter(
        name="top_p",
        kind="number",
        default=1,
        minimum=0,
        maximum=1,
        group="sampling",
        example=0.9,
        help="Sample only from the smallest set of tokens whose probabilities add up to this; 0 leaves only the most "
        "likely token.",
    ),
    Parameter(
        name="user",
        kind="string",
        group="other",
        example="user-1234",
        help="An identifier of your end user, written to the server's access log. It does not change the completion.",
    ),
)
