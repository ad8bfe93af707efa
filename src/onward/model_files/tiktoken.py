"""tiktoken.model, the vocabulary of Kimi's folders, by GGUF's names: tokens as bytes, by rank, and after them 256
special ones, which tokenizer_config.json names (Moonshot's tokenization_kimi.py and tokenization_moonshot.py).

A text is cut as theirs is, by the rule that GGUF files call "kimi-k2". A piece that is a token as a whole is not merged
from smaller ones, as in OpenAI's library, and no start token is put before a text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from onward.checkpoints.cursor import MetadataValue
from onward.checkpoints.json_files import read_bounded
from onward.checkpoints.types import CONTROL, NORMAL
from onward.errors import ModelFolderError
from onward.model_files.files import MAX_TOKENIZER_BYTES, TOKENIZER_CONFIG, read_if_present
from onward.model_files.tekken import MAX_TOKENS, ranked_metadata, texts_by_rank

_RULE = "kimi-k2"
_CLASS = "TikTokenTokenizer"
_NUM_SPECIAL, _MAX_SPECIAL = 256, 258
"""Some of the authors' classes count two more, which the configuration of Kimi-Linear names, too."""
_LINE = re.compile(rb"(\S+) ([0-9]{1,7})")


def tiktoken_metadata(path: Path, added: Mapping[int, tuple[str, int]]) -> dict[str, MetadataValue]:
    """Return what a file states, with the merges that its ranks mean. `added`: texts and kinds of tokens that the
    folder's configuration names, by id. Slow: seconds. Raises ModelFolderError."""
    configuration = path.parent / TOKENIZER_CONFIG
    if (stated := read_if_present(configuration).get("tokenizer_class")) != _CLASS:
        raise ModelFolderError(
            f"{configuration} states {str(stated)[:40]!r} as 'tokenizer_class' instead of {_CLASS!r}, and how a text "
            f"is cut is not in {path.name}: save a tokenizer.json there, or use the model as a GGUF file."
        )
    ordinary = _ordinary_tokens(path)
    first, last = len(ordinary), max(added, default=-1)
    count = max(_NUM_SPECIAL, last + 1 - first)
    if not added or min(added) < first or count > _MAX_SPECIAL:
        raise ModelFolderError(
            f"{configuration} names special tokens with ids from {min(added, default=0)} to {last} "
            f"('added_tokens_decoder'), but {path.name} has {first} tokens before them: download both again."
        )
    special = {token: (f"<|reserved_token_{token}|>", CONTROL) for token in range(first, first + count)} | {**added}
    texts, kinds = [text for text, _ in special.values()], [kind for _, kind in special.values()]
    if len({*ordinary, *texts}) < first + count or "" in texts:
        raise ModelFolderError(
            f"{configuration} names a special token twice, or like one of {path.name}: download both again."
        )
    return ranked_metadata([*ordinary, *texts], [NORMAL] * first + kinds, _RULE, path)


def _ordinary_tokens(path: Path) -> list[str]:
    content = read_bounded(path, MAX_TOKENIZER_BYTES)
    if content.count(b"\n") > MAX_TOKENS:
        raise ModelFolderError(f"{path} has more lines than any vocabulary: download it again.")
    entries = []
    for line in content.split(b"\n"):
        found = _LINE.fullmatch(line.rstrip(b"\r"))
        if found is not None:
            entries.append((int(found[2]), found[1]))
        elif line:
            raise ModelFolderError(f"{path} has a line that is not a token in base64 and its rank: download it again.")
    return texts_by_rank(entries, len(entries), path)
