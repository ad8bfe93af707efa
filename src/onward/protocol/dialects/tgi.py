"""The requests of text-generation-inference, by its router/src/lib.rs (db931fc, 2026-01)."""

from __future__ import annotations

from onward.protocol.dialects.decode import Table, table
from onward.protocol.dialects.rows import only, own, refused, same, sampler
from onward.protocol.parameter import Parameter

NAME = "tgi"

PARAMETERS: tuple[Parameter, ...] = (
    own(
        "max_new_tokens", "integer", NAME,
        "Maximum number of tokens to generate; by default as many as the context has room for.", minimum=1, example=20,
    ),
    own("do_sample", "boolean", NAME, "Sample. Without it, and without any sampling parameter, decoding is greedy."),
    same("temperature", "temperature", NAME),
    same("top_k", "top_k", NAME),
    same("top_p", "top_p", NAME),
    same("repetition_penalty", "repetition_penalty", NAME),
    same("frequency_penalty", "frequency_penalty", NAME),
    same("seed", "seed", NAME),
    same("stop", "stop", NAME, max_items=64, lenient_max_items=64),
    same("adapter_id", "model", NAME, help="A model; by default the first one. LoRA adapters are models here."),
    own("return_full_text", "boolean", NAME, "Return the prompt in front of the text.", default=False),
    own("details", "boolean", NAME, "Return tokens, their number and the reason of the end.", default=False),
    own(
        "top_n_tokens", "integer", NAME, "Return this many of the most likely tokens at each position.",
        minimum=0, maximum=20, default=0,
    ),
    sampler("typical_p", NAME, 1.0, 1),
    only("best_of", NAME, 1, why="Only 1 is accepted; /v1/completions has `best_of`."),
    only("decoder_input_details", NAME, False, why="/v1/completions scores prompts, by `echo` with `logprobs`."),
    only("watermark", NAME, False, why="Only `false` is accepted."),
    refused("truncate", NAME, "A prompt that does not fit is an error."),
    own(
        "grammar", "typed_grammar", NAME,
        'What the text must match: `{"type": "json", "value": {…}}` with a JSON Schema, or `{"type": "regex", "value": '
        '"…"}`.',
        example={"type": "regex", "value": "[a-z]+"},
    ),
)  # fmt: skip

GENERATE: Table = table(
    own("inputs", "string", NAME, "The text to continue.", required=True, example="Once upon a time"),
    own("parameters", "object", NAME, "How to continue it.", inner=PARAMETERS, example={"max_new_tokens": 20}),
)
COMPATIBLE: Table = table(
    *GENERATE.values(),
    own("stream", "boolean", NAME, "Send the completion while it is generated, as server-sent events.", default=False),
)
