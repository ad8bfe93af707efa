"""Scalings of positions have the same bits on every machine: logarithms and powers are rounded correctly."""

from __future__ import annotations

import hashlib
from decimal import Context, Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from onward.checkpoints.rope_scaling import Yarn, llama3_factors, log, yarn_magnitude

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
TABLES: dict[str, tuple[NDArray[np.float64], str]] = {
    "llama 3.1": (llama3_factors(LLAMA3, 500_000.0, 128), "faa41d3e991eb89b"),
    "llama 3.2": (llama3_factors(LLAMA3 | {"factor": 32.0}, 500_000.0, 64), "8a802d28fe28e117"),
    "yarn, qwen": (Yarn(4.0, 32_768).factors(1_000_000.0, 128), "d40505ed16772b6f"),
    "yarn, gpt-oss": (Yarn(32.0, 4096, is_rounded=False).factors(150_000.0, 64), "5625ba43b8a7f275"),
    "yarn's magnitudes": (np.array([yarn_magnitude(x / 7, 1.0) for x in range(1, 2000)]), "5b42086c8495c29f"),
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_have_the_same_bits_everywhere(name: str) -> None:
    table, digest = TABLES[name]
    assert hashlib.sha256(table.astype("<f8").tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("rotated", [64, 128])
def test_factors_of_llama_3_are_those_of_the_published_cases(rotated: int) -> None:
    waves = 2 * np.pi * 500_000.0 ** (np.arange(0, rotated, 2) / rotated)
    smooth = (8192 / waves - 1) / 3
    wanted = np.where(waves < 2048, 1, np.where(waves > 8192, 8, 1 / ((1 - smooth) / 8 + smooth)))
    np.testing.assert_allclose(llama3_factors(LLAMA3, 500_000.0, rotated), wanted, rtol=1e-13)


def test_waves_are_long_or_short_where_none_may_be_between() -> None:
    """Llama 4 Scout's rule, whose two ends are one."""
    scout = LLAMA3 | {"factor": 16.0, "high_freq_factor": 1.0}
    waves = 2 * np.pi * 500_000.0 ** (np.arange(0, 128, 2) / 128)
    assert llama3_factors(scout, 500_000.0, 128).tolist() == np.where(waves > 8192, 16.0, 1.0).tolist()


@given(st.floats(min_value=1e-300, max_value=1e300))
def test_logarithms_are_rounded_correctly(number: float) -> None:
    assert log(number) == float(Decimal(number).ln(Context(prec=120)))


@pytest.mark.parametrize("base", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_bases_are_refused(base: float) -> None:
    with pytest.raises(ValueError, match="base is impossible"):
        llama3_factors(LLAMA3, base, 64)
