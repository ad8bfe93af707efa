"""Completions on a terminal: dimmed prompts, text as it arrives, several choices one after another, tokens coloured by
probability; then counts and speed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onward.cli.output.terminal import Style, pluralize, visible

_SHADES = ((0.9, "38;5;40"), (0.6, "38;5;112"), (0.3, "38;5;220"), (0.1, "38;5;208"), (0.0, "38;5;196"))
"""(minimum probability, colour): from green for likely to red for unlikely tokens."""
LEGEND = "≥90% ≥60% ≥30% ≥10% <10%"
_MAX_TOKEN_WIDTH = 24


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


def coloured_text(text: str, logprobs: dict[str, Any] | None, style: Style) -> str:
    """Return `text` in the colours of its tokens; plain where the tokens do not add up to it."""
    tokens = (logprobs or {}).get("tokens") or []
    if not style.on or "".join(tokens) != text:
        return visible(text)
    scores = (logprobs or {}).get("token_logprobs") or []
    return "".join(
        visible(token) if score is None else style(visible(token), _shade(score))
        for token, score in zip(tokens, scores, strict=False)
    )


def alternatives(logprobs: dict[str, Any], style: Style) -> str:
    """Return one line per token: its probability, then the alternatives, most likely first."""
    tokens = logprobs.get("tokens") or []
    scores = logprobs.get("token_logprobs") or []
    tops = logprobs.get("top_logprobs") or [None] * len(tokens)
    width = min(_MAX_TOKEN_WIDTH, max((len(_shown(token)) for token in tokens), default=0))
    lines = [_legend(style)]
    for token, score, top in zip(tokens, scores, tops, strict=False):
        others = sorted((top or {}).items(), key=lambda pair: -pair[1])
        listed = "  ".join(f"{_shown(other)} {_percent(value)}" for other, value in others if other != token)
        name = f"{_shown(token):<{width}}"
        lines.append(
            f"{name if score is None else style(name, _shade(score))} {_percent(score):>6}  {style.dim(listed)}"
        )
    return "\n".join(line.rstrip() for line in lines)


def _legend(style: Style) -> str:
    words = LEGEND.split()
    return " ".join(style(word, code) for word, (_, code) in zip(words, _SHADES, strict=True)) if style.on else ""


def _shade(score: float) -> str:
    probability = math.exp(min(0.0, score))
    return next(code for least, code in _SHADES if probability >= least)


def _percent(score: float | None) -> str:
    return "–" if score is None else f"{100 * math.exp(min(0.0, score)):.1f}%"


def _shown(token: str) -> str:
    """Return a token with visible white space."""
    return visible(token.replace("\n", "⏎").replace("\t", "⇥").replace(" ", "␣"))


@dataclass(slots=True)
class _Choice:
    """One choice so far. `pending` holds the parts that are not printed yet."""

    pending: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False
    echoed: int = 0
    """Characters of the echoed prompt that have not arrived yet."""
    logprobs: dict[str, list[Any]] = field(default_factory=dict)


class LiveText:
    """Prints partial choices. Choice 0 is live; each later one is printed when those before it have ended.

    `write` prints text immediately. `fields` is the request. `bare` is for pipes: unmodified texts without prompts
    and probabilities, under the headings of OpenAI's old command line.
    """

    def __init__(
        self, write: Callable[[str], object], style: Style, fields: dict[str, Any], *, bare: bool = False
    ) -> None:
        self._bare = bare
        self._write = write
        self._style = style
        self._prompts = _prompts(fields.get("prompt"))
        self._n = fields.get("n") or 1
        self._echo = bool(fields.get("echo"))
        self._has_logprobs = fields.get("logprobs") is not None and not bare
        self._suffix = None if bare else fields.get("suffix")
        self._choices: dict[int, _Choice] = {}
        self._current = 0
        self._is_open = False
        self._line_open = False

    def add(self, document: dict[str, Any]) -> None:
        """Add a chunk or a whole completion."""
        for part in document.get("choices") or []:
            choice = self._choices.setdefault(part.get("index", 0), _Choice())
            choice.pending.append(part)
            choice.ended = choice.ended or bool(part.get("finish_reason"))
        self._show()

    def finish(self) -> None:
        """Print everything that is pending, and end the last line."""
        for index in sorted(self._choices):
            if index >= self._current:
                self._current = index
                self._show_current()
                self._close()
        if self._line_open:
            self._put("\n")

    def _show(self) -> None:
        while self._current in self._choices:
            self._show_current()
            if not self._choices[self._current].ended:
                return
            self._close()
            self._current += 1

    def _show_current(self) -> None:
        choice = self._choices[self._current]
        if not self._is_open:
            self._open(choice)
        for part in choice.pending:
            self._put_part(choice, part)
        choice.pending.clear()

    def _open(self, choice: _Choice) -> None:
        self._is_open = True
        if self._n * len(self._prompts) > 1:
            self._put(self._heading() + "\n")
        if self._bare:
            return
        prompt = self._prompts[min(self._current // self._n, len(self._prompts) - 1)]
        if self._echo:
            choice.echoed = len(prompt) if isinstance(prompt, str) else 0
        elif prompt:
            shown = prompt if isinstance(prompt, str) else f"[{pluralize(len(prompt), 'token')}] "
            self._put(self._style.dim(visible(shown)))

    def _heading(self) -> str:
        if self._bare:
            return f"===== Completion {self._current} ====="
        place, number = divmod(self._current, self._n)
        several = f"Prompt {place + 1} of {len(self._prompts)}" if len(self._prompts) > 1 else ""
        own = f"Choice {number + 1} of {self._n}" if self._n > 1 else ""
        gap = "\n" if self._current else ""
        return gap + self._style.bold(f"── {', '.join(filter(None, (several, own)))} ──")

    def _put_part(self, choice: _Choice, part: dict[str, Any]) -> None:
        text, logprobs = part.get("text") or "", part.get("logprobs")
        if self._bare:
            self._put(text)
            return
        if logprobs:
            for key in ("tokens", "token_logprobs", "top_logprobs"):
                choice.logprobs.setdefault(key, []).extend(logprobs.get(key) or [])
        prompt = text[: choice.echoed]
        choice.echoed -= len(prompt)
        if prompt and not self._has_logprobs:
            self._put(self._style.dim(visible(prompt)))
            text = text[len(prompt) :]
        self._put(coloured_text(text, logprobs, self._style) if self._has_logprobs else visible(text))

    def _close(self) -> None:
        choice = self._choices[self._current]
        if not self._is_open:
            return
        self._is_open = False
        if self._suffix and not self._echo:
            self._put(self._style.dim(visible(str(self._suffix))))
        if choice.logprobs.get("tokens"):
            self._put(f"{self._end_of_line()}\n{alternatives(choice.logprobs, self._style).strip()}\n")
        self._put(self._end_of_line())

    def _end_of_line(self) -> str:
        return "\n" if self._line_open else ""

    def _put(self, text: str) -> None:
        if text:
            self._write(text)
            bare = text.removesuffix("\x1b[0m")
            self._line_open = not bare.endswith("\n")


def _prompts(prompt: Any) -> list[Any]:
    """Return the prompts of a request: strings or lists of token ids."""
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return prompt
    return [prompt or ""]
