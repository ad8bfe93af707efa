"""Decays of states in folders, which have the same bits on every machine."""

from __future__ import annotations

from decimal import Context, Decimal

import numpy as np
import pytest

from onward.checkpoints import state_spaces
from onward.checkpoints.state_spaces import powers


def test_powers_are_those_of_decimal_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    numbers = np.concatenate([
        random.normal(size=4000) * 3, random.uniform(-110, 95, 4000), [0.0, -0.0, 89.0, 1e9, -1e9, np.inf, -np.inf],
    ]).astype(np.float32).reshape(3, -1)  # fmt: skip
    wanted = [float(Decimal(float(np.clip(each, -1000, 1000))).exp(Context(prec=60))) for each in numbers.reshape(-1)]
    with np.errstate(over="ignore"):
        assert powers(numbers).tobytes() == np.array(wanted).astype(np.float32).reshape(3, -1).tobytes()
    monkeypatch.setattr(state_spaces, "_DOUBT", 1e-3)  # all are in doubt
    assert powers(numbers[:, ::8]).tobytes() == powers(numbers)[:, ::8].tobytes()
    assert np.isnan(powers(np.array([np.nan, 1.0], np.float32))).tolist() == [True, False]


def test_few_decimal_numbers_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a folder with millions of numbers, they would take hours."""
    asked: list[float] = []

    def counted(number: float) -> Decimal:
        asked.append(number)
        return Decimal(number)

    monkeypatch.setattr(state_spaces, "Decimal", counted)
    powers(np.linspace(-80, 80, 100_000, dtype=np.float32))
    powers(np.full(100_000, 0.1, np.float32))
    assert len(asked) < 100
