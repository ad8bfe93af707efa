"""What a client's checks found."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Report:
    """Checks of one client, in order: name and, where one failed, why. `skipped` says why there are none."""

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
        """Run the decorated function at once and keep how it went."""

        def run(function: Callable[[], object]) -> None:
            try:
                function()
                self.checks.append((name, None))
            except Exception:
                self.checks.append((name, traceback.format_exc()))

        return run

    def read(self, output: str) -> None:
        """Take the lines of a client program; other output is passed over."""
        for line in output.splitlines():
            if line.startswith('{"check"'):
                value = json.loads(line)
                self.checks.append((value["check"], None if value["ok"] else value["detail"]))
