"""LoRA adapters in names of models: `BASE+PATH`."""

from __future__ import annotations

import os
from pathlib import Path

from onward.checkpoints.paths import ADAPTER_CONFIG, is_gguf
from onward.runtimes.base import ModelFormat
from onward.runtimes.checkpoint_format import merge_problem


def split_adapter(name: str) -> tuple[str, Path | None]:
    """Return the base's name and the adapter's path; the name and None where no adapter is meant. Paths may contain a
    plus themselves, so what exists decides."""
    if _exists(name):
        return name, None
    pairs = [(name[:place], name[place + 1 :]) for place, letter in enumerate(name) if letter == "+"]
    pairs = [(base, path) for base, path in pairs if base and path]
    found = next(((base, path) for base, path in reversed(pairs) if _exists(path)), None)
    if found is None and "++" not in name and pairs and os.sep not in pairs[0][0]:
        found = pairs[0]
    return (found[0], Path(found[1]).expanduser()) if found else (name, None)


def _exists(name: str) -> bool:
    try:
        return Path(name).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def adapter_problem(base: Path, base_format: ModelFormat, adapter: Path) -> str:
    """Return why an adapter cannot be merged into the model at `base`, "" if nothing was found. Reads no weights."""
    if not base_format.takes_adapters:
        return (
            f"LoRA adapters are merged into GGUF and safetensors models; {base} is {base_format.name}. Merge it before "
            "the export."
        )
    if not (adapter / ADAPTER_CONFIG).is_file() and not is_gguf(adapter):
        reason = "is not a LoRA adapter" if _exists(str(adapter)) else "does not exist"
        return f"{adapter} {reason}: pass a folder with {ADAPTER_CONFIG}, or a GGUF file."
    first = base_format.files(base)[0]
    return merge_problem(first if is_gguf(first) else base, adapter)
