"""The random model of the benchmarks is one that Onward serves, with text for every token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.random_ir import QWEN_05B, write

from onward.runtimes.formats import format_of
from onward.runtimes.openvino.load import load_model
from onward.runtimes.options import RuntimeOptions


def test_a_random_model_is_loaded_and_every_token_has_text(tmp_path: Path) -> None:
    shape = replace(QWEN_05B, layers=1, hidden=64, heads=4, wide=2, vocab=300, context_length=256)
    folder = write(tmp_path, shape)
    found = format_of(folder)
    assert found is not None and found.problems(folder) == []
    model = load_model(folder, RuntimeOptions(kv_memory=2**22))
    try:
        assert (model.vocab_size, model.context_length) == (300, 256)
    finally:
        model.close()
    tokenizer = found.load_tokenizer(folder)
    assert all(tokenizer.token_bytes(token) for token in range(300))
