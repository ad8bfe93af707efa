"""Distances from exact log-probabilities: each token of a text is compared, llama-server's too. Speed is not tested."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from benchmarks.precision import peer_logprobs, token_logprobs

from benchmarks import precision
from onward.model_files.gguf import GGUFFiles
from onward.runtimes.base import RuntimeOptions
from onward.runtimes.table import load_model
from tests.engines.upstreams.byte_model import find_llama_server, write_byte_model


def test_the_table_has_a_row_per_variant(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--tokens", "60", "--rounds", "0", "--num-passages", "2", "--weights", "auto", "int8"]
    monkeypatch.setattr(sys, "argv", ["precision", "storyteller", *options])
    precision.main()
    printed = capsys.readouterr()
    exact, fast = printed.out.splitlines()[-2:]
    assert exact.startswith("| exact | 0.0000 | 0.000 | 0.00 | +0.0000 |")
    assert fast.startswith("| fast, auto | 0.0") and not fast.startswith("| fast, auto | 0.0000")
    assert "fast, int8 is left out" in printed.err


@pytest.mark.slow
def test_llama_server_computes_each_token_of_a_text(tmp_path: Path) -> None:
    path = write_byte_model(tmp_path / "m.gguf")
    model = load_model(GGUFFiles(path), RuntimeOptions(precision="exact"), lambda line: None).model
    pieces = np.random.default_rng(1).integers(97, 123, (2, 30)).tolist()
    try:
        own = token_logprobs(model, pieces)
    finally:
        model.close()
    theirs = peer_logprobs(Path(find_llama_server()), path, pieces)
    assert theirs.shape == own.shape == (58,) and np.ptp(own) > 1.0
    assert np.abs(theirs - own).max() < 0.05, "keys and values are float16 there"
