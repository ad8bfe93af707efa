"""LoRA adapters in names of models: `BASE+PATH`."""

from __future__ import annotations

from pathlib import Path

from onward.checkpoints.paths import ADAPTER_CONFIG, is_gguf
from onward.runtimes.base import ModelFormat
from onward.runtimes.openvino.checkpoint_format import merge_problem


def split_adapter(name: str) -> tuple[str, Path | None]:
    """Return the base's name and the adapter's path; the name and None where no adapter is meant."""
    base, _, path = name.partition("+")
    if not base or not path or _exists(name):
        return name, None
    return base, Path(path).expanduser()


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):
        return False


def adapter_problem(base: Path, base_format: ModelFormat, adapter: Path) -> str:
    """Return why an adapter cannot be merged into the model at `base`, "" if nothing was found. Reads no weights."""
    if not base_format.takes_adapters:
        return (
            f"LoRA adapters are merged into GGUF and safetensors models; {base} is {base_format.name}. Merge it before "
            "the export."
        )
    if not (adapter / ADAPTER_CONFIG).is_file() and not is_gguf(adapter):
        return f"{adapter} is not a LoRA adapter: pass a folder with {ADAPTER_CONFIG}, or a GGUF file."
    first = base_format.files(base)[0]
    return merge_problem(first if is_gguf(first) else base, adapter)
