"""Quick validation on every source during training."""

from __future__ import annotations

import math

import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaForCausalLM

from training.corpus import Source
from training.tokenizer import END_OF_TEXT, encode, special_ids

NUM_WINDOWS = 12
WINDOW_TOKENS = 256


def excerpt(documents: list[str], characters: int) -> list[str]:
    """Return short documents and beginnings of long ones, evenly spaced, at most `characters` in total."""
    share = max(1, characters // len(documents))
    if share < 400:
        step = max(1, len(documents) * 400 // characters)
        documents = documents[::step]
        share = max(400, characters // len(documents))
    return [document[:share] for document in documents]


@torch.no_grad()
def validation_losses(
    network: LlamaForCausalLM, sources: dict[str, Source], tokenizer: Tokenizer, device: str
) -> dict[str, float]:
    """Return bits per byte of each source on a few fixed windows of its validation split."""
    network.eval()
    losses = {
        name: _source_loss(network, source, tokenizer, device) for name, source in sources.items() if source.valid
    }
    network.train()
    return losses


def _source_loss(network: LlamaForCausalLM, source: Source, tokenizer: Tokenizer, device: str) -> float:
    """Return bits per byte over the beginnings of up to NUM_WINDOWS documents, in one batch [windows, tokens]."""
    end = special_ids(tokenizer)[END_OF_TEXT]
    characters = 5 * WINDOW_TOKENS * NUM_WINDOWS
    texts = excerpt([document.text for document in source.valid], characters)
    parts = [text[i : i + 5 * WINDOW_TOKENS] for text in texts for i in range(0, len(text), 5 * WINDOW_TOKENS)]
    rows = [[end, *encode(tokenizer, part)][: WINDOW_TOKENS + 1] for part in parts[:NUM_WINDOWS]]
    width = max(len(row) for row in rows)
    table = torch.tensor([row + [-100] * (width - len(row)) for row in rows], device=device)
    logits = network(input_ids=table[:, :-1].clamp(min=0), use_cache=False).logits.float()
    labels = table[:, 1:]
    nats = functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="sum")
    size = sum(len(tokenizer.decode(row[1:]).encode()) for row in rows)
    return round(float(nats) / math.log(2) / size, 4)
