"""Create the same weights for both servers: OpenVINO IR folders for Onward, GGUF files for llama-server.

`python -m benchmarks.pairs` creates what is missing under .peers/models. `storyteller` needs only llama.cpp's programs;
`qwen05b` (random weights in the shape of Qwen2.5-0.5B) needs torch and more, see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import measure, random_model
from benchmarks.gguf_file import convert
from benchmarks.peer_build import PEERS, QUANTIZE, PeerError, find

MODELS = PEERS / "models"
BUILT_IN = PEERS.parent / "src" / "onward" / "models" / "storyteller"
TRAINED = PEERS.parent / "training" / "runs" / "cpu" / "float"
"""storyteller's float weights, if it was trained here."""


@dataclass(frozen=True, slots=True)
class Family:
    """One network in several precisions.

    `onward_models` maps a precision to a model name or folder, `peer_files` to a GGUF file. `clients` are the default
    numbers of clients, `waves` the requests per client and round for each, `rounds` the measured rounds.
    """

    name: str
    vocabulary: int
    onward_models: dict[str, str]
    peer_files: dict[str, Path]
    clients: tuple[int, ...]
    waves: dict[int, int]
    rounds: int

    def only(self, precisions: Iterable[str] | None) -> Family:
        """Return the family with these precisions only; all if None. Raises PeerError if a server has none of them."""
        if precisions is None:
            return self
        kept = set(precisions)
        onward_models = {name: model for name, model in self.onward_models.items() if name in kept}
        peer_files = {name: path for name, path in self.peer_files.items() if name in kept}
        if not onward_models or not peer_files or kept - {*self.onward_models, *self.peer_files}:
            raise PeerError(
                f"{self.name} has {', '.join(self.onward_models)} and {', '.join(self.peer_files)}. "
                "Select at least one of each."
            )
        return replace(self, onward_models=onward_models, peer_files=peer_files)

    def missing(self) -> list[str]:
        """Return the files and folders that do not exist."""
        folders = [Path(model) for model in self.onward_models.values() if "/" in model]
        return [str(path) for path in (*folders, *self.peer_files.values()) if not path.exists()]


def families(models: Path = MODELS) -> dict[str, Family]:
    """Return all families by name, whether or not their files exist."""
    story, qwen = models / "storyteller", models / "qwen05b"
    return {
        "storyteller": Family(
            "storyteller",
            8192,
            {"int8": "storyteller"},
            {"Q8_0": story / "Q8_0.gguf"},
            (1, 8, 32, 64),
            {1: 24, 8: 8, 32: 4, 64: 4},
            7,
        ),
        "qwen05b": Family(
            "qwen05b",
            random_model.VOCAB_SIZE,
            {name: str(qwen / f"qwen05b-{name}") for name in random_model.QUANTISATION},
            {name: qwen / f"{name}.gguf" for name in ("Q8_0", "Q4_0")},
            (1, 8, 32),
            {1: 4, 8: 2, 32: 3},
            5,
        ),
    }


def create(family: Family, quantize: Path) -> None:
    """Create what is missing. Raises PeerError."""
    if not family.missing():
        return
    folder = next(iter(family.peer_files.values())).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        weights = config_folder = Path(temporary)
        if family.name == "storyteller":
            config_folder = BUILT_IN  # Onward need not be installed in the environment that creates models
            weights = TRAINED if TRAINED.is_dir() else BUILT_IN
        else:
            _create_random(family, weights)
        _create_gguf(family.peer_files, weights, config_folder, quantize)


def _create_random(family: Family, folder: Path) -> None:
    try:
        random_model.create_float(folder)
        for precision, path in family.onward_models.items():
            if not Path(path).exists():
                random_model.export_ir(folder, Path(path), precision)
    except ImportError as error:
        raise PeerError(
            f"{family.name} needs the package {error.name}: benchmarks/README.md describes the environment."
        ) from error


def _create_gguf(files: dict[str, Path], weights: Path, config_folder: Path, quantize: Path) -> None:
    with tempfile.TemporaryDirectory(dir=next(iter(files.values())).parent) as temporary:
        whole = Path(temporary) / "F16.gguf"
        convert(weights, config_folder, whole)
        for kind, path in files.items():
            part = path.with_suffix(".part")
            _quantize(quantize, whole, part, kind)
            part.replace(path)


def _quantize(program: Path, source: Path, to: Path, kind: str) -> None:
    try:
        subprocess.run([str(program), str(source), str(to), kind], check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(f"{program.name} failed ({error}). Its output is above.") from error


def select(names: Iterable[str], models: Path) -> list[Family]:
    """Return the families of these names. Raises PeerError, with the command that creates them, if files are
    missing."""
    known = families(models)
    found = [known[name] for name in names]
    missing_files = {family.name: family.missing() for family in found if family.missing()}
    if missing_files:
        paths = ", ".join(path for paths in missing_files.values() for path in paths)
        raise PeerError(f"Missing: {paths}. Create them with `python -m benchmarks.pairs {' '.join(missing_files)}`.")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("names", nargs="*", default=[*families()], help="families (default: all)", metavar="NAME")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder to create them in (default .peers/models)")
    parser.add_argument(
        "--llama-server", type=Path, help="path of llama-server, with llama-quantize in the same folder"
    )
    options = parser.parse_args()
    known = families(options.models)
    if unknown := set(options.names) - set(known):
        parser.error(f"unknown family: {', '.join(unknown)} (choose from {', '.join(known)})")
    for name in options.names:
        create(known[name], find(QUANTIZE, options.llama_server))
        print(*known[name].onward_models.values(), *known[name].peer_files.values(), sep="\n")
    return 0


if __name__ == "__main__":
    measure.run_main(main)
