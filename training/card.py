"""The model card and the credits, written from the figures of the run."""

from __future__ import annotations

import re
from pathlib import Path

from training.corpus import Source
from training.files import replace_text
from training.samples import SAMPLE_TOKENS, TEMPERATURE, TOP_P

TEMPLATE = Path(__file__).with_name("card_template.md")
TITLES = {
    "tinystories": "TinyStories",
    "storybooks_cc_by": "storybooks (CC BY)",
    "fairytaleqa": "FairytaleQA",
    "children_classics": "children's classics",
    "chilit": "ChiLit",
    "plain_fiction": "plain fiction",
    "python_stdlib": "Python standard library",
}


def write_card(path: Path, figures: dict) -> None:
    """Fill the {{placeholders}} of the template from the figures and write the card to `path`."""
    training, shape = figures["training"], figures["training"]["shape"]
    values = {
        "parameters": f"{training['parameters'] / 1e6:.2f}",
        "layers": shape["layers"],
        "hidden": shape["hidden"],
        "heads": shape["heads"],
        "kv_heads": shape["kv_heads"],
        "head_size": shape["head_size"],
        "feed_forward": shape["feed_forward"],
        "vocabulary": shape["vocabulary"],
        "context": shape["context"],
        "preset": training["preset"],
        "tokens": f"{training['tokens'] / 1e6:.1f}",
        "steps": f"{training['steps']:,}",
        "minutes": f"{training['minutes']:.0f}",
        "tokens_per_second": f"{training['tokens_per_second']:,}",
        "bits_table": bits_table(figures["bits_per_byte"]),
        "behaviour_table": behaviour_table(figures),
        "mixture_table": mixture_table(training["tokens_by_source"]),
        "folder_megabytes": f"{figures.get('folder_bytes', 0) / 1e6:.1f}",
        "temperature": TEMPERATURE,
        "top_p": TOP_P,
        "sample_tokens": SAMPLE_TOKENS,
        "notes": figures.get("notes", ""),
        "samples": "\n".join(sample_text(number, sample) for number, sample in enumerate(figures["samples"], start=1)),
    }
    template = TEMPLATE.read_text(encoding="utf-8")
    card = re.sub(r"\{\{(\w+)\}\}", lambda placeholder: str(values[placeholder[1]]), template)
    replace_text(path, card.rstrip() + "\n")


def bits_table(figures: dict) -> str:
    """Return a table of bits per byte by source, before and after quantisation."""
    rows = ["| held-out text | float32 | Q8_0 (shipped) | bytes measured |", "|---|---|---|---|"]
    for name, row in figures.items():
        rows.append(f"| {TITLES[name]} | {row['float']:.3f} | {row['shipped']:.3f} | {row['bytes']:,} |")
    return "\n".join(rows)


def behaviour_table(figures: dict) -> str:
    """Return a table of the shipped model's behaviour and of its difference from the float model."""
    fast, exact = (figures["agreement"][key] for key in ("fast", "exact"))
    return "\n".join(
        [
            "| figure | value |",
            "|---|---|",
            f"| LAMBADA, last word, greedy ({figures['lambada']['items']:,} passages) "
            f"| {figures['lambada']['accuracy']:.1%} |",
            *infill_rows(figures["infill"]),
            f"| the file against the float32 network, mean absolute difference of log-probabilities in nats, "
            f"{fast['tokens']:,} held-out tokens, precision `fast` | {fast['mean_absolute_difference']:.4f} |",
            f"| the same at `exact` | {exact['mean_absolute_difference']:.4f} |",
        ]
    )


def infill_rows(figures: dict) -> list[str]:
    """Return table rows on greedy infilling of held-out spans within one line, by order and kind of text."""
    orders = {"spm": "suffix first", "psm": "prefix first"}
    kinds = {
        "prose": "one to four words of a held-out TinyStories sentence",
        "code": "one whole line of held-out Python code",
    }
    return [
        f"| infill of {kinds[kind]}, {orders[order]}: exact match ({row['items']} spans); ended with end of text "
        f"| {row['exact_match']:.1%}; {row['ended']:.1%} |"
        for order, by_kind in figures.items()
        for kind, row in by_kind.items()
    ]


def mixture_table(served: dict[str, int]) -> str:
    """Return a table of training tokens by source."""
    total = sum(served.values()) or 1
    rows = ["| source | training tokens (millions) | share |", "|---|---|---|"]
    for name, tokens in served.items():
        rows.append(f"| {TITLES[name]} | {tokens / 1e6:.2f} | {tokens / total:.0%} |")
    return "\n".join(rows)


def sample_text(number: int, sample: dict) -> str:
    """Return one sample as a fenced block, with the prompt and the suffix in ⟦ ⟧."""
    prompt = f"⟦{sample['prompt']}⟧" if sample["prompt"] else "⟦⟧"
    after = "" if sample["suffix"] is None else f"⟦{sample['suffix']}⟧"
    mark = "" if sample["ended"] else " …"
    return f"{number}. seed {sample['seed']}\n\n````text\n{prompt}{sample['text']}{after}{mark}\n````\n"


def write_credits(path: Path, storybooks: Source) -> None:
    """Write the authors of the CC BY storybooks, with the titles used, to `path`."""
    titles: dict[str, list[str]] = {}
    for document in storybooks.train + storybooks.valid:
        titles.setdefault(document.author or "unnamed", []).append(document.title)
    lines = [
        "# Credits",
        "",
        "`storyteller` was trained on, among others, these storybooks of the African Storybook and of",
        "Pratham Books' StoryWeaver, licensed under Creative Commons Attribution 4.0",
        "(<https://creativecommons.org/licenses/by/4.0/>). For training, their text was converted to plain",
        "ASCII and duplicate paragraphs were removed. The model does not contain the books.",
        "",
    ]
    lines += [f"- {author}: {'; '.join(sorted(names))}" for author, names in sorted(titles.items())]
    replace_text(path, "\n".join(lines) + "\n")
