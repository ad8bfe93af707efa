"""`suffix`: fill-in-the-middle with the model's own tokens (Bavarian et al. 2022; behaviour §2.12), and other files as
its context: the repository-level prompt of Qwen2.5-Coder (arXiv 2409.12186, section 3.3) in the layout of llama-server
(`format_prompt_infill` in tools/server/server-common.cpp).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from onward.completions.encode import encode_beginning
from onward.completions.rejections import NoInfillTokens
from onward.engine.model import Tokenizer


@dataclass(frozen=True, slots=True)
class Convention:
    """Text of a model family's infill tokens.

    `ends` are additional end tokens of an infill. With `suffix_first`, the suffix comes before the prefix and there is
    no middle token. `repository` and `file` mark the names of a repository and of its files, which come first.
    """

    prefix: str
    suffix: str
    middle: str | None
    ends: tuple[str, ...] = ()
    suffix_first: bool = False
    repository: str = ""
    file: tuple[str, ...] = ()


CONVENTIONS = (
    # Qwen2.5-Coder, CodeGemma, Storyteller
    Convention(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
        repository="<|repo_name|>",
        file=("<|file_sep|>", "<|file_separator|>"),
    ),
    # StarCoder, StarCoder2, Granite; SantaCoder writes hyphens
    Convention(
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ("<|endoftext|>", "<fim_pad>", "<file_sep>"),
        repository="<repo_name>",
        file=("<file_sep>",),
    ),
    Convention("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ("<|endoftext|>", "<fim-pad>")),
    # LFM2: in the usual order, which its authors do not state
    Convention("<|fim_pre|>", "<|fim_suf|>", "<|fim_mid|>", ("<|endoftext|>",)),
    # CodeLlama
    Convention("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
    Convention("<PRE>", "<SUF>", "<MID>", ("<EOT>",)),
    # DeepSeek-Coder: begin, prefix, hole, suffix, end
    Convention("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<|EOT|>",)),
    # Codestral: suffix first, then the prefix, which the model continues
    Convention("[PREFIX]", "[SUFFIX]", None, (), suffix_first=True),
)


@dataclass(frozen=True, slots=True)
class Infill:
    """Token ids of one tokenizer's infill tokens."""

    prefix: int
    suffix: int
    middle: int | None
    ends: frozenset[int]
    suffix_first: bool
    repository: int | None = None
    file: int | None = None

    def arrange(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """Return the prompt with which the model generates the text between prefix and suffix."""
        if self.suffix_first:
            return [self.suffix, *suffix, self.prefix, *prefix]
        assert self.middle is not None
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]


def find_infill(tokenizer: Tokenizer) -> Infill | None:
    """Return the infill tokens that the model's files state, else those of the first convention whose texts the
    tokenizer has; None if there is neither."""
    by_text = _by_text(tokenizer)
    stated = [tokenizer.infill_tokens.get(use) for use in ("prefix", "suffix", "middle")]
    if None in stated or (by_text is not None and stated == [by_text.prefix, by_text.suffix, by_text.middle]):
        return by_text  # the convention knows more: end tokens, an order of its own
    return _by_id(tokenizer.infill_tokens)


def _by_id(ids: Mapping[str, int]) -> Infill:
    """Return infill tokens by their use. As in llama.cpp, those without a part in the prompt end an infill."""
    others = (ids.get(use) for use in ("padding", "repository", "file"))
    return Infill(
        ids["prefix"],
        ids["suffix"],
        ids["middle"],
        frozenset(token for token in others if token is not None),
        suffix_first=False,
        repository=ids.get("repository"),
        file=ids.get("file"),
    )


def _by_text(tokenizer: Tokenizer) -> Infill | None:
    for convention in CONVENTIONS:
        prefix = tokenizer.token_id(convention.prefix)
        suffix = tokenizer.token_id(convention.suffix)
        middle = tokenizer.token_id(convention.middle) if convention.middle else None
        if prefix is None or suffix is None or (convention.middle and middle is None):
            continue
        ends = (tokenizer.token_id(literal) for literal in convention.ends)
        files = (tokenizer.token_id(literal) for literal in convention.file)
        return Infill(
            prefix,
            suffix,
            middle,
            frozenset(token for token in ends if token is not None),
            convention.suffix_first,
            tokenizer.token_id(convention.repository) if convention.repository else None,
            next((token for token in files if token is not None), None),
        )
    return None


def require_infill(infill: Infill | None) -> Infill:
    """Return `infill`. Raises NoInfillTokens if it is None: the model has no infill tokens."""
    if infill is None:
        raise NoInfillTokens
    return infill


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
