"""What a fingerprint promises with an upstream: the same bytes, or, with most servers, nothing."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from onward.compose import load_tokenizer, upstreams
from onward.compose.served import _fingerprint
from onward.compose.upstreams import BATCH_INVARIANT, fingerprint_of, promises_bytes, resolve_tokenizer, tokenizer_check
from onward.engines.upstreams.base import UpstreamError
from onward.errors import ModelNameError, SetupError, TextNotEncodable
from onward.models.hub import HubName
from onward.settings import Settings, UpstreamName
from onward.values import ContentFilterSetting
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny

UPSTREAMS = ("llama-server b1 /m.gguf 1 2", "vllm 0.1 model", "sglang 0.1 model")


@pytest.mark.parametrize("filters", [(), (ContentFilterSetting("secrets", ("x.",)),)])
def test_only_engines_that_compute_the_same_bits_again_promise_bytes(
    filters: tuple[ContentFilterSetting, ...],
) -> None:
    settings = Settings(content_filter=filters)
    own = "fp_0a1b2c3d4e5f"
    fingerprints = [_fingerprint(settings, "", fingerprint_of(description)) for description in UPSTREAMS]
    assert not any(map(promises_bytes, fingerprints)), fingerprints
    assert promises_bytes(_fingerprint(settings, "", own))
    assert promises_bytes(_fingerprint(settings, "", fingerprint_of(UPSTREAMS[1], BATCH_INVARIANT)))
    assert (_fingerprint(settings, "", own) == own) == (not filters), "filters change the text"


CODER = UpstreamName("coder", "vllm", ("http://127.0.0.1:1",))


@pytest.fixture
def awq(tmp_path: Path) -> Path:
    """A folder with weights that vLLM computes, and Onward does not."""
    write_folder(tmp_path / "awq", "llama")
    config = json.loads((tmp_path / "awq/config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {"quant_method": "awq"}
    (tmp_path / "awq/config.json").write_text(json.dumps(config), encoding="utf-8")
    return tmp_path / "awq"


@pytest.fixture
def unheard_of(tmp_path: Path) -> Path:
    """A GGUF file of an architecture that llama.cpp may compute, and Onward does not."""
    metadata, tensors = tiny("llama")
    metadata = {key.replace("llama.", "unheard."): value for key, value in metadata.items()}
    return write_gguf(tmp_path / "m.gguf", metadata | {"general.architecture": "unheard"}, tensors)


@pytest.mark.parametrize("model", ["awq", "unheard_of"])
def test_the_tokenizer_of_a_model_that_only_the_upstream_computes_is_read(
    model: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    path = str(request.getfixturevalue(model))
    settings = Settings(model=(path,), tokenizer=(("coder", path),), cache_dir=tmp_path)
    found = resolve_tokenizer(CODER, settings, lambda line: None)
    ids = found.files.load_tokenizer(tmp_path).encode("a", add_special_tokens=False)
    assert found.id == "coder" and len(ids) > 0
    assert load_tokenizer(None, settings).encode("a", add_special_tokens=False) == ids, "as `onward tokenize` does"


@pytest.mark.parametrize("is_offline", [True, False])
def test_of_a_model_on_the_hub_only_the_tokenizer_is_downloaded(
    is_offline: bool, awq: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fetch(name: HubName, **options: Any) -> Path:
        asked.append((name.repository, options))
        (tmp_path / "snapshot").mkdir()
        for file in ("tokenizer.json", "config.json"):
            shutil.copy(awq / file, tmp_path / "snapshot")
        return tmp_path / "snapshot"

    monkeypatch.setattr(upstreams, "fetch_tokenizer", fetch)
    settings = Settings(tokenizer=(("coder", "org/name"),), cache_dir=tmp_path, offline=is_offline)
    found = resolve_tokenizer(CODER, settings, lambda line: None)
    assert found.files.load_tokenizer(tmp_path).encode("a", add_special_tokens=False)
    assert asked == [("org/name", {"allow_download": not is_offline})] and found.created > 0


@pytest.mark.parametrize("word", ["a" * 300 + "/b", "~nobody-here/model"])
def test_a_word_that_cannot_be_looked_up_is_refused_in_a_sentence(word: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNameError, match="is not the name of a model and cannot be looked up"):
        load_tokenizer(None, Settings(model=(word,), offline=True, cache_dir=tmp_path))


def test_what_two_tokenizers_are_compared_by_is_encoded_before_there_is_a_connection() -> None:
    """On its event loop, which all requests to the upstream share, a tokenizer's process would hold them up."""
    tokenizer, connected = Mock(), AsyncMock()
    tokenizer.encode.side_effect = [[1, 2]]
    check = tokenizer_check("m", tokenizer)
    connected.encode.side_effect = [[1, 2], [1, 3]]
    asyncio.run(check("http://a", connected))
    with pytest.raises(UpstreamError, match="its tokenizer is not that of m"):
        asyncio.run(check("http://a", connected))
    tokenizer.encode.side_effect = TextNotEncodable("it takes too long")
    with pytest.raises(SetupError, match="tokenizer of m cannot be used: it takes too long"):
        tokenizer_check("m", tokenizer)
