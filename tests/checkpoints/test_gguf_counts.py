"""Files with impossible counts are refused before anything is built from them; memory is at most the size of the
file."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from onward.checkpoints.json_files import MAX_JSON_ENTRIES
from onward.checkpoints.safetensors import MAX_ENTRIES
from tests.checkpoints.hugging_face import write_folder
from tests.checkpoints.making import text, value
from tests.examples import slow_but
from tests.models.doors import refusal

MAX_KIB = 150_000
"""By which the memory of the process may grow. The largest file that is read as a whole has 17 MB."""
STRINGS, INTEGERS = 8, 5
INDEX, KV_HEADS = "model.safetensors.index.json", "llama.attention.head_count_kv"


def _gguf(path: Path, *entries: bytes, more: int = 0) -> Path:
    """A file of metadata, followed by this many zeros, which take no space on the disk."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(entries) + 1)
    with path.open("wb") as file:
        file.write(head + text("general.architecture") + value("llama") + b"".join(entries))
        file.truncate(file.tell() + more)
    return path


def _array(name: str, kind: int, count: int) -> bytes:
    return text(name) + struct.pack("<IIQ", 9, kind, count)


SIZES = [
    text(f"llama.{name}") + value(number)
    for name, number in {
        "block_count": 2, "embedding_length": 64, "context_length": 64, "attention.head_count": 4,
    }.items()
]  # fmt: skip


