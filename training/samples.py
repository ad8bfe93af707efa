"""Ten samples for the card, written by the shipped model and left as they come."""

from __future__ import annotations

from tokenizers import Tokenizer

from training.infill import infill_prompt
from training.scoring import Scorer, generate
from training.tokenizer import END_OF_TEXT, encode, special_ids

TEMPERATURE = 0.8
TOP_P = 0.95
SAMPLE_TOKENS = 160
INFILL_ORDER = "spm"

# (prompt, suffix): a suffix asks for an infill; an empty prompt starts from nothing.
PROMPTS: tuple[tuple[str, str | None], ...] = (
    ("", None),
    ("Once upon a time", None),
    ("One day, a little girl named Lily", None),
    ("The old fisherman looked at the sea and", None),
    ('"Where are you going?" asked the rabbit.', None),
    ("CHAPTER I.\n\n", None),
    ("There was once a king who had three sons.", None),
    ("def read_lines(path):\n    ", None),
    ("Tom had a red ball. He threw the ball", " The dog ran after it and brought it back."),
    ("import os\n\ndef file_size(path):\n    ", "\n    return size\n"),
)


def write_samples(scorer: Scorer, tokenizer: Tokenizer, count: int) -> list[dict]:
    """One sample a prompt, seeds 1, 2, 3, …: prompt, suffix, text, whether it ended by itself."""
    end = special_ids(tokenizer)[END_OF_TEXT]
    samples = []
    for seed, (prompt, suffix) in enumerate(PROMPTS[:count], start=1):
        ids = _prompt_ids(tokenizer, prompt, suffix)
        written = generate(scorer, ids, end=end, tokens=SAMPLE_TOKENS, temperature=TEMPERATURE, top_p=TOP_P, seed=seed)
        ended = written[-1] == end
        text = tokenizer.decode(written[:-1] if ended else written, skip_special_tokens=False)
        samples.append({"prompt": prompt, "suffix": suffix, "text": text, "ended": ended, "seed": seed})
    return samples


def _prompt_ids(tokenizer: Tokenizer, prompt: str, suffix: str | None) -> list[int]:
    """A plain prompt after the end of text, or an infilling one."""
    if suffix is None:
        return [special_ids(tokenizer)[END_OF_TEXT], *encode(tokenizer, prompt)]
    return infill_prompt(tokenizer, prompt, suffix, INFILL_ORDER)
