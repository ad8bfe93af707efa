"""Files of model folders that several formats share: which are present, and what config.json states.

Problems are sentences that say what to do. Files may come from anywhere, so they are bounded before they are parsed.
Cheap to import.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from onward.checkpoints.json_files import AGAIN, read_bounded, read_object, require_object
from onward.errors import ModelFolderError

TOKENIZER = "tokenizer.json"
CONFIG = "config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SENTENCE_PIECE = "tokenizer.model"
VOCABULARY, MERGES = "vocab.json", "merges.txt"
ADDED_TOKENS = "added_tokens.json"
"""These count where tokenizer.json is missing."""
SPECIAL_TOKENS = "special_tokens_map.json"
GENERATION_CONFIG = "generation_config.json"
CHAT_TEMPLATE = "chat_template.jinja"
TEKKEN, TIKTOKEN = "tekken.json", "tiktoken.model"
TOKENIZER_FILES = (
    TOKENIZER, SENTENCE_PIECE, TEKKEN, TIKTOKEN, VOCABULARY, MERGES, ADDED_TOKENS, TOKENIZER_CONFIG, SPECIAL_TOKENS,
    GENERATION_CONFIG, CONFIG, CHAT_TEMPLATE,
)  # fmt: skip
"""All files from which a tokenizer is built; the first one is enough, or the second, the third, the fourth with
tokenizer_config.json, or the fifth and sixth."""

_OF_IMAGES = frozenset({"<image_soft_token>"})

MAX_TEMPLATE_BYTES = 1_000_000
"""Of a chat template; the largest known ones have twenty thousand."""
MAX_TOKENIZER_BYTES = 64_000_000
"""Of tokenizer.json: twice the largest known one, with 262,000 tokens and 514,000 merges."""
MAX_TOKENIZER_ENTRIES = 12_000_000
"""Commas and colons in tokenizer.json, which bound what is built from it. The largest known one has two million."""
MAX_CONTEXT_TOKENS = 1 << 31
"""A larger stated context length is ignored: some configurations mean "unlimited" by 10**30."""

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing, and the folders that it lies in. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def present(folder: Path, names: Iterable[str]) -> list[Path]:
    """Return the files of `folder` with these names that exist, in the order of `names`; [] if it is not a folder.

    Pipes and devices count: as files that have a problem.
    """
    try:
        return [path for name in names if (path := folder / name).exists() and not path.is_dir()]
    except OSError:
        return []


def missing_file(path: Path) -> str:
    """Return the sentence for a required file that does not exist."""
    if path.is_symlink():
        return f"{path} is a link that leads nowhere: {AGAIN}."
    return f"{path.parent} has no {path.name}: {AGAIN}."


def file_problem(path: Path) -> str | None:
    """Return what is wrong with a required binary or text file, None if it exists and is not empty."""
    try:
        status = path.stat()
    except OSError:
        return missing_file(path)
    if not stat.S_ISREG(status.st_mode):
        return f"{path} is not a regular file: {AGAIN}."
    if status.st_size == 0:
        return f"{path} is empty: {AGAIN}."
    return None


def read_if_present(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, {} where there is no such file. Raises ModelFolderError for a broken one."""
    return read_object(path) if present(path.parent, [path.name]) else {}


def json_problem(path: Path) -> str | None:
    """Return what is wrong with a JSON file, None if it contains an object, or does not exist."""
    try:
        read_if_present(path)
    except ModelFolderError as problem:
        return str(problem)
    return None


def read_tokenizer(path: Path) -> bytes:
    """Return the content of a tokenizer.json, a JSON object of bounded size. Raises ModelFolderError."""
    if not present(path.parent, [path.name]):
        raise ModelFolderError(missing_tokenizer(path.parent))
    content = read_bounded(path, MAX_TOKENIZER_BYTES)
    if content.count(b",") + content.count(b":") > MAX_TOKENIZER_ENTRIES:
        raise ModelFolderError(f"{path} has more entries than any vocabulary: {AGAIN}.")
    require_object(content, path)
    return content


