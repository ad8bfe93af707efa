"""Whether two models have the same tokenizer, such as an exported one and its original: programs that export models
write the tokenizer's files anew, and a version that writes them differently changes every prompt silently."""

from __future__ import annotations

from pathlib import Path

from onward.engine.model import Tokenizer
from onward.model_files.files import SENTENCE_PIECE, TOKENIZER, VOCABULARY, present
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.models.catalogue import catalogue
from onward.models.hub import fetch_tokenizer, hub_name
from onward.models.resolve import named_path, resolve

TEXTS = (
    "",
    "Hello",
    " Hello",
    "  Hello  world ",
    "Once upon a time, there was a fox.",
    "I'm sure they'll say it's HERS, isn't it?",
    "line one\nline two\r\n\n\nline three\t\tend\n",
    "    def f(self, x: int = 10) -> list[str]:\n        return [str(x)] * 3  # three\n",
    '<p class="a">R&amp;D</p>{\'key\': "value\\n"}',
    "0 1 12 123 1234 12345.678 1,000,000 3.14e-10 0xFF 2026-09-28",
    "Größe, naïve café, señor, Übermut, œuvre, ﬁne, Å vs Å",
    "Привет, как дела? Ελληνικά, עברית, العربية",
    "你好，世界。日本語のテキストです。한국어 문장입니다.",
    "हिन्दी में एक वाक्य, ภาษาไทย, தமிழ்",
    "👍🏽 👩‍👩‍👧‍👦 🇩🇪 🙂🙂",
    "a\u00a0b\u200bc\u2028d\ufeffe\u3000f",
    "\u0000\u0001\u007f",
    "aaaaaaaaaaaaaaaaaaaaaaaa!!!!!!!!----------======",
    "x = y ** 2 // z; a != b && c || d <= e >> 3",
    "https://example.com/path?q=a%20b#top user@example.org C:\\temp\\new",
    "∑_{i=1}^{n} x_i² ≤ ∞ → ½ € £ ™ “quoted” ‘so’ – — …",
    "<s></s><unk><pad><bos><eos><|endoftext|><|im_start|><mask>[CLS][SEP]",
)
"""Spaces, lines, code, numbers, letters of many scripts, composed and decomposed, emoji, controls, literals."""
MAX_SHOWN = 8
"""How many texts with other token ids are reported."""


def tokenizer_of(name_or_path: str, cache_dir: Path) -> Tokenizer:
    """Return the tokenizer of a model, whose weights need not be readable: that of a folder, else of a hub id, whose
    files may be downloaded, else of a model as `resolve` finds it. Blocks. Raises ModelNameError, ModelFolderError."""
    path = named_path(name_or_path)
    if path.is_dir() and present(path, (TOKENIZER, SENTENCE_PIECE, VOCABULARY)):
        return HuggingFaceTokenizer(path)
    hub = None if path.exists() or catalogue().get(name_or_path) else hub_name(name_or_path)
    if hub is not None and not hub.file:
        return HuggingFaceTokenizer(fetch_tokenizer(hub))
    model = resolve(name_or_path, allow_download=False, cache_dir=cache_dir)
    return model.files.load_tokenizer(cache_dir)


def differences(own: Tokenizer, other: Tokenizer) -> list[str]:
    """Return how a tokenizer differs from another one, a sentence each: token ids of `TEXTS` and of
    special tokens (the first that differ), end tokens."""
    found: list[str] = []
    for text in (*TEXTS, *other.special_literals):
        here, there = (each.encode(text, add_special_tokens=True) for each in (own, other))
        if here != there and len(found) < MAX_SHOWN:
            found.append(f"The token ids of {text!r} are {_shown(here)}, those of the other tokenizer {_shown(there)}.")
    if own.end_tokens != other.end_tokens:
        here, there = (sorted(each.end_tokens) for each in (own, other))
        found.append(f"The end tokens are {_shown(here)}, those of the other tokenizer {_shown(there)}.")
    return found


def _shown(tokens: list[int]) -> str:
    first = ", ".join(map(str, tokens[:12]))
    return f"[{first}, …]" if len(tokens) > 12 else f"[{first}]"
