"""`prompt`, `model`, `suffix`."""

from __future__ import annotations

from .servers import ABSENT, Server
from .table import Area, choices, counts, finishes, post, says, starts_with

AREA = Area("Prompt, model, suffix", "§2.2")
WORDS = ["a fox", "once upon a time"]


@AREA.law("prompt.tokens", '"prompt": the token ids of a text', golden=(9,))
def text_and_ids(server: Server) -> None:
    """A text and its token ids are equivalent prompts: the same count, the same greedy text."""
    by_text = server.ask(prompt=WORDS[1])
    by_ids = server.ask(prompt=server.tokens(WORDS[1]))
    assert by_text.texts == by_ids.texts
    assert by_text.usage["prompt_tokens"] == by_ids.usage["prompt_tokens"]


@AREA.law("prompt.batch", '"prompt": ["a fox", "once upon a time"]', golden=(10,), source="behaviour W14")
def batch_of_texts(server: Server) -> None:
    """A batch returns the completion of each prompt, in order."""
    batch = server.ask(prompt=WORDS)
    assert [choice["index"] for choice in batch.choices] == [0, 1]
    assert batch.texts == [server.ask(prompt=word).text for word in WORDS]


@AREA.law("prompt.token_batch", '"prompt": [[ids], [ids]]', golden=(11,))
def batch_of_ids(server: Server) -> None:
    """A batch of token arrays is equivalent to a batch of their texts."""
    assert server.ask(prompt=[server.tokens(word) for word in WORDS]).choices == server.ask(prompt=WORDS).choices


@AREA.law("prompt.batch_n", '"prompt": ["A", "B"], "n": 2, "echo": true', golden=(12,), source="behaviour W14")
def prompt_major(server: Server) -> None:
    """Choices are ordered by prompt, then by sample: index = i·n + j."""
    answer = server.ask(prompt=["A", "B"], n=2, temperature=1, seed=1, echo=True)
    assert [choice["index"] for choice in answer.choices] == [0, 1, 2, 3]
    assert [text[0] for text in answer.texts] == ["A", "A", "B", "B"]


for name, fields in (
    ("absent", {"prompt": ABSENT}),
    ("null", {"prompt": None}),
    ("empty", {"prompt": ""}),
    ("empty_array", {"prompt": []}),
    ("one_empty", {"prompt": [""]}),
):
    AREA.same(
        f"prompt.start.{name}",
        f"prompt {name}: the start of a document, one start token",
        {**fields, "max_tokens": 8},
        {"prompt": "<|endoftext|>", "max_tokens": 8},
        golden=(13,),
        weak="usage.prompt_tokens of an empty prompt is not recorded; we count the start token.",
    )
AREA.refused(
    "prompt.empty_ids",
    "prompt: an empty token array in a batch is rejected",
    {"prompt": [[]]},
    "Invalid 'prompt[0]': empty array. Expected an array with minimum length 1, but got an empty array instead.",
    param="prompt[0]",
    code="empty_array",
)
for token in (283, 273, -1):
    AREA.refused(
        f"prompt.token.{token}",
        f"prompt: token id {token} is outside the vocabulary",
        {"prompt": [65, token]},
        f"Invalid token in prompt: {token}. Minimum value is 0, maximum value is 272 (inclusive).",
        golden=(14,),
    )
AREA.served(
    "prompt.counted_once",
    "usage is the sum over the prompts of a batch; n does not multiply it",
    {"prompt": ["abc", "abc"], "n": 3, "max_tokens": 1, "ignore_eos": True},
    counts(prompt_tokens=6, completion_tokens=6, total_tokens=12),
    choices(6),
    golden=(17,),
)
AREA.served(
    "prompt.special",
    "a special token spelled in a text prompt becomes that token",
    {"prompt": "a<|endoftext|>b", "max_tokens": 0},
    counts(prompt_tokens=3),
    weak="Seen on GPT-3 engines only (HELM).",
)
AREA.served(
    "prompt.unicode",
    "a prompt can contain any Unicode text, which is echoed unchanged",
    {"prompt": 'naïve 🙂 \u0000\u2028"\\', "echo": True, "max_tokens": 1},
    starts_with('naïve 🙂 \u0000\u2028"\\'),
)
AREA.served(
    "prompt.verbatim",
    "a token array is used unchanged: no start token is added",
    {"prompt": [97, 98], "max_tokens": 0, "echo": True, "logprobs": 1},
    counts(prompt_tokens=2),
    says("tokens a, b", lambda answer: answer.logprobs["tokens"] == ["a", "b"]),
    source="behaviour W15",
)

