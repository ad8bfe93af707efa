"""From settings to an engine: how many sequences with states run together, and the message about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from onward.compose.engine import EngineConfig, load_models, make_engine
from onward.models.resolve import resolve
from onward.settings import Settings
from tests.checkpoints.tiny import write_tiny


@pytest.mark.parametrize(
    ("max_rows", "prefix_cache", "most", "note"),
    [
        (2, True, 2, ""),
        (300, True, 21, "24 states fit into --kv-memory, of which 3 are kept for shared prefixes."),
        (300, False, 24, "24 states fit into --kv-memory."),
    ],
)
def test_as_many_sequences_as_have_states_are_computed_together(
    max_rows: int, prefix_cache: bool, most: int, note: str, tmp_path: Path
) -> None:
    path, notes = write_tiny(tmp_path / "qwen35.gguf", "qwen35"), list[str]()
    settings = Settings(
        kv_memory=4_000_000, threads=1, cache_dir=tmp_path, max_rows=max_rows, prefix_cache=prefix_cache
    )
    found = resolve(str(path))
    config = EngineConfig.create(found, settings)
    models = load_models(config, notes.append)
    engine, info = make_engine(config, models, found.files.load_tokenizer())
    engine.close()
    assert info.max_rows == most
    said = [each for each in notes if each.startswith("At most")]
    wanted = f"At most {most} sequences are computed together, fewer than the {max_rows} of --max-rows: "
    assert said == ([f"{wanted}{note} Raise it for more."] if note else [])
