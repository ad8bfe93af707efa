"""Log probabilities on a terminal: tokens coloured by probability, and a list of the alternatives."""

from __future__ import annotations

import math
from typing import Any

from onward.cli.output.terminal import Style, visible

_SHADES = ((0.9, "38;5;40"), (0.6, "38;5;112"), (0.3, "38;5;220"), (0.1, "38;5;208"), (0.0, "38;5;196"))
"""(minimum probability, colour): from green for likely to red for unlikely tokens."""
LEGEND = "≥90% ≥60% ≥30% ≥10% <10%"
_MAX_TOKEN_WIDTH = 24


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
