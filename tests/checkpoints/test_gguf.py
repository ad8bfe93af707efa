"""GGUF files: whole, in parts, and broken in every way. Every fault is a clear error, never a crash."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onward.checkpoints.cursor import Strings
from onward.checkpoints.gguf import read_gguf, without_tensors
from onward.checkpoints.paths import is_gguf
from onward.errors import CheckpointError
from tests.checkpoints.making import (
    FUZZ,
    Stored,
    floats,
    gguf_bytes,
    random_blocks,
    text,
    value,
    with_bytes,
    write_gguf,
)

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "number": 7,
    "real": 1.5,
    "flag": True,
    "words": ["a", "", "ä"],
    "numbers": [1, -2, 3],
    "reals": [0.5, 1.0],
}
TENSORS: dict[str, Stored] = {"a": floats(np.arange(6.0).reshape(2, 3)), "b": floats(np.arange(4.0))}
WHOLE = gguf_bytes(METADATA, TENSORS)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [32, 64])
def test_metadata_and_tensors_are_read(version: int, alignment: int, tmp_path: Path) -> None:
    metadata = {**METADATA, "general.alignment": alignment}
    path = write_gguf(tmp_path / "m.gguf", metadata, TENSORS, version=version, alignment=alignment)
    found = read_gguf(path)
    assert found.metadata.keys() == metadata.keys()
    for name, stated in found.metadata.items():
        listed = stated.tolist() if isinstance(stated, np.ndarray) else stated
        assert (list(listed) if isinstance(listed, Strings) else listed) == metadata[name]
    assert found.tensors["a"].shape == (2, 3)
    np.testing.assert_array_equal(found.tensors["a"].floats(), np.arange(6.0).reshape(2, 3))
    np.testing.assert_array_equal(found.tensors["b"].floats().reshape(-1), np.arange(4.0))


def test_lists_of_texts_are_decoded_when_they_are_used(tmp_path: Path) -> None:
    stored = struct.pack("<IIQ", 9, 8, 4) + b"".join(
        struct.pack("<Q", len(each)) + each for each in (b"a", b"", b"\xff\xe4", "ä".encode())
    )
    path = tmp_path / "m.gguf"
    path.write_bytes(_head(num_entries=1) + text("words") + stored)
    words = read_gguf(path).metadata["words"]
    assert isinstance(words, Strings) and len(words) == 4
    assert list(words) == list(words) == ["a", "", "\ufffd\ufffd", "ä"]
    assert (words[3], words[-4], words[1:3]) == ("ä", "a", ["", "\ufffd\ufffd"])
    assert words.stored == stored[16:]


def test_the_metadata_of_a_file_are_a_file_of_their_own(tmp_path: Path) -> None:
    """As soon as there is enough of it; what says that it is a part of a model is left out."""
    metadata: dict[str, Any] = {
        "a": 1,
        "split.no": 0,
        "tokens": ["x", "é"],
        "split.count": 7,
        "b": [0.5, 1.5],
        "c": "y" * 300,
    }
    content = write_gguf(tmp_path / "whole.gguf", metadata, {"t": floats(np.ones((2, 32), np.float32))}).read_bytes()
    begun = content[: content.index(b"y" * 300) + 300]
    (tmp_path / "m.gguf").write_bytes(without_tensors(begun, "m"))
    found = read_gguf(tmp_path / "m.gguf")
    assert list(found.metadata) == ["a", "tokens", "b", "c"] and not found.tensors
    assert list(found.metadata["tokens"]) == ["x", "é"] and found.metadata["c"] == "y" * 300  # type: ignore[arg-type]
    for length in range(len(begun)):
        with pytest.raises(CheckpointError):
            without_tensors(begun[:length], "m")


def test_parts_are_read_as_one_model_from_any_of_them(tmp_path: Path) -> None:
    names = [f"m-{number:05}-of-00002.gguf" for number in (1, 2)]
    write_gguf(tmp_path / names[0], {**METADATA, "split.count": 2}, {"a": TENSORS["a"]})
    write_gguf(tmp_path / names[1], {"split.count": 2}, {"b": TENSORS["b"]})
    for name in names:
        found = read_gguf(tmp_path / name)
        assert set(found.tensors) == {"a", "b"} and found.metadata["number"] == 7
        assert [path.name for path in found.paths] == names


def test_a_part_that_is_missing_or_renamed_is_reported_in_one_message(tmp_path: Path) -> None:
    part = write_gguf(tmp_path / "m-00001-of-00002.gguf", {"split.count": 2}, TENSORS)
    with pytest.raises(CheckpointError, match=r"m-00002-of-00002\.gguf does not exist"):
        read_gguf(part)
    with pytest.raises(CheckpointError, match="is one of 2 parts"):
        read_gguf(part.rename(tmp_path / "m.gguf"))


def test_a_tensor_in_two_parts_is_reported_in_one_message(tmp_path: Path) -> None:
    for number in (1, 2):
        write_gguf(tmp_path / f"m-{number:05}-of-00002.gguf", {}, TENSORS)
    with pytest.raises(CheckpointError, match="in another part too"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


def _head(num_tensors: int = 0, num_entries: int = 0, version: int = 3) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", version, num_tensors, num_entries)


def _tensor(shape: tuple[int, ...], number: int = 0, offset: int = 0) -> bytes:
    return text("t") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, number, offset)


BROKEN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "another file": (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
    "head cut off": (b"GGUF\x03\0\0\0", "cut off"),
    "version 1": (_head(version=1), "version 1"),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
    "countless tensors": (_head(num_tensors=2**63), "tensors"),
    "countless entries": (_head(num_entries=2**40), "entries"),
    "endless key": (_head(num_entries=1) + struct.pack("<Q", 2**62), "a string of"),
    "key cut off": (_head(num_entries=1) + struct.pack("<Q", 100) + b"abc", "cut off"),
    "unknown kind": (_head(num_entries=1) + text("k") + struct.pack("<IQ", 99, 0), "unknown type 99"),
    "list in a list": (_head(num_entries=1) + text("k") + struct.pack("<IIQI", 9, 9, 1, 4), "unknown type 9"),
    "endless list": (_head(num_entries=1) + text("k") + struct.pack("<IIQ", 9, 4, 2**60), "a list of"),
    "list cut off": (_head(num_entries=1) + text("k") + struct.pack("<IIQ", 9, 4, 50), "cut off"),
    "endless strings": (_head(num_entries=1) + text("k") + struct.pack("<IIQ", 9, 8, 2**60), "a list of"),
    "strings cut off": (_head(num_entries=1) + text("k") + struct.pack("<IIQQ", 9, 8, 1, 50), "cut off"),
    "a key twice": (_head(num_entries=2) + 2 * (text("k") + value(1)), "twice"),
    "alignment": (_head(num_entries=1) + text("general.alignment") + value(24), "alignment of 24"),
    "many dimensions": (_head(num_tensors=1) + _tensor((1,) * 9), "9 dimensions"),
    "half a block": (_head(num_tensors=1) + _tensor((33,), number=2) + bytes(100), "impossible shape"),
    "endless tensor": (_head(num_tensors=1) + _tensor((2**40, 2**40)) + bytes(100), "not within the file"),
    "tensor beyond the end": (_head(num_tensors=1) + _tensor((4,), offset=2**50) + bytes(100), "not within the file"),
    "not aligned": (_head(num_tensors=1) + _tensor((4,), offset=8) + bytes(200), "not aligned"),
    "a tensor twice": (_head(num_tensors=2) + 2 * _tensor((4,)) + bytes(200), "twice"),
    "unsupported type": (_head(num_tensors=1) + _tensor((256,), number=28) + bytes(2048), "F64"),
    "unknown type": (_head(num_tensors=1) + _tensor((256,), number=77) + bytes(200), "number 77"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_reported_in_one_message(name: str, tmp_path: Path) -> None:
    content, words = BROKEN[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)


def test_types_of_tables_without_their_package_are_reported_in_one_sentence_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_bytes(_head(num_tensors=1) + _tensor((256,), number=17) + bytes(200))
    assert read_gguf(tmp_path / "m.gguf").tensors["t"].type.name == "IQ2_XS"
    monkeypatch.setattr("onward.checkpoints.gguf._has_codebooks", lambda: False)
    with pytest.raises(CheckpointError, match=r"the type IQ2_XS, .*`pip install 'onward\[gguf\]'"):
        read_gguf(tmp_path / "m.gguf")


def test_tensors_that_overlap_are_reported_in_one_sentence(tmp_path: Path) -> None:
    second = text("u") + struct.pack("<IQIQ", 1, 4, 0, 32)
    content = _head(num_tensors=2) + _tensor((16,)) + second + bytes(300)
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(CheckpointError, match="overlap"):
        read_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize("last", [b"", text("v") + struct.pack("<IQIQ", 1, 4, 0, 704)])
def test_blocks_of_another_q2_0_are_reported_in_one_sentence_that_says_what_to_use(last: bytes, tmp_path: Path) -> None:
    """Two tensors of ten blocks of 128 weights, 34 bytes each: PrismML's files have the same number of a type."""
    other = text("u") + struct.pack("<IQIQ", 1, 1280, 42, 352)
    head = _head(num_tensors=2 + bool(last)) + _tensor((1280,), number=42) + other + last
    (tmp_path / "m.gguf").write_bytes(head + bytes(-len(head) % 32) + bytes(704 + 16 * bool(last)))
    words = "overlap" if last else "not within the file"
    with pytest.raises(CheckpointError, match=rf"{words}: either .* blocks of 128 weights .*Q2_0_g64\.gguf"):
        read_gguf(tmp_path / "m.gguf")


