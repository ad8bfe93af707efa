"""The same weights for both servers: OpenVINO IR folders for Onward, GGUF files for llama-server.

`python -m benchmarks.pairs` makes what is missing under .peers/models. `storyteller` needs nothing but llama.cpp's
programs; `qwen05b` (random weights in the shape of Qwen2.5-0.5B) needs torch and more, see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import random_model
from benchmarks.gguf_file import convert
from benchmarks.peer_build import PEERS, QUANTIZE, PeerError, find

MODELS = PEERS / "models"
BUILT_IN = PEERS.parent / "src" / "onward" / "models" / "storyteller"
TRAINED = PEERS.parent / "training" / "runs" / "cpu" / "float"
"""storyteller's float weights, where somebody has trained it here."""


@dataclass(frozen=True, slots=True)
class Family:
    """One network in several precisions. `ours` and `theirs` map a precision to a model name or folder, and to a
    GGUF file. `clients` are the loads to compare at, `waves` the requests a client and round, `rounds` those that
    count."""

    name: str
    vocabulary: int
    ours: dict[str, str]
    theirs: dict[str, Path]
    clients: tuple[int, ...]
    waves: dict[int, int]
    rounds: int

    def only(self, precisions: Iterable[str] | None) -> Family:
        """The same with these precisions alone; all where None. Raises PeerError when one side has none left."""
        if precisions is None:
            return self
        kept = set(precisions)
        ours = {name: model for name, model in self.ours.items() if name in kept}
        theirs = {name: path for name, path in self.theirs.items() if name in kept}
        if not ours or not theirs or kept - {*self.ours, *self.theirs}:
            raise PeerError(f"{self.name} has {', '.join(self.ours)} and {', '.join(self.theirs)}: name some of each.")
        return replace(self, ours=ours, theirs=theirs)

    def missing(self) -> list[str]:
        """Files and folders that have not been made."""
        folders = [Path(model) for model in self.ours.values() if "/" in model]
        return [str(path) for path in (*folders, *self.theirs.values()) if not path.exists()]


def families(models: Path = MODELS) -> dict[str, Family]:
    """By name; whether or not their files are there."""
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
            random_model.VOCABULARY,
            {name: str(qwen / f"qwen05b-{name}") for name in random_model.QUANTISED},
            {name: qwen / f"{name}.gguf" for name in ("Q8_0", "Q4_0")},
            (1, 8, 32),
            {1: 4, 8: 2, 32: 3},
            5,
        ),
    }


def make(family: Family, quantize: Path) -> None:
    """Make what is missing. Raises PeerError."""
    if not family.missing():
        return
    folder = next(iter(family.theirs.values())).parent
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        weights = described = Path(temporary)
        if family.name == "storyteller":
            described = BUILT_IN  # the environment that makes models need not have Onward in it
            weights = TRAINED if TRAINED.is_dir() else BUILT_IN
        else:
            _make_random(family, weights)
        _make_gguf(family.theirs, weights, described, quantize)


def _make_random(family: Family, folder: Path) -> None:
    try:
        random_model.make_float(folder)
        for precision, path in family.ours.items():
            if not Path(path).exists():
                random_model.export_ir(folder, Path(path), precision)
    except ImportError as error:
        raise PeerError(
            f"{family.name} needs {error.name}: benchmarks/README.md says how to make an environment for it."
        ) from error


def _make_gguf(files: dict[str, Path], weights: Path, described: Path, quantize: Path) -> None:
    with tempfile.TemporaryDirectory(dir=next(iter(files.values())).parent) as temporary:
        whole = Path(temporary) / "F16.gguf"
        convert(weights, described, whole)
        for kind, path in files.items():
            part = path.with_suffix(".part")
            subprocess.run([str(quantize), str(whole), str(part), kind], check=True, stdout=sys.stderr)
            part.replace(path)


def chosen(names: Iterable[str], models: Path) -> list[Family]:
    """The families of these names, all of whose files exist. Raises PeerError that says how to make them."""
    known = families(models)
    found = [known[name] for name in names]
    lacking = {family.name: family.missing() for family in found if family.missing()}
    if lacking:
        paths = ", ".join(path for missing in lacking.values() for path in missing)
        raise PeerError(f"Not there: {paths}. Make them: `python -m benchmarks.pairs {' '.join(lacking)}`.")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pairs", description=__doc__)
    parser.add_argument("names", nargs="*", default=[*families()], help="families (default: all)", metavar="NAME")
    parser.add_argument("--models", type=Path, default=MODELS, help="where to put them (default .peers/models)")
    parser.add_argument("--llama-server", type=Path, help="a llama.cpp program; llama-quantize lies beside it")
    options = parser.parse_args()
    known = families(options.models)
    if unknown := set(options.names) - set(known):
        parser.error(f"no such family: {', '.join(unknown)} (there are {', '.join(known)})")
    try:
        for name in options.names:
            make(known[name], find(QUANTIZE, options.llama_server))
            print(*known[name].ours.values(), *known[name].theirs.values(), sep="\n")
    except (PeerError, subprocess.CalledProcessError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