# --- model ------------------------------------------------------------------------------------------------------

NO_MODEL = "you must provide a model parameter"
MODEL = "behaviour §2.1"
for name, value in (("absent", ABSENT), ("null", None), ("empty", "")):
    AREA.refused(f"model.{name}", f"model {name} is rejected", {"model": value}, NO_MODEL, golden=(68,), source=MODEL)
AREA.refused(
    "model.unknown",
    "an unknown model is a 404",
    {"model": "nope"},
    "The model `nope` does not exist or you do not have access to it.",
    code="model_not_found",
    status=404,
    golden=(69,),
    source=MODEL,
)
AREA.refused(
    "model.after_shape",
    "an invalid field is reported before an unknown model",
    {"model": "nope", "temperature": 9},
    "Invalid 'temperature': decimal above maximum value…",
    param="temperature",
    code="decimal_above_max_value",
    source="behaviour §11 (order)",
)
AREA.served(
    "model.alias",
    "an alias can be used; the response has the id of its model",
    {"model": "gpt-3.5-turbo-instruct", "max_tokens": 1},
    says("model toy", lambda answer: answer.json["model"] == "toy" == answer.headers["openai-model"]),
    on="lenient",
    source=MODEL,
)
for name, value in (("absent", ABSENT), ("null", None), ("empty", ""), ("unknown", "nope")):
    AREA.served(
        f"model.{name}.lenient",
        f"model {name}, lenient profile: the only model is used",
        {"model": value, "max_tokens": 1},
        says("model toy", lambda answer: answer.json["model"] == "toy"),
        on="lenient",
        source="behaviour §14",
    )

# --- suffix -----------------------------------------------------------------------------------------------------

SUFFIX = "behaviour §2.12"
AREA.served(
    "suffix",
    "suffix: the text is the infill alone; suffix tokens count as prompt tokens",
    {"prompt": "ab", "suffix": "cd", "max_tokens": 4, "ignore_eos": True},
    counts(prompt_tokens=7, completion_tokens=4),
    finishes("length"),
    golden=(75,),
    source=SUFFIX,
)
AREA.served(
    "suffix.echo",
    "suffix with echo: prompt, then infill, without the suffix",
    {"prompt": "ab", "suffix": "ZZ", "max_tokens": 4, "echo": True},
    starts_with("ab"),
    says("no suffix", lambda answer: "ZZ" not in answer.text),
    source=SUFFIX,
    weak="Combinations with suffix are unknown (§12.8).",
)
AREA.served(
    "suffix.batch",
    "suffix applies to each prompt of a batch",
    {"prompt": ["ab", "xy"], "suffix": "cd", "max_tokens": 4},
    choices(2),
    counts(prompt_tokens=14),
    source=SUFFIX,
    weak="Combinations with suffix are unknown (§12.8).",
)
AREA.refused(
    "suffix.echo_logprobs",
    "suffix, echo and logprobs together are rejected: the prompt has no log probabilities of its own",
    {"suffix": "cd", "echo": True, "logprobs": 1},
    "Setting 'echo' and 'logprobs' at the same time is not supported with 'suffix'.",
    source=SUFFIX,
    weak="Combinations with suffix are unknown (§12.8).",
)


@AREA.law("suffix.ends", '"suffix": "cd", and a bias towards <|fim_pad|>', source=SUFFIX)
def infill_ends(server: Server) -> None:
    """With a suffix, the model family's padding token ends the infill; without one, it is an ordinary token."""
    bias = {"260": 100}
    assert server.ask(suffix="cd", logit_bias=bias).finish == "stop"
    assert server.ask(logit_bias=bias).finish == "length"


AREA.sends(
    "engine",
    "the engine in the path is the model",
    post({"prompt": "a", "max_tokens": 1}, "/v1/engines/toy/completions"),
    says("model toy", lambda answer: answer.json["model"] == "toy"),
    source="behaviour §1",
)
AREA.sends(
    "engine.model_null",
    "model: null with an engine in the path means no model",
    post({"model": None, "prompt": "a", "max_tokens": 1}, "/v1/engines/toy/completions"),
    source="behaviour W10",
)
AREA.sends(
    "engine.and_model",
    "an engine and a different model are rejected",
    post({"model": "other", "prompt": "a"}, "/v1/engines/toy/completions"),
    status=400,
    error={
        "message": "Cannot specify both model and engine",
        "type": "invalid_request_error",
        "param": "model",
        "code": None,
    },
    source="behaviour §1",
    weak="The message is from the time of engines, not from a recording.",
)
