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
        self._tokens.labels(record.key, "prompt").inc(record.prompt_tokens)
        self._tokens.labels(record.key, "completion").inc(record.completion_tokens)

    def keep(self, names: frozenset[str]) -> None:
        """Drop the counts of all other keys, so that a file that changes often does not add labels for ever."""
        for name in self._names - names:
            self._requests.remove(name)
            self._tokens.remove(name, "prompt")
            self._tokens.remove(name, "completion")
        self._names &= names
