"""Small tokenizers of the two main families, trained here and saved as tokenizer.json."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

TEXTS = ["the cat sat on the mat; the dog did not", "naïve café, 10 000 m²", "def f(x):\n    return x\n"] * 3
END, START = "<|end|>", "<|start|>"


def byte_level() -> Tokenizer:
    """Like those of GPT-2, Llama 3 and Qwen: every byte has a stand-in character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=[END, START],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_tokens([AddedToken("<note>", normalized=False), AddedToken("é è", normalized=False)])
    return tokenizer


def sentencepiece(style: str) -> Tokenizer:
    """Like those of Llama 2 and Mistral: "normalizer" (their old files) or "metaspace" (their new ones)."""
    spaced = [text.replace(" ", "▁") for text in TEXTS]
    merging = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(vocab_size=120, show_progress=False)
    merging.train_from_iterator(spaced, trainer)
    learned = json.loads(merging.to_str())["model"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", "<s>", "</s>", *bytes_, *learned["vocab"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[tuple(pair) for pair in learned["merges"]],
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    if style == "normalizer":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path, **configs: object) -> Path:
    """Write tokenizer.json and, by stem, further JSON files into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    for stem, content in configs.items():
        (folder / f"{stem}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
