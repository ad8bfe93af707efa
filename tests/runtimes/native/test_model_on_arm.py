"""Whole models on an ARM, which is emulated: every logit has the bits of this processor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from onward.engine.model import ModelRunner, Row
from onward.kernels.compiler import compile_object
from onward.kernels.recipe import Recipe
from onward.kernels.targets import FORMS
from onward.runtimes.base import LoadedModel
from onward.runtimes.native import load as native_load
from tests.checkpoints.making import Stored, floats, write_gguf
from tests.checkpoints.test_architectures import OF_FOLDERS
from tests.checkpoints.tiny import ARCHITECTURES, tiny
from tests.kernels.emulated import ARM_FORMS, EmulatedCode, executable_forms
from tests.runtimes.native.test_model import DIFFERENT_NAMES, load, usual_blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("neon" not in executable_forms(), reason="ARM is emulated on Linux, on x86-64, by unicorn"),
]
KINDS = ("Q8_0", "Q4_1", "Q5_0", "F16", "Q4_0")
NAMES = [name for name in DIFFERENT_NAMES if name not in OF_FOLDERS]
NAMES += [name for name in ARCHITECTURES if name not in {*NAMES, *OF_FOLDERS}]
CASES = [
    pytest.param(
        name, KINDS[i % len(KINDS)], ("fast", "exact")[i // 2 % 2], ARM_FORMS[i % 2],
        marks=[] if name in DIFFERENT_NAMES else pytest.mark.companion,
    )
    for i, name in enumerate(NAMES)
]  # fmt: skip
"""Every architecture, with types of weights, precisions and forms in turn. The first differ in what they compute; the
others are companions."""


def write(folder: Path, name: str, kind: str) -> Path:
    """Write a tiny model whose matrices have a type with blocks of 32 where their rows are whole blocks, or are not
    quantised."""
    metadata, tensors = tiny(name)
    stored: dict[str, Stored] = {}
    for seed, (key, array) in enumerate(tensors.items()):
        is_whole = array.ndim > 1 and array.shape[-1] % 32 == 0 and "gate_inp" not in key and "bias" not in key
        rows = array.size // array.shape[-1]
        stored[key] = usual_blocks(kind, rows, array.shape[-1], seed) if is_whole else floats(array)
        stored[key] = stored[key][0], array.shape, stored[key][2]
    return write_gguf(folder / "m.gguf", metadata, stored)


def logits_of(loaded: LoadedModel) -> list[NDArray[np.float32]]:
    """Return the logits of a prompt and of two tokens after it, one at a time."""
    model, tokens = loaded.model, [3, 14, 15, 9, 2, 6, 5, 25, 8, 9]
    blocks = range(model.shape.blocks_for(len(tokens)))
    make_all_experts(model)
    try:
        found = [model.evaluate([Row(0, tokens[:8], 0, blocks, 8)]).copy()]
        found += [model.evaluate([Row(0, tokens[at : at + 1], at, blocks, 1)]).copy() for at in (8, 9)]
    finally:
        model.close()
    return found


def make_all_experts(model: ModelRunner) -> None:
    """Emulated code cannot call Python: load all experts before it needs them."""
    cache = model._experts  # type: ignore[attr-defined]
    if cache is not None:
        for index in range(len(cache.experts)):
            cache._make(index, np.arange(cache.routing.count))


@pytest.mark.parametrize(("name", "kind", "precision", "form"), CASES)
def test_an_arm_computes_the_logits_of_this_processor(
    name: str, kind: str, precision: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, target = write(tmp_path, name, kind), FORMS[form]
    expected = logits_of(load(path, precision=precision))
    monkeypatch.setattr(native_load, "host", lambda: target)

    def compiled(*recipes: Recipe, **_: object) -> EmulatedCode:
        return EmulatedCode(compile_object(recipe.text(), target) for recipe in recipes)

    monkeypatch.setattr(native_load, "load_code", compiled)
    found = logits_of(load(path, precision=precision))
    assert [each.tobytes() for each in found] == [each.tobytes() for each in expected]
