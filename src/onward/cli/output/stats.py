"""Token counts, speed and timing of one request."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from onward.cli.output.words import pluralize


@dataclass(slots=True)
class Stats:
    """Starts timing when it is created. Times are in seconds on a monotonic clock."""

    clock: Any = time.monotonic
    started: float = field(init=False)
    first: float | None = None
    ended: float = field(init=False)
    usage: dict[str, Any] | None = None
    finish_reasons: list[str] = field(default_factory=list)
    streamed: bool = False

    def __post_init__(self) -> None:
        self.started = self.ended = self.clock()

    def add(self, document: dict[str, Any]) -> None:
        """Add a chunk or a whole completion."""
        self.ended = self.clock()
        choices = document.get("choices") or []
        if self.first is None and choices:
            self.first = self.ended
        self.usage = document.get("usage") or self.usage
        self.finish_reasons += [each["finish_reason"] for each in choices if each.get("finish_reason")]

    def summary(self) -> str:
        """Return one line: tokens, speed, time to the first token, cached tokens."""
        parts: list[str] = []
        if self.usage is None:
            parts.append("token counts not reported (add --stream-options.include-usage)")
        else:
            cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            prompt = f"prompt {pluralize(self.usage.get('prompt_tokens') or 0, 'token')}"
            parts.append(prompt if cached is None else f"{prompt} ({cached} cached)")
            parts.append(f"completion {pluralize(self.usage.get('completion_tokens') or 0, 'token')}")
            if (speed := self._speed()) is not None:
                parts.append(f"{speed:.1f} tok/s")
        if self.streamed and self.first is not None:
            parts.append(f"first token after {self.first - self.started:.2f} s")
        parts.append(f"total {self.ended - self.started:.2f} s")
        if self.finish_reasons:
            parts.append("finish reason: " + ", ".join(dict.fromkeys(self.finish_reasons)))
        return " · ".join(parts)

    def _speed(self) -> float | None:
        """Return tokens per second: of decoding if the first token was timed, otherwise of the whole request."""
        tokens = (self.usage or {}).get("completion_tokens") or 0
        start = self.first if self.streamed and self.first is not None else self.started
        timed_tokens = tokens - 1 if start is self.first and start != self.started else tokens
        elapsed = self.ended - start
        return timed_tokens / elapsed if timed_tokens > 0 and elapsed > 0 else None
