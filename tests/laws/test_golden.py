"""Logits have the committed hashes, on every machine and in every form of the kernels."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from onward.checkpoints.table import ARCHITECTURES
from onward.kernels import targets
from onward.values import Precision
from tests.examples import slow_but
from tests.kernels.emulated import runnable_forms
from tests.laws.golden import (
    FILE,
    NAMES,
    PRECISIONS,
    TYPES,
    logits_hash,
    sampled_hash,
    storyteller_hash,
    tokens_hash,
    type_hash,
)

GOLDEN = json.loads(FILE.read_text(encoding="utf-8"))
CHANGED = "Kernels have other bits. If that is meant, raise KERNELS_REVISION and run `python -m tests.laws.golden`."


def test_every_architecture_has_hashes() -> None:
    assert {name.partition(",")[0] for name in NAMES} == ARCHITECTURES.keys()


@pytest.mark.parametrize("name", slow_but(["llama", "gemma3"], NAMES))
@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_have_the_same_bits_everywhere(name: str, precision: Precision, tmp_path: Path) -> None:
    assert logits_hash(name, precision, tmp_path) == GOLDEN[f"{name} {precision}"], CHANGED


@pytest.mark.slow
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_weights_of_every_type_have_the_same_bits_everywhere(kind: str, precision: Precision, tmp_path: Path) -> None:
    assert type_hash(kind, precision, tmp_path) == GOLDEN[f"{kind} {precision}"], CHANGED


@pytest.mark.real
@pytest.mark.parametrize("precision", slow_but(["fast"], PRECISIONS))
def test_the_built_in_model_has_the_same_bits_everywhere(precision: Precision) -> None:
    assert storyteller_hash(precision) == GOLDEN[f"storyteller {precision}"], CHANGED


@pytest.mark.real
@pytest.mark.parametrize("precision", slow_but(["fast"], PRECISIONS))
def test_the_same_seed_samples_the_same_text_everywhere(precision: Precision) -> None:
    assert sampled_hash(precision) == GOLDEN[f"storyteller {precision} sampled"], CHANGED


@pytest.mark.real
def test_the_built_in_model_has_the_same_token_ids_everywhere() -> None:
    assert tokens_hash() == GOLDEN["storyteller tokens"]


@pytest.mark.slow
@pytest.mark.parametrize("form", sorted(runnable_forms()))
@pytest.mark.parametrize("name", ["llama", "gemma3", "gptneox", "lfm2", "gemma4, experts"])
def test_every_form_has_the_same_bits(name: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, target = targets.host, runnable_forms()[form]
    for module in list(sys.modules.values()):
        if getattr(module, "host", None) is real:
            monkeypatch.setattr(module, "host", lambda: target)
    for precision in PRECISIONS:
        assert logits_hash(name, precision, tmp_path) == GOLDEN[f"{name} {precision}"]
