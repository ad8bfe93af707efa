"""Completions on a terminal: dimmed prompts, text as it arrives, several choices one after another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from onward.cli.output.logprobs import alternatives, coloured_text
from onward.cli.output.terminal import Style, visible
from onward.cli.output.words import pluralize


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
