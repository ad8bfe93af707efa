"""OpenAI's own fields of a completion request (spec/completions §2)."""

from __future__ import annotations

from onward.protocol.parameter import Parameter

STREAM_OPTIONS = (
    Parameter(
        name="include_usage",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        help="Send one more chunk before the end that counts the tokens of the whole request. All "
        "other chunks then carry a null `usage`.",
    ),
    Parameter(
        name="include_obfuscation",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        help="Pad every event with a random string so that its length does not tell the length of its "
        "text to who watches the encrypted connection.",
    ),
    Parameter(
        name="continuous_usage_stats",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        origin="extension",
        help="With `include_usage`, count the tokens so far on every chunk.",
    ),
)

OPENAI_PARAMETERS = (
    Parameter(
        name="model",
        kind="string",
        group="prompt",
        required=True,
        example="storyteller",
        help="The model that writes the completion: an id or an alias that the models endpoint lists.",
    ),
    Parameter(
        name="prompt",
        kind="prompt",
        group="prompt",
        example="Once upon a time",
        help="The text to continue: a string, an array of strings, an array of token ids, or an array "
        "of such arrays. Without one the model starts a new document.",
    ),
    Parameter(
        name="best_of",
        kind="integer",
        minimum=0,
        maximum=20,
        group="choices",
        example=3,
        help="Write this many candidates for each prompt and answer with the `n` of the highest mean "
        "log probability per token. At least `n`; 0 means not given. Candidates cannot be "
        "streamed.",
    ),
    Parameter(
        name="echo",
        kind="boolean",
        default=False,
        group="output",
        example=True,
        help="Put the prompt in front of the completion. With `logprobs` the prompt's tokens are scored too.",
    ),
    Parameter(
        name="frequency_penalty",
        kind="number",
        default=0,
        minimum=-2,
        maximum=2,
        group="sampling",
        example=0.5,
        help="Lower a token's logit by this much for each time it was already generated: positive "
        "values make repetition less likely.",
    ),
    Parameter(
        name="logit_bias",
        kind="logit_bias",
        minimum=-100,
        maximum=100,
        max_items=1024,
        group="sampling",
        example={"50256": -100},
        help="What to add to the logits of single tokens, by token id: -100 bans a token, 100 all but forces it.",
    ),
    Parameter(
        name="logprobs",
        kind="integer",
        minimum=0,
        strict_maximum=5,
        cap=20,
        group="output",
        example=5,
        help="Report the log probability of every token and of this many of the most likely ones "
        "beside it. 0 reports the tokens alone; more than 20 is taken as 20.",
    ),
    Parameter(
        name="max_tokens",
        kind="integer",
        default=16,
        minimum=0,
        group="length",
        example=64,
        help="The most tokens to generate for each choice. Prompt and completion together must fit the"
        " model's context. 0 generates nothing, to score a prompt with `echo` and `logprobs`.",
    ),
    Parameter(
        name="n",
        kind="integer",
        default=1,
        minimum=1,
        maximum=128,
        group="choices",
        example=2,
        help="How many choices to answer with for each prompt.",
    ),
    Parameter(
        name="presence_penalty",
        kind="number",
        default=0,
        minimum=-2,
        maximum=2,
        group="sampling",
        example=0.5,
        help="Lower a token's logit by this much once it was generated at all: positive values make "
        "new words more likely.",
    ),
    Parameter(
        name="seed",
        kind="integer",
        group="sampling",
        example=7,
        help="Fixes the random draws: the same request with the same seed gives the same text. Without"
        " one each request draws its own.",
    ),
    Parameter(
        name="stop",
        kind="stop",
        max_items=4,
        group="length",
        example=["\n", "END"],
        help="Up to four strings that end the completion where they first appear. The text does not contain them.",
    ),
    Parameter(
        name="stream",
        kind="boolean",
        default=False,
        group="stream",
        example=True,
        help="Send the completion as it is written, as server-sent events that end with `data: [DONE]`.",
    ),
    Parameter(
        name="stream_options",
        kind="object",
        group="stream",
        example={"include_usage": True},
        inner=STREAM_OPTIONS,
        help="What to add to a stream. Only with `stream`.",
    ),
    Parameter(
        name="suffix",
        kind="string",
        group="prompt",
        example=" and they lived happily ever after.",
        help="The text that follows the gap: the completion is what stands between prompt and suffix. "
        "Only for models with fill-in-the-middle tokens.",
    ),
    Parameter(
        name="temperature",
        kind="number",
        default=1,
        minimum=0,
        maximum=2,
        group="sampling",
        example=0.7,
        help="How freely tokens are drawn: 0 always takes the most likely one, higher values flatten the distribution.",
    ),
    Parameter(
        name="top_p",
        kind="number",
        default=1,
        minimum=0,
        maximum=1,
        group="sampling",
        example=0.9,
        help="Draw only from the smallest set of tokens whose probabilities add up to this; 0 leaves "
        "the most likely one.",
    ),
    Parameter(
        name="user",
        kind="string",
        group="other",
        example="user-1234",
        help="A name for your end user, written to the server's access log. It does not change the completion.",
    ),
)
