"""The requests of a load generator: seeded prompts and the body of each request."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, field
from typing import Any

WORDS = ("the", "old", "sea", "and", "a", "bird", "that", "sang", "near", "our", "house", "while", "rain", "fell")


def add_token_range(parser: argparse.ArgumentParser) -> None:
    """Add `--token-range LOW:HIGH`, which becomes `Workload.tokens`."""
    parser.add_argument(
        "--token-range",
        dest="tokens",
        type=token_range,
        default="256:8000",
        help="range of prompt token ids, LOW:HIGH (default 256:8000)",
    )


def token_range(text: str) -> tuple[int, int]:
    """Parse LOW:HIGH. Raises ValueError."""
    low, high = text.split(":")
    return int(low), int(high)


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one shape. `prompt` is the number of tokens (words with `text`), the first `shared` of them the same
    in every prompt. Token ids are in `tokens` (low, high), high excluded. `seed` is that of all prompts; `request_seed`
    plus the number of the request is sent as its seed.
    """

    model: str
    prompt: int = 128
    shared: int = 0
    text: bool = False
    tokens: tuple[int, int] = (256, 8000)
    out: int = 64
    temperature: float = 0.8
    top_p: float = 0.95
    ignore_eos: bool = True
    seed: int = 0
    request_seed: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def prompt_ids(self, number: int) -> list[int]:
        """Return the token ids of prompt `number`: a function of (seed, number) alone."""
        shared = random.Random(f"{self.seed} shared")
        own = random.Random(f"{self.seed} {number}")
        low, high = self.tokens
        return [(shared if index < self.shared else own).randrange(low, high) for index in range(self.prompt)]

    def prompt_text(self, number: int) -> str:
        """Return prompt `number` as words."""
        shared = random.Random(f"{self.seed} shared")
        own = random.Random(f"{self.seed} {number}")
        return " ".join((shared if index < self.shared else own).choice(WORDS) for index in range(self.prompt))

    def body(self, number: int) -> dict[str, Any]:
        """Return the body of request `number`."""
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": self.prompt_text(number) if self.text else self.prompt_ids(number),
            "max_tokens": self.out,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.request_seed is not None:
            body["seed"] = self.request_seed + number
        return body | self.extra
