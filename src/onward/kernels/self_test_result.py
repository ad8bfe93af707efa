"""What a self-test found. A module of its own: an engine that needs no kernels of models tests its sampler without
importing what writes those."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SelfTest:
    """What a machine computed (`found`) and what it should have, both as digests."""

    subject: str
    found: str
    expected: str

    @property
    def problem(self) -> str:
        """A sentence for the operator; empty if all is well."""
        if self.found == self.expected:
            return ""
        return (
            f"The {self.subject} compute other numbers here than on other machines ({self.found[:8]} instead of "
            f"{self.expected[:8]}): results have a fingerprint of their own, and no other engine continues them. "
            "Please report the processor, and the versions that `onward doctor` lists."
        )
