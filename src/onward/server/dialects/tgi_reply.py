"""The answers of text-generation-inference (GenerateResponse and StreamResponse in router/src/lib.rs)."""

from __future__ import annotations

import codecs
from dataclasses import dataclass
from typing import Any

import msgspec

from onward.api.numbers import most_likely, wire_number
from onward.api.reply import OneChoice
from onward.completions.delta import Delta, TokenCounts
from onward.completions.request import CompletionRequest
from onward.protocol.sse import KEEP_ALIVE, data_event
from onward.text.assembler import TokenRecord

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TgiOptions:
    """What a request asks of its answer. `prompt` goes in front of the text. `end_token` is id and text of the model's
    end token, `special` the texts of all special tokens."""

    prompt: str
    has_details: bool
    num_top: int
    in_array: bool
    end_token: tuple[int, str]
    special: frozenset[str]


class TgiReply(OneChoice):
    """Writes one answer. An end token is an event of its own, without a log probability."""

    keep_alive = KEEP_ALIVE

    def __init__(self, request: CompletionRequest, options: TgiOptions) -> None:
        super().__init__(is_stream=request.stream)
        self._request = request
        self._options = options
        self._tokens: list[Object] = []
        self._top: list[list[Object]] = []
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._finish = "length"

    def write(self, delta: Delta, counts: TokenCounts) -> bytes:
        self._texts.append(delta.text)
        if delta.finish is not None and delta.finish.reason == "stop":
            self._finish = "stop_sequence" if delta.finish.stop_string else "eos_token"
        first = len(self._tokens)
        for record in delta.tokens:
            self._add(record)
        if delta.finish is not None and (self._finish == "eos_token" or len(self._tokens) == first):
            token, text = self._options.end_token
            self._tokens.append({"id": token, "text": text, "logprob": None, "special": True})
            self._top.append([])
        is_end = delta.finish is not None
        last = len(self._tokens) - 1
        return b"".join(
            self._event(index, counts, is_last=is_end and index == last) for index in range(first, last + 1)
        )

    def finish(self, counts: TokenCounts) -> bytes:
        if self.is_stream:
            return b""
        answer: Object = {"generated_text": self._whole_text()}
        if self._options.has_details:
            answer["details"] = self._details() | {"prefill": [], "tokens": self._tokens}
            if self._options.num_top:
                answer["details"]["top_tokens"] = self._top
        return msgspec.json.encode([answer] if self._options.in_array else answer)

    def _add(self, record: TokenRecord) -> None:
        whole = record.token_bytes.decode(errors="replace")
        is_special = whole in self._options.special
        text = whole if is_special else self._decoder.decode(record.token_bytes)
        self._tokens.append(_token(record.token, text, wire_number(record.logprob), is_special=is_special))
        likely = most_likely(record, self._options.num_top)
        self._top.append([self._alternative(token, raw, logprob) for token, raw, logprob in likely])

    def _alternative(self, token: int, raw: bytes, logprob: float) -> Object:
        text = raw.decode(errors="replace")
        return _token(token, text, logprob, is_special=text in self._options.special)

    def _event(self, index: int, counts: TokenCounts, *, is_last: bool) -> bytes:
        if not self.is_stream:
            return b""
        event: Object = {"index": index + 1, "token": self._tokens[index]}
        if self._options.num_top:
            event["top_tokens"] = self._top[index]
        event["generated_text"] = self._whole_text() if is_last else None
        event["details"] = self._details() | {"input_length": counts.prompt} if is_last else None
        return data_event(event)

    def _whole_text(self) -> str:
        return self._options.prompt + "".join(self._texts)

    def _details(self) -> Object:
        return {
            "finish_reason": self._finish,
            "generated_tokens": len(self._tokens),
            "seed": self._request.seed,
        }


def _token(token: int, text: str, logprob: float | None, *, is_special: bool) -> Object:
    return {"id": token, "text": text, "logprob": logprob, "special": is_special}
