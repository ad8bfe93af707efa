"""How tokenizers of GGUF files cut a text before they merge: regular expressions by `tokenizer.ggml.pre`.

The names are llama.cpp's (src/llama-vocab.cpp), except that of the built-in model, whose rule llama.cpp lacks; the
expressions are those of the models' own tokenizer.json.
"""

from __future__ import annotations

from typing import NamedTuple

CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_QWEN35 = (
    CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = f"{_LOWER}{CONTRACTIONS}?|{_UPPER}{CONTRACTIONS}?|" + r"\p{N}{1,3}" + _REST
_YOUTU = "[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"
_STORYTELLER = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_BAILING = (
    r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
    r"|\s+(?!\S)|\s+"
)
_CAPITALS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_SMALL = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_KIMI = (
    rf"\p{{Han}}+|{_BEFORE}{_CAPITALS}*{_SMALL}+{CONTRACTIONS}?|{_BEFORE}{_CAPITALS}+{_SMALL}*{CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = f"{_LOWER}|{_UPPER}|" + r"\p{N}" + _REST

_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ"
    "ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳ"
    "Ꙁ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
"""DeepSeek's own list, of what Unicode had as letters of scripts with two cases."""
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
    r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_THREES_FROM_END = r"(?<!\d)\d++\b", r"^\d{1,2}(?=(?:\d{3})++$)"
"""Digits up to the end of a word in threes, counted from there: first all of them, then those before the threes, so
that each run is looked through once. Their tokenizer.json says \\d{1,3}(?=(?:\\d{3})*\\b)."""
_TRINITY_SCRIPTS = "[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"
_TRINITY = r"(?<!\p{N})\p{N}{1,2}(?=(?:\p{N}{3})++(?!\p{N}))", r"\p{N}{1,3}", _TRINITY_SCRIPTS, _DEEPSEEK3
"""Digits in threes, counted from their end: first those before them, so that each run is looked through once."""


_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
)


class PreTokenizer(NamedTuple):
    """Expressions that split one after the other; matches are pieces, and so is what lies between them.

    `ignore_merges`: a piece that is a token as a whole is not merged from smaller ones. `adds_start`: the start token
    is put before every text, unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_start: bool = False


DEFAULT = "default"
"""The rule of files that state none."""
_BY_PATTERN: dict[PreTokenizer, tuple[str, ...]] = {
    PreTokenizer(_DEFAULT): (DEFAULT,),
    PreTokenizer((_LLAMA3,), ignore_merges=True, adds_start=True): (
        "llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2",
    ),
    PreTokenizer((_LLAMA3,)): ("smaug-bpe", "dbrx", "chatglm-bpe"),
    PreTokenizer((_LLAMA3,), ignore_merges=True): ("glm4", "glm5"),
    PreTokenizer((_QWEN2,)): (
        "qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez", "hunyuan", "solar-open", "grok-2",
    ),
    PreTokenizer((_QWEN35,)): ("qwen35",),
    PreTokenizer((r"\p{N}", _GPT2)): (
        "smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2",
    ),
    PreTokenizer((_GPT2,)): (
        "gpt-2", "phi-2", "gigachat", "a.x-4.0", "mellum", "exaone4", "olmo", "mpt", "jais", "trillion",
        "granite-docling",
    ),
    PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")): ("falcon",),
    PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")): ("deepseek-coder",),
    PreTokenizer((
        r"[\r\n]", rf"\s?[{_DEEPSEEK_LETTERS}]+",
        "\\s?[!-/:-~！-／：-～‘-‟　-。]+", r"(?<!\s)\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+",
    )): ("deepseek-llm",),
    PreTokenizer((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3)): ("deepseek-v3", "hunyuan-dense"),
    PreTokenizer((_YOUTU, _GPT4O.replace(r"\p{N}{1,3}", r"\p{N}")), ignore_merges=True): ("youtu",),
    PreTokenizer((_SEED,)): ("seed-coder",),
    PreTokenizer((_STORYTELLER,)): ("storyteller",),
    PreTokenizer((_KIMI,)): ("kimi-k2",),
    PreTokenizer(_TRINITY): ("afmoe",),
    PreTokenizer((*_THREES_FROM_END, _GPT4O)): ("cohere2moe", "tiny_aya"),
    PreTokenizer((_BAILING,)): ("bailingmoe", "bailingmoe2", "llada-moe"),
    PreTokenizer((_GPT4O,)): ("gpt-4o", "llama4", "kanana2", "minimax-m2"),
    PreTokenizer((_TEKKEN,), ignore_merges=True, adds_start=True): ("tekken",),
}  # fmt: skip
PRE_TOKENIZERS = {name: rule for rule, names in _BY_PATTERN.items() for name in names}
"""By the value of `tokenizer.ggml.pre`."""
