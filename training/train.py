"""Train storyteller, from its data to the files that ship: `python -m training.train --data DIR`.

After an interruption, run it again with the same arguments to continue.
"""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from training.checkpoint import RunFolder
from training.corpus import Source, check_data_folder, load_sources
from training.errors import RecipeError
from training.finish import finish_run
from training.loop import Interrupted, Trainer
from training.presets import PRESETS, Preset
from training.tokenizer import load_tokenizer, save_tokenizer, train_tokenizer

RUNS = Path(__file__).parent / "runs"


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(prog="python -m training.train", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that contains text/ and eval/")
    parser.add_argument(
        "--preset", choices=sorted(PRESETS), help="size of the run (default: gpu if there is one, else cpu)"
    )
    parser.add_argument("--run", type=Path, help="folder of this run (default: training/runs/PRESET)")
    parser.add_argument("--minutes", type=float, help="training time, instead of the length of the preset")
    parser.add_argument("--tokens", type=int, help="training tokens, instead of the length of the preset")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="CPU threads")
    parser.add_argument("--no-compile", action="store_true", help="do not use torch.compile")
    parser.add_argument("--install", action="store_true", help="copy the finished model into the package")
    return parser.parse_args(arguments)


def choose_preset(arguments: argparse.Namespace) -> Preset:
    """Return the selected preset, with the length of the command line if it has one."""
    preset = PRESETS[arguments.preset or ("gpu" if torch.cuda.is_available() else "cpu")]
    if arguments.minutes is not None:
        return replace(preset, minutes=arguments.minutes, tokens=None)
    if arguments.tokens is not None:
        return replace(preset, tokens=arguments.tokens, minutes=None)
    return preset


def prepare_tokenizer(folder: RunFolder, sources: dict[str, Source], seed: int) -> None:
    """Train the tokenizer of the run unless it exists."""
    if folder.tokenizer.exists():
        return
    print("Training the tokenizer …", file=sys.stderr, flush=True)
    save_tokenizer(train_tokenizer(sources, seed), folder.tokenizer)


def run(arguments: argparse.Namespace) -> None:
    """Run all steps in order; skip those that are already complete. Raises RecipeError, Interrupted."""
    data = check_data_folder(arguments.data)
    preset = choose_preset(arguments)
    folder = RunFolder(arguments.run or RUNS / preset.name)
    folder.claim(preset)
    torch.set_num_threads(arguments.threads)
    print("Reading the data …", file=sys.stderr, flush=True)
    sources = load_sources(data)
    prepare_tokenizer(folder, sources, preset.seed)
    tokenizer = load_tokenizer(folder.tokenizer)
    Trainer(preset, folder, sources, tokenizer, compiled=not arguments.no_compile).run()
    finish_run(folder, preset, sources, data, install_into_package=arguments.install)


def main() -> int:
    """Run the command; return its exit status: 1 for a RecipeError, 130 for an interruption."""
    arguments = parse_arguments()
    try:
        run(arguments)
    except RecipeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (Interrupted, KeyboardInterrupt):
        print("\nStopped. The training so far is saved; run the same command to continue.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
