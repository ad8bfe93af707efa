"""The Python API: the calls of `openai.OpenAI().completions`, answered by an engine in this process.

    with onward.Onward(model="storyteller") as client:
        completion = client.completions.create(prompt="Once upon a time", max_tokens=32)
        print(completion.choices[0].text)

`AsyncOnward` has the same methods, parameters and results, to be awaited. Errors are those of the API: an invalid
parameter raises `onward.errors.InvalidRequest`, with OpenAI's `message`, `type`, `param` and `code`.
"""

from __future__ import annotations

from onward.client.awaiting import (
    AsyncCompletions,
    AsyncModelList,
    AsyncModels,
    AsyncOnward,
    AsyncRawCompletions,
    AsyncStream,
    AsyncTokenizer,
    ModelPage,
    RawResponse,
)
from onward.client.blocking import Completions, Models, Onward, RawCompletions, Stream, Tokenizer
from onward.client.parameters import CreateParams, ModelOptions, Prediction, PredictionPart, StreamOptions

__all__ = [
    "AsyncCompletions",
    "AsyncModelList",
    "AsyncModels",
    "AsyncOnward",
    "AsyncRawCompletions",
    "AsyncStream",
    "AsyncTokenizer",
    "Completions",
    "CreateParams",
    "ModelOptions",
    "ModelPage",
    "Models",
    "Onward",
    "Prediction",
    "PredictionPart",
    "RawCompletions",
    "RawResponse",
    "Stream",
    "StreamOptions",
    "Tokenizer",
]
