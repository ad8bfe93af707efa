"""Token ids are llama.cpp's, on every line of a corpus (`token_ids.py` recorded llama.cpp's)."""

from __future__ import annotations

import pytest

from onward.model_files.gguf import GGUFFiles
from tests.real_models.corpus import NUM_LINES, lines
from tests.real_models.fetch import LARGE_MODELS, MODELS, fetched
from tests.real_models.token_ids import FOLDER, checksum


@pytest.mark.slow
@pytest.mark.companion
@pytest.mark.parametrize("model", [*MODELS, *LARGE_MODELS])
def test_token_ids_are_those_of_llama_cpp(model: str) -> None:
    path = fetched(model)
    expected = (FOLDER / f"{model}.txt").read_text(encoding="utf-8").split()
    assert len(expected) == NUM_LINES
    tokenizer = GGUFFiles(path).load_tokenizer()
    different = [
        line
        for line, wanted in zip(lines(), expected, strict=True)
        if checksum(tokenizer.encode(line, add_special_tokens=False)) != wanted
    ]
    assert not different, f"{len(different)} lines differ, the first ones: {different[:5]!r}"