def test_matrices_of_nvfp4_are_multiplied_with_a_tensor_of_their_own(tmp_path: Path) -> None:
    matrix, experts = random_blocks("NVFP4", 6, 64), random_blocks("NVFP4", 6, 64, seed=1)
    stored = {
        "q.weight": matrix, "q.scale": floats(np.array([0.3])), "q.input_scale": floats(np.array([7.0])),
        "e_exps.weight": (experts[0], (3, 2, 64), experts[2]), "e_exps.scale": floats(np.array([0.3, 2.0, -5.0])),
        "k.weight": matrix, "v.weight": floats(np.ones((1, 2))), "v.scale": floats(np.array([2.0])),
    }  # fmt: skip
    tensors = read_gguf(write_gguf(tmp_path / "m.gguf", {}, stored)).tensors
    assert set(tensors) == {"q.weight", "e_exps.weight", "k.weight", "v.weight", "v.scale"}
    plain = tensors["k.weight"].floats()
    np.testing.assert_allclose(tensors["q.weight"].floats(), plain * 0.3, rtol=1e-6)
    order = np.array([3, 1])
    np.testing.assert_array_equal(tensors["q.weight"].selected(order).floats(), tensors["q.weight"].floats()[order])
    whole = tensors["e_exps.weight"].floats()
    parts = [tensors["e_exps.weight"].part(index).floats() for index in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), whole)
    alone = replace(tensors["e_exps.weight"], factors=None).floats()
    np.testing.assert_allclose(whole, alone * np.repeat(np.array([0.3, 2, -5]), 2)[:, None], rtol=1e-6)
    for wrong in (np.ones(2), np.ones((2, 3))):
        path = write_gguf(tmp_path / "m.gguf", {}, stored | {"e_exps.scale": floats(wrong)})
        with pytest.raises(CheckpointError, match=r"'e_exps\.scale' of F32 .* instead of 3 of F32"):
            read_gguf(path)


