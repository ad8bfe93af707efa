"""What a folder needs to be a model: one sentence for each thing that is wrong."""

from __future__ import annotations

import json
from pathlib import Path

from onward.errors import ModelFolderError

GRAPH = "openvino_model.xml"
WEIGHTS = "openvino_model.bin"
TOKENIZER = "tokenizer.json"
CONFIG = "config.json"

FILES = (
    *(GRAPH, WEIGHTS, TOKENIZER, CONFIG),
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json"),
)
"""All that Onward reads of a model folder; the first three it cannot do without."""


EXPORTER = (
    "optimum-cli comes with `pip install 'optimum-intel[openvino]'`, best in an environment of its own, for it brings "
    "PyTorch."
)


def export_command(model: str) -> str:
    """How a model of the hub becomes a folder that Onward serves; EXPORTER says where the command comes from."""
    folder = model.rstrip("/").rpartition("/")[2] or "model"
    return f"`optimum-cli export openvino --model {model} --weight-format int8 {folder}-openvino`"


def faults(folder: Path) -> list[str]:
    """What keeps `folder` from being served, each as a sentence that says what to do. Empty: nothing seen.

    Looks at files only; whether the graph is a decoder is for the runtime to find.
    """
    if not folder.is_dir():
        return [f"{folder} is not a folder: give the folder that holds {GRAPH}."]
    found = [fault for name in (GRAPH, WEIGHTS) if (fault := _missing(folder, name))]
    if len(found) == 2:
        found = [_no_graph(folder)]
    if not (folder / TOKENIZER).is_file():
        found.append(
            f"{folder} lacks {TOKENIZER}: save it there with "
            "`AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER)`."
        )
    for name in (TOKENIZER, CONFIG):
        if (folder / name).is_file() and (fault := _broken_json(folder / name)):
            found.append(fault)
    return found


def check_folder(folder: Path) -> None:
    """Raises ModelFolderError with every fault of the folder."""
    if found := faults(folder):
        raise ModelFolderError(" ".join(found))


def _missing(folder: Path, name: str) -> str | None:
    path = folder / name
    if not path.is_file():
        return f"{folder} lacks {name}: copy or download it again."
    if path.stat().st_size == 0:
        return f"{path} is empty: copy or download it again."
    return None


def _no_graph(folder: Path) -> str:
    if any(folder.glob("*.gguf")):
        return f"{folder} holds a GGUF file, which Onward does not read yet: give an OpenVINO folder."
    if any(folder.glob("*.safetensors")):
        return f"{folder} holds safetensors weights: convert them with {export_command(str(folder))}. {EXPORTER}"
    made = f"make one with {export_command('MODEL')}. {EXPORTER}"
    return f"{folder} holds no OpenVINO model ({GRAPH} and {WEIGHTS}): {made}"


def _broken_json(path: Path) -> str | None:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        return f"{path} is not valid JSON ({error}): copy or download it again."
    return None if isinstance(content, dict) else f"{path} is not a JSON object."
