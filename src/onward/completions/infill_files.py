"""Other files as context of an infill: the repository-level prompt of Qwen2.5-Coder (arXiv 2409.12186, section 3.3).

The layout is that of llama-server (`format_prompt_infill` in tools/server/server-common.cpp).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from onward.completions.encode import encode_beginning
from onward.completions.infill import Infill
from onward.engine.model import Tokenizer

REPOSITORY_NAME = "myproject\n"
EDITED_FILE_NAME = "filename\n"
SNIPPET = "\n\n--- snippet ---\n\n"
"""What precedes a file where the vocabulary has no token for it."""


def encode_files(files: Sequence[tuple[str, str]], infill: Infill, tokenizer: Tokenizer, room: int) -> list[int]:
    """Return the tokens before an infill's own: at most `room`. Whole files are left out, the first ones first."""
    frame = [*_repository(infill, tokenizer), *_edited_file(infill, tokenizer)]
    if not files or len(frame) > room:
        return []
    room -= len(frame)
    blocks: list[list[int]] = []
    for name, text in reversed(files):
        block = _file(name, text, infill, tokenizer, room)
        if len(block) > room:
            break
        room -= len(block)
        blocks.append(block)
    return [*_repository(infill, tokenizer), *_joined(reversed(blocks)), *_edited_file(infill, tokenizer)]


def _repository(infill: Infill, tokenizer: Tokenizer) -> list[int]:
    if infill.repository is None:
        return []
    return [infill.repository, *tokenizer.encode(REPOSITORY_NAME, add_special_tokens=False)]


def _edited_file(infill: Infill, tokenizer: Tokenizer) -> list[int]:
    if infill.file is None:
        return []
    return [infill.file, *tokenizer.encode(EDITED_FILE_NAME, add_special_tokens=False)]


def _file(name: str, text: str, infill: Infill, tokenizer: Tokenizer, room: int) -> list[int]:
    """Return a file's tokens; of one that has more than `room`, at least one more than that."""
    if infill.file is None:
        return encode_beginning(SNIPPET + text, tokenizer, room + 1)
    return [infill.file, *encode_beginning(f"{name}\n{text}", tokenizer, room + 1)]


def _joined(blocks: Iterable[list[int]]) -> list[int]:
    return [token for block in blocks for token in block]
