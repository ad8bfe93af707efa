"""The steps after training: export, evaluation, plot, card. Also a separate command.

`python -m training.finish --data DIR --run RUN` runs them on the last checkpoint of a run, finished or not, without
disturbing a training that is running.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from training.card import write_card, write_credits
from training.checkpoint import RunFolder, load_checkpoint
from training.corpus import Source, check_data_folder, load_sources
from training.errors import RecipeError
from training.export import FILE_NAME, check_model_folder, export_gguf, install, save_float_model
from training.files import replace_json
from training.measures import agreement, bits_per_byte, infill_accuracy, lambada_accuracy
from training.plot import plot_losses
from training.presets import PRESETS, Preset
from training.samples import write_samples
from training.scoring import ServedScorer, TorchScorer
from training.tokenizer import load_tokenizer

PACKAGE_FOLDER = Path(__file__).parents[1] / "src" / "onward" / "models" / "storyteller"
PROSE_INFILL_SOURCE = "tinystories"
CODE_INFILL_SOURCE = "python_stdlib"


def finish_run(
    folder: RunFolder,
    preset: Preset,
    sources: dict[str, Source],
    data: Path,
    *,
    install_into_package: bool = False,
) -> dict:
    """Export, evaluate and describe the last checkpoint of a run; return its figures. Raises RecipeError."""
    state = load_checkpoint(folder)
    if state is None:
        raise RecipeError(f"{folder.path} has no checkpoint yet. Run `python -m training.train` first.")
    note("Exporting …")
    save_float_model(folder, preset, state["optimizer"]["masters"])
    export_gguf(folder)
    started = time.monotonic()
    figures = {"training": training_figures(preset, state)}
    figures |= evaluate(folder, preset, sources, data)
    figures["evaluation_seconds"] = round(time.monotonic() - started)
    plot_losses(state["history"], folder.plot)
    describe(folder, sources["storybooks_cc_by"], figures)
    if install_into_package:
        install(folder.model, PACKAGE_FOLDER)
        note(f"Installed into {PACKAGE_FOLDER}.")
    note(f"Figures: {folder.figures}\nCard: {folder.model / 'README.md'}\nLoss plot: {folder.plot}")
    return figures


def describe(folder: RunFolder, storybooks: Source, figures: dict) -> None:
    """Write figures, credits and card; the card includes `notes.md` of the run's folder if it exists."""
    figures["notes"] = folder.notes.read_text(encoding="utf-8").strip() if folder.notes.exists() else ""
    write_credits(folder.model / "CREDITS.md", storybooks)
    write_card(folder.model / "README.md", figures)
    figures["folder_bytes"] = check_model_folder(folder.model)
    replace_json(folder.figures, figures)
    write_card(folder.model / "README.md", figures)


def training_figures(preset: Preset, state: dict) -> dict:
    """Return figures of the training: model, time, tokens."""
    clock = state["clock"]
    masters = state["optimizer"]["masters"]
    served: dict[str, int] = {}
    last = (
        []
        if state["stream"] is None
        else [{name: cursor["served"] for name, cursor in state["stream"]["cursors"].items()}]
    )
    for part in state["history"]["served"] + last:
        for name, tokens in part.items():
            served[name] = served.get(name, 0) + tokens
    return {
        "preset": preset.name,
        "seed": preset.seed,
        "shape": vars(preset.shape).copy(),
        "parameters": sum(weight.numel() for weight in masters.values()),
        "tokens": clock["tokens"],
        "steps": clock["steps"],
        "minutes": round(clock["seconds"] / 60, 1),
        "tokens_per_second": round(clock["tokens"] / max(1.0, clock["seconds"])),
        "tokens_by_source": served,
        "torch": torch.__version__,
    }


def evaluate(folder: RunFolder, preset: Preset, sources: dict[str, Source], data: Path) -> dict:
    """Measure all figures of the card. Figures of behaviour are those of the file that ships."""
    amounts = preset.evaluation
    tokenizer = load_tokenizer(folder.tokenizer)
    exact = TorchScorer(folder.float_model)
    shipped = ServedScorer(folder.model / FILE_NAME)
    figures: dict = {"bits_per_byte": {}}
    for name, source in sources.items():
        size = amounts["bits_per_byte_bytes"]
        before = bits_per_byte(exact, source, tokenizer, size)
        after = bits_per_byte(shipped, source, tokenizer, size)
        figures["bits_per_byte"][name] = {
            "float": before["bits_per_byte"],
            "shipped": after["bits_per_byte"],
            "bytes": before["bytes"],
        }
        note(f"bits per byte, {name}: float {before['bits_per_byte']}, shipped {after['bits_per_byte']}")
    figures["agreement"] = agreements(folder, exact, shipped, sources, tokenizer, amounts["agreement_tokens"])
    note(f"agreement: {figures['agreement']}")
    lambada = data / "eval" / "lambada_openai.jsonl"
    figures["lambada"] = lambada_accuracy(shipped, tokenizer, lambada, amounts["lambada_items"])
    note(f"LAMBADA: {figures['lambada']}")
    figures["infill"] = {
        order: {
            kind: infill_accuracy(shipped, tokenizer, sources[name], amounts["infill_items"], preset.seed, order)
            for kind, name in (("prose", PROSE_INFILL_SOURCE), ("code", CODE_INFILL_SOURCE))
        }
        for order in ("spm", "psm")
    }
    note(f"infill: {figures['infill']}")
    figures["samples"] = write_samples(shipped, tokenizer, amounts["samples"])
    return figures


def agreements(
    folder: RunFolder,
    exact: TorchScorer,
    shipped: ServedScorer,
    sources: dict[str, Source],
    tokenizer: Tokenizer,
    tokens: int,
) -> dict:
    """Compare the file that ships with the float network at both precisions."""
    at_exact = ServedScorer(folder.model / FILE_NAME, "exact")
    return {
        "fast": agreement(exact, shipped, sources, tokenizer, tokens),
        "exact": agreement(exact, at_exact, sources, tokenizer, tokens),
    }


def note(text: str) -> None:
    """Print a message for the user to stderr."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Run the command; return its exit status, 1 for a RecipeError."""
    parser = argparse.ArgumentParser(prog="python -m training.finish", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that contains text/ and eval/")
    parser.add_argument("--preset", choices=sorted(PRESETS), default="cpu")
    parser.add_argument("--run", type=Path, help="folder of the run (default: training/runs/PRESET)")
    parser.add_argument("--quick", action="store_true", help="evaluate on very little data, for an intermediate result")
    parser.add_argument("--install", action="store_true", help="copy the model into the package")
    arguments = parser.parse_args()
    try:
        data = check_data_folder(arguments.data)
        preset = PRESETS[arguments.preset]
        if arguments.quick:
            preset.evaluation.update(PRESETS["tiny"].evaluation)
        folder = RunFolder(arguments.run or Path(__file__).parent / "runs" / preset.name)
        finish_run(folder, preset, load_sources(data), data, install_into_package=arguments.install)
    except RecipeError as error:
        note(f"error: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
