"""Which files are GGUF files, and which belong together. Cheap to import."""

from __future__ import annotations

import re
from pathlib import Path

MAGIC = b"GGUF"
MAX_PARTS = 1000
SAFETENSORS = ".safetensors"
CONFIG, WHOLE, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
"""Files of a folder with safetensors: the configuration, all weights, or the list of the files that contain them."""
QUANTISATION = "hf_quant_config.json"
"""Where ModelOpt states how weights are quantised; newer versions state it in config.json, too."""
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
_COMPANION = re.compile(r"mmproj|imatrix", re.IGNORECASE)

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
"""Files of a folder with a LoRA adapter."""


def adapter_files(path: Path) -> tuple[Path, ...]:
    """Return the files that an adapter is read from."""
    return (path / ADAPTER_WEIGHTS, path / ADAPTER_CONFIG) if path.is_dir() else (path,)


def is_companion(name: str) -> bool:
    """Return whether a file accompanies a model without being one: an image projector, or an importance matrix."""
    return _COMPANION.search(name) is not None


def is_gguf(path: Path) -> bool:
    """Return whether a file begins like a GGUF file. Never raises."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def part_paths(path: Path) -> tuple[Path, ...]:
    """Return all parts of a file named `…-00001-of-00003.gguf`, whichever one `path` is; else the path alone."""
    found = _PART.fullmatch(path.name)
    if found is None or not 0 < int(found["count"]) <= MAX_PARTS:
        return (path,)
    count = found["count"]
    return tuple(path.with_name(f"{found['stem']}-{number:05}-of-{count}.gguf") for number in range(1, int(count) + 1))
