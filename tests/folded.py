"""The content of a completion, however it was delivered: whole, streamed, or streamed across engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Folded:
    """The parts of a completion, whole or streamed, that must not depend on the engines."""

    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    num_prompt_tokens: int = 0
    num_completion_tokens: int = 0
    error: Any = None

    def take(self, chunk: dict[str, Any]) -> None:
        self.error = self.error or chunk.get("error")
        for choice in chunk.get("choices", ()):
            self._take_choice(choice)
        if usage := chunk.get("usage"):
            self.num_prompt_tokens = usage["prompt_tokens"]
            self.num_completion_tokens = usage["completion_tokens"]

    def _take_choice(self, choice: dict[str, Any]) -> None:
        known = self.choices.setdefault(choice["index"], {"text": "", "finish": None, "logprobs": {}})
        assert known["finish"] is None, "nothing follows a finish reason"
        known["text"] += choice["text"]
        known["finish"] = choice["finish_reason"]
        for name, values in (choice["logprobs"] or {}).items():
            known["logprobs"].setdefault(name, []).extend(values or [])
