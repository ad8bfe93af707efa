"""Requests and tokens by the name of the key that was sent."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter

from onward.server.record import RequestRecord


class KeyMetrics:
    """Counts what the named keys are used for. Labels are names that the operator wrote into the key file, only."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._requests = Counter(
            "onward_key_requests", "HTTP requests by the name of their key.", ["key"], registry=registry
        )
        self._tokens = Counter(
            "onward_key_tokens",
            "Tokens by the name of the key. Kind: prompt or completion.",
            ["key", "kind"],
            registry=registry,
        )
        self._names: set[str] = set()

    def count(self, record: RequestRecord) -> None:
        """Count a request that has ended."""
        if record.key == "-":
            return
        self._names.add(record.key)
        self._requests.labels(record.key).inc()
        self.count_tokens(record.key, record.prompt_tokens, record.completion_tokens)

    def count_tokens(self, key: str, prompt_tokens: int, completion_tokens: int) -> None:
        """Count tokens of the key of this name, of a request that is counted."""
        if key in self._names:
            self._tokens.labels(key, "prompt").inc(prompt_tokens)
            self._tokens.labels(key, "completion").inc(completion_tokens)

    def keep(self, names: frozenset[str]) -> None:
        """Drop the counts of all other keys, so that a file that changes often does not add labels for ever."""
        for name in self._names - names:
            self._requests.remove(name)
            self._tokens.remove(name, "prompt")
            self._tokens.remove(name, "completion")
        self._names &= names