def tokenizer_problem(folder: Path) -> str | None:
    """Return what is wrong with the folder's tokenizer.json, None if it can be parsed, or is not needed."""
    if tokenizer_source(folder) != TOKENIZER:
        return None
    try:
        read_tokenizer(folder / TOKENIZER)
    except ModelFolderError as problem:
        return str(problem)
    return None


def rows_problem(where: str, tokens: Mapping[int, str], num_rows: int) -> str | None:
    """Return what is wrong with `tokens`, texts by id, where the model has rows for so many, None if they all have one.

    Gemma's small models have no row for the token that stands for an image.
    """
    missing = {token: text for token, text in tokens.items() if token >= num_rows and text not in _OF_IMAGES}
    if not missing:
        return None
    highest = max(missing)
    return (
        f"{where} has the token {missing[highest][:40]!r} with the id {highest}, but the model has {num_rows} rows of "
        "embeddings: tokens were added without resizing it."
    )


def added_tokens(folder: Path) -> dict[int, str]:
    """Return the tokens that a folder's tokenizer.json adds, by id; {} where there are none, or no such file."""
    import msgspec

    entry = msgspec.defstruct("Entry", [("id", int), ("content", str)])
    whole = msgspec.defstruct("Whole", [("added_tokens", list[entry], msgspec.field(default_factory=list))])  # type: ignore[valid-type]
    try:
        found: Any = msgspec.json.decode(read_tokenizer(folder / TOKENIZER), type=whole)
    except (ModelFolderError, msgspec.MsgspecError):
        return {}
    return {each.id: each.content for each in found.added_tokens}


def tokenizer_source(folder: Path) -> str:
    """Return the name of the file that a folder's tokenizer is in: tokenizer.json, else tokenizer.model, tekken.json or
    tiktoken.model, else vocab.json if merges.txt is next to it; tokenizer.json where there is none of them."""
    names = [path.name for path in present(folder, (TOKENIZER, SENTENCE_PIECE, TEKKEN, TIKTOKEN, VOCABULARY, MERGES))]
    if not names or names == [MERGES] or names == [VOCABULARY]:
        return TOKENIZER
    return names[0]


def missing_tokenizer(folder: Path) -> str:
    """Return the sentence for a folder without tokenizer.json."""
    command = "`AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`"
    if (folder / TOKENIZER).is_symlink():
        return missing_file(folder / TOKENIZER)
    return f"{folder} has no {TOKENIZER}: save it there with {command}."


def stated_context(config: dict[str, Any]) -> int | None:
    """Return the context length in tokens that a config.json states, None if it states none."""
    for part in (config, config.get("text_config")):
        for key in _CONTEXT_KEYS:
            stated = part.get(key) if isinstance(part, dict) else None
            if type(stated) is int and 0 < stated <= MAX_CONTEXT_TOKENS:
                return stated
    return None


def _original_context(config: dict[str, Any]) -> int | None:
    """Return the context of the first training, where positions are scaled for a longer one."""
    key = "original_max_position_embeddings"
    for part in (config, config.get("rope_scaling"), config.get("rope_parameters")):
        if isinstance(part, dict) and type(stated := part.get(key)) is int:
            return stated
    return None


def config_facts(folder: Path) -> dict[str, int | str]:
    """Return what config.json states, as `ModelFiles.facts`. Raises ModelFolderError for a broken file."""
    config = read_if_present(folder / CONFIG)
    context_length = stated_context(config)
    named = {"vocabulary": config.get("vocab_size"), "kind": config.get("model_type")}
    facts: dict[str, int | str] = {} if context_length is None else {"context_length": context_length}
    if (original := _original_context(config)) is not None:
        facts["original_context_length"] = original
    return facts | {key: value for key, value in named.items() if isinstance(value, int | str)}
