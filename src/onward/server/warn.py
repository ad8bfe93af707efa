"""What a client probably did not intend: a header on its response, and one line per model in the log."""

from __future__ import annotations

import logging

from onward.completions.answer import Answer
from onward.server.exchange import Exchange

HEADER = b"onward-warning"
log = logging.getLogger("onward.server")


def warn(exchange: Exchange, answer: Answer, warned: set[str]) -> None:
    """Add an answer's warning to the response, which has not begun. `warned` are the models that the log names."""
    exchange.headers.append((HEADER, answer.warning.encode("latin-1", "replace")))
    if answer.model not in warned:
        warned.add(answer.model)
        log.warning(
            "%s: %s (Said once; every such response has the header %s.)", answer.model, answer.warning, HEADER.decode()
        )
