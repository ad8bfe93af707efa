"""Masks of grammars as vLLM's own library computes them: run by vLLM's Python, with nothing of Onward.

Reads JSON from standard input: the folder of a tokenizer, the size of the vocabulary, and walks, each a grammar and
tokens. Writes, for each walk, how many tokens are allowed before each of its tokens and after the last, with a digest
of them, or an error. Does what `vllm.v1.structured_output.backend_guidance` does with a request's
`structured_outputs.grammar`.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
from typing import Any


def summary(allowed: Any) -> list[Any]:
    """Return how many tokens are allowed, and a digest of them: `allowed` is bool [vocabulary]."""
    ids = allowed.nonzero()[0].astype("<i8")
    return [len(ids), hashlib.blake2b(ids.tobytes(), digest_size=8).hexdigest()]


def summaries(tokenizer: Any, grammar: str, tokens: list[int]) -> list[list[Any]] | str:
    """Return what is allowed at each position, or an error."""
    import llguidance
    import numpy as np

    matcher = llguidance.LLMatcher(tokenizer, llguidance.grammar_from("grammar", grammar), log_level=0)
    found = []
    for token in [*tokens, None]:
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        found.append(summary(bits[: tokenizer.vocab_size]))
        if token is not None:
            matcher.consume_tokens([token])
        if matcher.is_error():
            return str(matcher.get_error())
    return found


def main() -> None:
    import llguidance.hf

    transformers = importlib.import_module("transformers")
    asked = json.load(sys.stdin)
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked["folder"])
    library = llguidance.hf.from_tokenizer(tokenizer, max(asked["vocab_size"], len(tokenizer)))
    json.dump([summaries(library, grammar, tokens) for grammar, tokens in asked["walks"]], sys.stdout)


if __name__ == "__main__":
    main()
