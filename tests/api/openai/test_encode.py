"""Ids, and the body of a response that is not streamed."""

from __future__ import annotations

import json
import re

from onward.api.ids import completion_id, request_id
from onward.api.openai.encode import encode_completion
from onward.api.openai.response import (
    Choice,
    Completion,
    CompletionTokensDetails,
    PromptTokensDetails,
    Usage,
)

COMPLETION = Completion(
    id="cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS",
    created=1755097557,
    model="gpt-3.5-turbo-instruct:20230824-v2",
    system_fingerprint="fp_1",
    choices=[Choice(text="\n\nÀ Toronto 🙂", index=0, finish_reason="stop")],
    usage=Usage(
        prompt_tokens=10,
        completion_tokens=12,
        total_tokens=22,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=4, text_tokens=10, cache_write_tokens=6),
        completion_tokens_details=CompletionTokensDetails(text_tokens=12),
    ),
)
BODY = """{
  "id": "cmpl-C47L3RG6ICY37W3Q0flVHr4BPTPMS",
  "object": "text_completion",
  "created": 1755097557,
  "model": "gpt-3.5-turbo-instruct:20230824-v2",
  "system_fingerprint": "fp_1",
  "choices": [
    {
      "text": "\\n\\nÀ Toronto 🙂",
      "index": 0,
      "logprobs": null,
      "finish_reason": "stop"
    }
  ],
  "usage": {
    "prompt_tokens": 10,
    "completion_tokens": 12,
    "total_tokens": 22,
    "prompt_tokens_details": {
      "cached_tokens": 4,
      "audio_tokens": 0,
      "text_tokens": 10,
      "image_tokens": 0,
      "cache_write_tokens": 6
    },
    "completion_tokens_details": {
      "reasoning_tokens": 0,
      "audio_tokens": 0,
      "accepted_prediction_tokens": 0,
      "rejected_prediction_tokens": 0,
      "text_tokens": 12
    }
  }
}
"""


def test_a_completion_is_encoded_to_the_recorded_bytes() -> None:
    assert encode_completion(COMPLETION) == BODY.encode()


def test_a_schema_link_is_the_first_key() -> None:
    url = 'http://127.0.0.1/openai/schemas/Completion.json?"'
    body = encode_completion(COMPLETION, schema=url)
    assert body.startswith(b'{\n  "$schema": "http://')
    data = json.loads(body)
    assert list(data)[:2] == ["$schema", "id"]
    assert data.pop("$schema") == url
    assert data == json.loads(BODY)


def test_a_completion_id_is_34_random_characters() -> None:
    ids = {completion_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(re.fullmatch(r"cmpl-[A-Za-z0-9]{29}", each) for each in ids)
    assert {character for each in ids for character in each[5:]} >= set("AZaz09")


def test_a_request_id_is_req_and_32_hexadecimal_digits() -> None:
    ids = {request_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", each) for each in ids)