def _folder(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir()
    common = {"config.json": b'{"model_type": "llama"}'}
    if "vocab.json" in files:
        common = {"config.json": b'{"model_type": "qwen2"}'}
    elif "tokenizer.model" not in files:
        common["tokenizer.json"] = b"{}"
    for name, content in (common | files).items():
        (path / name).write_bytes(content)
    return path


def _safetensors(header: bytes) -> dict[str, bytes]:
    return {"model.safetensors": struct.pack("<Q", len(header)) + header}


def _many_tensors(path: Path) -> Path:
    entry = b'"%d":{"dtype":"F32","shape":[],"data_offsets":[0,0]}'
    return _folder(path, _safetensors(b"{" + b",".join(entry % number for number in range(MAX_ENTRIES + 1)) + b"}"))


def _many_heads(path: Path, name: str = "glm4") -> Path:
    write_folder(path, name)
    stated = json.loads((path / "config.json").read_text(encoding="utf-8"))
    heads = {"num_attention_heads": 3_000_000, "num_key_value_heads": 3_000_000}
    (path / "config.json").write_text(json.dumps(stated | heads), encoding="utf-8")
    return path


def _long_norm(path: Path, name: str = "gemma", norm: str = "norm", **stated: int) -> Path:
    """A folder with a norm of half a billion zeros, which take no space on the disk."""
    write_folder(path, name)
    config = json.loads((path / "config.json").read_text(encoding="utf-8")) | stated
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    size, axes = 1 << 29, [1 << 29] if not stated else [1 << 25, 16]
    entry = {"dtype": "F32", "shape": axes, "data_offsets": [0, 4 * size]}
    header = json.dumps({f"model.{norm}.weight": entry}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    os.truncate(path / "model.safetensors", 8 + len(header) + 4 * size)
    return path


def _long_head_norm(path: Path) -> Path:
    heads = {"num_attention_heads": 1 << 25, "num_key_value_heads": 1 << 25, "head_dim": 16}
    return _long_norm(path, "command-r, head norms", "layers.0.self_attn.q_norm", **heads)


def _long_texts(path: Path) -> Path:
    """A file with texts of a megabyte of zeros, which take no space on the disk."""
    _gguf(path, _array("x", STRINGS, 200))
    with path.open("r+b") as file:
        for _ in range(200):
            file.seek(0, os.SEEK_END)
            file.write(struct.pack("<Q", 1 << 20))
            file.truncate(file.tell() + (1 << 20))
    return path


def _long_tensor(path: Path, name: str, kind: int, *axes: int) -> Path:
    """A file with a tensor of zeros, which take no space on the disk, whose rows are as many as those of all heads."""
    sizes = {
        "block_count": 2, "embedding_length": 1, "context_length": 64, "attention.head_count": 1 << 20,
        "attention.key_length": 64,
    }  # fmt: skip
    entries = [text("general.architecture") + value("llama")]
    entries += [text(f"llama.{key}") + value(number) for key, number in sizes.items()]
    stated = text(name) + struct.pack("<I", len(axes)) + b"".join(struct.pack("<Q", axis) for axis in axes)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(entries)) + b"".join(entries) + stated
    with path.open("wb") as file:
        file.write(head + struct.pack("<IQ", kind, 0))
        file.truncate(-(-file.tell() // 32) * 32 + 4 * (1 << 26))
    return path


MODEL = {"model.safetensors": struct.pack("<Q", 2) + b"{}"}
COUNTS: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a number per layer": (
        lambda path: _gguf(path, *SIZES, _array(KV_HEADS, INTEGERS, 75_000_000), more=300_000_000),
        "a list of 75000000 numbers",
    ),
    "numbers of tokens that are never generated": (
        lambda path: _gguf(path, _array("tokenizer.ggml.suppress_tokens", INTEGERS, 10**8), more=400_000_000),
        "a list of 100000000 numbers",
    ),
    "a number for more layers than there are": (
        lambda path: _gguf(path, *SIZES, _array(KV_HEADS, INTEGERS, 4_000_000), more=16_000_000),
        "states 4000000 values as 'attention.head_count_kv', but has 2 layers",
    ),
    "long texts of zeros": (_long_texts, "more than 128 MB of text"),
    "more numbers than the file has": (
        lambda path: _gguf(path, _array("x", INTEGERS, 4_000_000), more=100_000), "cut off",
    ),
    "a list of empty texts": (
        lambda path: _gguf(path, _array("x", STRINGS, 4_000_000), more=32_000_000), "a list of 4000000 strings",
    ),
    "several lists of empty texts": (
        lambda path: _gguf(path, *(_array(name, STRINGS, 900_000) + bytes(7_200_000) for name in "abc")),
        "a list of 900000 strings",
    ),
    "empty tokens": (
        lambda path: _folder(path, {"tokenizer.model": b"\x0a\0" * 2_000_000, **MODEL}), "too many of them",
    ),
    "fields": (
        lambda path: _folder(path, {"tokenizer.model": b"\x58\0" * 3_000_000, **MODEL}), "more fields than any model",
    ),
    "entries of vocab.json": (
        lambda path: _folder(path, {"vocab.json": b'{"a":1' + b',"":1' * 1_100_000 + b"}", "merges.txt": b"", **MODEL}),
        "more entries than any vocabulary",
    ),
    "merges": (
        lambda path: _folder(path, {"vocab.json": b'{"a":0}', "merges.txt": b"\n" * 1_100_000, **MODEL}),
        "more lines than any list of merges",
    ),
    "tensors": (_many_tensors, f"{MAX_ENTRIES + 1} tensors"),
    "heads, whose rows are put in order": (_many_heads, "'blk.0.attn_q.weight' has the shape [64, 64]"),
    "heads whose keys and values are made together": (
        lambda path: _many_heads(path, "deepseek2, joined"), "attn_kv_b.weight' has the shape [176, 40], which contra",
    ),
    "a long header": (lambda path: _folder(path, _safetensors(b" " * 17_000_000)), "a header of 17000000 bytes"),
    "a nested header": (
        lambda path: _folder(path, _safetensors(b'{"a":[' + b"[[],[]]," * 1_500_000 + b"[]]}")), "states no tensors",
    ),
    "axes": (
        lambda path: _folder(
            path,
            _safetensors(b'{"a":{"dtype":"F32","data_offsets":[0,0],"shape":[' + b"9," * 1_000_000 + b"1]}}"),
        ),
        "an impossible shape",
    ),
    "rows of one number, which are put in order": (
        lambda path: _long_tensor(path, "blk.0.attn_q.weight", 1, 1, 1 << 26), "of the shape [67108864, 1], which no",
    ),
    "numbers of a bias, which are put in order": (
        lambda path: _long_tensor(path, "blk.0.attn_q.bias", 0, 1 << 26), "of the shape [67108864], which no model",
    ),
    "numbers of a norm of each head": (_long_head_norm, "of the shape [33554432, 16], which no model has"),
    "numbers of a norm": (_long_norm, "of the shape [536870912], which no model has"),
    "files": (
        lambda path: _folder(
            path,
            {INDEX: json.dumps({"weight_map": {str(n): "m" for n in range(MAX_JSON_ENTRIES + 1)}}).encode()},
        ),
        "more entries than any model's",
    ),
    "a name with a zero": (
        lambda path: _folder(path, {INDEX: b'{"weight_map": {"a": "m\\u0000.safetensors"}}'}),
        "does not list the files of a model",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", slow_but([*COUNTS][::3], COUNTS))
def test_counts_that_no_model_has_are_refused_before_memory_is_allocated(name: str, tmp_path: Path) -> None:
    make, words = COUNTS[name]
    path = make(tmp_path / "m.gguf")
    resource = pytest.importorskip("resource")
    refusal(tmp_path / "nothing.gguf")  # imports
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert words in refusal(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MAX_KIB