def test_a_file_that_does_not_exist_is_reported_in_one_message(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        read_gguf(tmp_path / "m.gguf")
    assert not is_gguf(tmp_path / "m.gguf")


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bytes], None]:
    """Reads bytes as a file, and everything that it states; only CheckpointError may be raised."""
    path = tmp_path_factory.mktemp("fuzz") / "m.gguf"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        try:
            found = read_gguf(path)
        except CheckpointError:
            return
        assert sum(tensor.data.nbytes for tensor in found.tensors.values()) <= len(content)
        for tensor in found.tensors.values():
            tensor.floats()
        for stated in found.metadata.values():
            assert not isinstance(stated, Strings) or len(list(stated)) == len(stated)

    return read


@pytest.mark.parametrize("length", range(0, len(WHOLE), 7))
def test_a_file_that_is_cut_anywhere_is_reported_in_one_message(length: int, reading: Callable[[bytes], None]) -> None:
    reading(WHOLE[:length])


@FUZZ
@given(changes=st.dictionaries(st.integers(0, len(WHOLE) - 1), st.integers(0, 255), max_size=8))
def test_a_file_with_other_bytes_anywhere_never_crashes(
    changes: dict[int, int], reading: Callable[[bytes], None]
) -> None:
    reading(with_bytes(WHOLE, changes))


@FUZZ
@given(content=st.binary(max_size=400))
def test_random_bytes_never_crash(content: bytes, reading: Callable[[bytes], None]) -> None:
    reading(content)
    reading(WHOLE[:24] + content)
