"""Files of model folders that several formats share: presence, JSON, and what config.json states.

Problems are sentences that say what to do. Cheap to import.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from onward.errors import ModelFolderError

TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
TOKENIZER_FILES = (TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "generation_config.json", CONFIG)
"""All files from which a tokenizer is built; only the first is required."""

_AGAIN = "copy or download it again"
_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len")


def present(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of `folder` with these names that exist, in the order of `names`; [] if it is not a folder."""
    try:
        return [path for name in names if (path := folder / name).is_file()]
    except PermissionError:
        return []


def missing_file(path: Path) -> str:
    """Return the sentence for a required file that does not exist."""
    return f"{path.parent} has no {path.name}: {_AGAIN}."


def file_problem(path: Path) -> str | None:
    """Return what is wrong with a required binary or text file, None if it exists and is not empty."""
    if not path.is_file():
        return missing_file(path)
    if path.stat().st_size == 0:
        return f"{path} is empty: {_AGAIN}."
    return None


def json_problem(path: Path) -> str | None:
    """Return what is wrong with a JSON file that exists, None if it contains an object."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        return f"{path} is not valid JSON ({error}): {_AGAIN}."
    return None if isinstance(content, dict) else f"{path} is not a JSON object: {_AGAIN}."


def tokenizer_problem(folder: Path) -> str | None:
    """Return what is wrong with the folder's tokenizer.json, None if it can be parsed."""
    path = folder / TOKENIZER
    return json_problem(path) if path.is_file() else missing_tokenizer(folder)


def missing_tokenizer(folder: Path) -> str:
    """Return the sentence for a folder without tokenizer.json."""
    command = "`AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`"
    return f"{folder} has no {TOKENIZER}: save it there with {command}."


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} where there is no such file. Raises ModelFolderError for a broken one."""
    if not path.is_file():
        return {}
    if problem := json_problem(path):
        raise ModelFolderError(problem)
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


def stated_context(config: dict[str, Any]) -> int | None:
    """Return the context length in tokens that a config.json states, None if it states none."""
    for part in (config, config.get("text_config") or {}):
        for key in _CONTEXT_KEYS:
            if isinstance(part.get(key), int) and part[key] > 0:
                return int(part[key])
    return None


def config_facts(folder: Path) -> dict[str, int | str]:
    """Return what config.json states, as `ModelFormat.facts`. Raises ModelFolderError for a broken file."""
    config = read_object(folder / CONFIG)
    context_length = stated_context(config)
    named = {"vocabulary": config.get("vocab_size"), "kind": config.get("model_type")}
    facts: dict[str, int | str] = {} if context_length is None else {"context_length": context_length}
    return facts | {key: value for key, value in named.items() if isinstance(value, int | str)}
