"""What is logged of one request, where an operator wants that: what the client sent, and the text of its choices."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from onward.backends.base import Needs
from onward.completions.answer import Delta, TokenCounts
from onward.server.exchange import HttpExchange
from onward.service.request_log import LoggedRequest, RequestLog


class CollectedChoices:
    """The choices of one answer. Deltas have passed the content filters, so nothing that these withheld is here.

    Of the first `max_choices`, the first `max_text` characters are kept; None: all. Of all, why they ended.
    """

    def __init__(self, *, max_choices: int | None = None, max_text: int | None = None) -> None:
        self._max_choices = max_choices
        self._max_text = max_text
        self._texts: dict[int, list[str]] = {}
        self._lengths: dict[int, int] = {}
        self._reasons: dict[int, str] = {}

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            if self._max_choices is None or delta.index < self._max_choices:
                self._keep(delta.index, delta.text)
            if delta.finish is not None:
                self._reasons[delta.index] = delta.finish.reason

    def _keep(self, index: int, text: str) -> None:
        texts, length = self._texts.setdefault(index, []), self._lengths.get(index, 0)
        if self._max_text is not None:
            text = text[: self._max_text - length]
        if text:
            texts.append(text)
            self._lengths[index] = length + len(text)

    @property
    def reasons(self) -> list[str]:
        """Why choices ended, by index, without those that did not end."""
        return [reason for _, reason in sorted(self._reasons.items())]

    def texts(self) -> Iterator[tuple[int, str, str | None]]:
        """Yield index, text and finish reason of each choice, by index; the reason is None if it did not end."""
        for index, texts in sorted(self._texts.items()):
            yield index, "".join(texts), self._reasons.get(index)


class Transcript:
    """Collects one answer for the log of requests."""

    def __init__(self, log: RequestLog, exchange: HttpExchange) -> None:
        self._log = log
        self._exchange = exchange
        self._needs: Needs | None = None
        self._choices = CollectedChoices()

    def planned(self, needs: Needs) -> None:
        self._needs = needs

    def generated(self, deltas: Iterable[Delta]) -> None:
        self._choices.add(deltas)

    def end(self, counts: TokenCounts, status: int) -> None:
        """Log the request, which has ended."""
        key, needs = self._exchange.key, self._needs
        assert needs is not None
        choices: list[dict[str, Any]] = [
            {"index": index, "text": text, "finish_reason": reason} for index, text, reason in self._choices.texts()
        ]
        self._log.add(
            LoggedRequest(
                id=self._exchange.id,
                at_ms=time.time_ns() // 1_000_000,
                key_id="" if key is None else key.public_id,
                key_name="" if key is None else key.name,
                route=self._exchange.record.route,
                model=needs.model,
                fingerprint=needs.fingerprint,
                seed=needs.seed,
                status=status,
                body=_json(self._exchange.kept_body),
                choices=choices,
                prompt_tokens=counts.prompt,
                completion_tokens=counts.completion,
            )
        )


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):  # accepted all the same: the decoder of requests is more lenient
        return body.decode("utf-8", "replace")
