"""16.0 is an integer where a dialect's own server takes it for one; 16.5 nowhere."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.served import post, toy_app
from tests.server.fakes import in_loop

MODEL = {"model": "toy"}


def ollama(**options: object) -> dict[str, Any]:
    return {**MODEL, "prompt": "a", "stream": False, "options": options}


def fim(**fields: object) -> dict[str, Any]:
    return {**MODEL, "prompt": "a", **fields}


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        # nlohmann::json's get<int>() converts every number; tokens of a prompt must be is_number_integer()
        ("/completion", {"prompt": "a", "n_predict": 2.0}, 200),
        ("/completion", {"prompt": "a", "n_predict": 2.0, "top_k": 40.0, "seed": 7.0, "n_probs": 1.0}, 200),
        ("/completion", {"prompt": "a", "n_predict": 2.5}, 400),
        ("/completion", {"prompt": "a", "n_predict": 1e300}, 400),
        ("/completion", {"prompt": [1.0, 2], "n_predict": 2}, 400),
        ("/infill", {"input_prefix": "a", "input_suffix": "b", "n_predict": 2.0}, 200),
        # api/types.go: options are read as float64, fields of the request are Go ints
        ("/api/generate", ollama(num_predict=2.0, top_k=40.0, seed=7.0), 200),
        ("/api/generate", ollama(num_predict=2.5), 400),
        ("/api/generate", {**ollama(num_predict=2), "logprobs": True, "top_logprobs": 2.0}, 400),
        # pydantic's int takes whole floats
        ("/v1/fim/completions", fim(max_tokens=2.0), 200),
        ("/v1/fim/completions", fim(max_tokens=2.5), 422),
        # serde's u32 takes none
        ("/generate", {"inputs": "a", "parameters": {"max_new_tokens": 2.0}}, 422),
        # OpenAI: "expected an integer, but got a decimal number instead"
        ("/v1/completions", {**MODEL, "prompt": "a", "max_tokens": 2.0}, 400),
    ],
)
@in_loop
async def test_a_whole_float_is_an_integer_where_the_dialects_own_server_accepts_one(
    path: str, body: dict[str, Any], status: int
) -> None:
    async with toy_app() as app:
        call = await post(app, path, **body)
    assert call.status == status, call.body
