"""Products are measured against the machine's limits: what is counted, and how it is shown."""

from __future__ import annotations

import re
from typing import Any

import pytest
from benchmarks.products import ROWS, exact_host_lines, kinds, plot, products_section, run

pytestmark = pytest.mark.usefixtures("small_memory")


def test_each_type_is_measured_with_every_form_of_activations_that_it_has() -> None:
    wanted = kinds(["Q4_0", "Q4_K", "F16"], ["int8", "float32"])
    assert [kind.name for kind in wanted] == [
        "Q4_0_int8", "Q4_0_float32", "Q4_K_int8", "Q4_K_float32", "F16_float32",
    ]  # fmt: skip


def test_every_product_is_compared_with_the_limits() -> None:
    wanted = [*kinds(["Q8_0"], ["int8"]), *kinds(["F16"], ["float32"])]
    figures = run(wanted, threads=2, rounds=1, outputs=64, inputs=256, turns=50)
    assert list(figures["products"]) == ["Q8_0_int8", "F16_float32"]
    assert all(value > 0 for value in figures["limits"].values())
    for by_rows in figures["products"].values():
        assert list(by_rows) == [str(rows) for rows in ROWS]
        assert all(value > 0 for rates in by_rows.values() for value in rates.values())
    rates = figures["products"]["Q8_0_int8"]["1"]
    assert abs(rates["gb_s"] / rates["gmac_s"] - 34 / 32) < 1e-9, "34 bytes and 32 products per block, in the same time"


def figures_of(rates: dict[str, float]) -> dict[str, Any]:
    """Figures as `run` returns them: for each product the same rate for any number of rows."""
    products = {name: {str(rows): {"gb_s": 0.5, "gmac_s": rate} for rows in ROWS} for name, rate in rates.items()}
    limits = {"read_gb_s": 1.0, "fma_gmac_s": 1.0, "dot_gmac_s": 1.0}
    return {"isa": "x", "threads": 1, "limits": limits, "products": products}


def test_products_are_shown_beside_the_limits() -> None:
    rates = {"Q4_0_int8": 30.0, "Q4_0_float32": 10.0, "Q4_K_int8": 20.0, "Q4_K_float32": 5.0, "F16_float32": 8.0}
    figures = figures_of(rates)
    text = products_section(figures)
    assert text[5 + len(rates)] == "| F16, float32 | 0.5 | 50% |" + " 8.0 |" * len(ROWS)
    assert [line.partition(" |")[0] for line in text[-2:]] == ["| Q4_0", "| Q4_K"]
    assert plot(figures).count('<path class="line') == 2 * 2 * 3  # two panels of two types and a limit, and legends


def test_forms_of_activations_are_compared_by_their_time() -> None:
    figures = figures_of({"Q4_K_int8": 30.0, "Q4_K_int16": 20.0, "Q4_K_float32": 10.0})
    assert products_section(figures)[-3:] == [
        "| weights | int16 | float32 |", "|---|--:|--:|", "| Q4_K | 1.50 / 1.50 / 1.50 | 3.00 / 3.00 / 3.00 |",
    ]  # fmt: skip


@pytest.mark.slow
def test_kernels_for_exactly_this_processor_are_compared() -> None:
    *_, line = exact_host_lines(kinds(["Q8_0"], ["int8"]), rounds=2, outputs=64, inputs=256)
    name, *ratios = [cell.strip() for cell in line.strip("|").split("|")]
    assert (
        name == "Q8_0, int8" and len(ratios) == len(ROWS) and all(re.fullmatch(r"\d+\.\d\d", ratio) for ratio in ratios)
    )
