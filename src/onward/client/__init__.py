"""The Python API: `openai.OpenAI().completions`, answered by an engine in this process.

    with onward.Onward(model="storyteller") as client:
        completion = client.completions.create(prompt="Once upon a time", max_tokens=32)
        print(completion.choices[0].text)

`Onward` blocks, `AsyncOnward` awaits; calls, parameters and results are the same. Bad parameters raise
`onward.errors.InvalidRequest` and its kin, which carry OpenAI's `message`, `type`, `param` and `code`.
"""

from __future__ import annotations

from onward.client.awaiting import AsyncCompletions, AsyncModels, AsyncOnward, AsyncStream
from onward.client.blocking import Completions, Models, Onward, Stream
from onward.client.parameters import CreateParams, ModelOptions, Prediction, PredictionPart, StreamOptions

__all__ = [
    "AsyncCompletions",
    "AsyncModels",
    "AsyncOnward",
    "AsyncStream",
    "Completions",
    "CreateParams",
    "ModelOptions",
    "Models",
    "Onward",
    "Prediction",
    "PredictionPart",
    "Stream",
    "StreamOptions",
]
