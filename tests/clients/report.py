"""Results of a client's checks."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Checks of one client, in order: the name, and the reason if it failed. `skipped` says why there are none."""

    client: str
    version: str = ""
    checks: list[tuple[str, str | None]] = field(default_factory=list)
    skipped: str = ""

    @property
    def failed(self) -> list[tuple[str, str]]:
        return [(name, why) for name, why in self.checks if why is not None]

    @property
    def verdict(self) -> str:
        if self.skipped:
            return f"SKIPPED: {self.skipped}"
        return f"{len(self.failed)} of {len(self.checks)} FAILED" if self.failed else "passed"

    def check(self, name: str) -> Callable[[Callable[[], object]], None]:
        """Run the decorated function at once and record the result."""

        def run(function: Callable[[], object]) -> None:
            try:
                function()
                self.checks.append((name, None))
            except Exception:
                self.checks.append((name, traceback.format_exc()))

        return run

    def read(self, output: str) -> None:
        """Record the results that a client program printed; other output is ignored."""
        for line in output.splitlines():
            if line.startswith('{"check"'):
                value = json.loads(line)
                self.checks.append((value["check"], None if value["ok"] else value["detail"]))
