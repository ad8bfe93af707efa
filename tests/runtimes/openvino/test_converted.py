"""GGUF files as models: converted once, kept, and refused with a sentence where they cannot be computed."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import onward
from onward.errors import CheckpointError, ModelFolderError, ServerError, SetupError
from onward.models.check import check_model
from onward.models.resolve import resolve
from onward.runtimes.gguf_format import GGUFFormat
from onward.runtimes.openvino import converted as conversion
from onward.runtimes.openvino.conversion_cache import FOLDER, conversions
from onward.runtimes.openvino.graphs.weights_file import WeightsFile
from onward.runtimes.openvino.library import ops, ov
from onward.runtimes.options import RuntimeOptions
from tests.checkpoints.making import floats, write_gguf
from tests.checkpoints.tiny import tiny


def model_file(path: Path, seed: int = 0, **changed: Any) -> Path:
    metadata, tensors = tiny("llama", seed)
    stored = {name: floats(array) for name, array in tensors.items()}
    return write_gguf(path, {**metadata, **changed}, stored)


def load(path: Path, cache: Path | None, **more: Any) -> tuple[str, list[str]]:
    """The model's fingerprint, and what was said while it loaded."""
    said: list[str] = []
    options = RuntimeOptions(runtime="openvino", threads=1, kv_memory=8_000_000, cache_dir=cache, **more)
    model = GGUFFormat().load(path, options, said.append)
    model.model.close()
    return model.fingerprint, said


def test_a_file_is_converted_once_whatever_its_name(tmp_path: Path) -> None:
    path, cache = model_file(tmp_path / "a.gguf"), tmp_path / "cache"
    fingerprint, said = load(path, cache)
    assert said == ["Converting a.gguf for this machine (once)"]
    assert load(path, cache) == (fingerprint, [])
    moved = path.rename(tmp_path / "b.gguf")
    assert load(moved, cache)[0] == fingerprint == load(moved, tmp_path / "other cache")[0]


def test_the_fingerprint_changes_with_content_and_precision(tmp_path: Path) -> None:
    one, two = (model_file(tmp_path / f"{seed}.gguf", seed) for seed in (1, 2))
    found = {load(one, tmp_path)[0], load(two, tmp_path)[0], load(one, tmp_path, precision="exact")[0]}
    assert len(found) == 3


def test_the_fingerprint_changes_with_the_form_of_the_weights(tmp_path: Path) -> None:
    path = model_file(tmp_path / "m.gguf")
    found = {load(path, tmp_path, weights=form)[0] for form in ("auto", "exact", "int8", "int4")}
    assert len(found) == 4
    assert load(path, tmp_path, weights="int4")[1] == []


def test_exact_precision_refuses_other_weights(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--weights int8 changes them: leave out one"):
        load(model_file(tmp_path / "m.gguf"), tmp_path, precision="exact", weights="int8")


def test_the_models_used_longest_ago_make_room_for_new_ones(tmp_path: Path) -> None:
    first, second, third = (model_file(tmp_path / f"{name}.gguf", seed) for seed, name in enumerate("abc"))
    load(first, tmp_path)
    load(second, tmp_path)
    [newest, oldest] = conversions(tmp_path)
    os.utime(oldest.path, (1, 1))
    os.utime(newest.path, (2, 2))
    assert load(first, tmp_path)[1] == []  # used again: now the second one is the older one
    room = 2 * newest.num_bytes + 1000
    said = load(third, tmp_path, cache_size=room)[1]
    assert said[1] == f"Removed the converted model {newest.name} from the cache (--cache-size)"
    assert {each.name[0] for each in conversions(tmp_path)} == {"a", "c"}
    load(second, tmp_path, cache_size=1)
    assert [each.name[0] for each in conversions(tmp_path)] == ["b"], "the one that is loaded stays"


def test_without_a_cache_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = model_file(tmp_path / "m.gguf")
    assert load(path, None)[1]
    assert [each.name for each in tmp_path.iterdir()] == ["m.gguf"]


def test_an_unfinished_conversion_is_done_again_and_removed(tmp_path: Path) -> None:
    path, cache = model_file(tmp_path / "m.gguf"), tmp_path / "cache"
    load(path, cache)
    (only,) = (cache / FOLDER).iterdir()
    only.rename(only.with_name(f".part-{only.name}-killed"))  # as Ctrl-C, a minute ago, would leave it
    old, other = cache / FOLDER / ".part-old", cache / FOLDER / ".part-other"
    for each in (old, other):
        each.mkdir()
    os.utime(old, (0, 0))
    load(path, cache)
    assert {each.name for each in (cache / FOLDER).iterdir()} == {only.name, other.name}


def write_in(folder: Path, name: str, content: Callable[[bytes], bytes]) -> None:
    path = folder / name
    path.write_bytes(content(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("openvino_model.bin", lambda whole: whole[:-100]),
        ("openvino_model.bin", lambda whole: whole[:-100] + bytes(100)),
        ("openvino_model.xml", lambda whole: whole.replace(b'offset="0"', b'offset="9"')),
        ("config.json", lambda whole: b""),
        ("conversion.json", lambda whole: b"{}"),
        ("conversion.json", lambda whole: b'{"openvino_model.bin": 1}'),
    ],
)
def test_a_damaged_conversion_is_done_again(name: str, content: Callable[[bytes], bytes], tmp_path: Path) -> None:
    path, cache = model_file(tmp_path / "m.gguf"), tmp_path / "cache"
    fingerprint, _ = load(path, cache)
    (folder,) = (cache / FOLDER).iterdir()
    whole = (folder / "openvino_model.bin").read_bytes()
    write_in(folder, name, content)
    os.utime(folder / name, (1, 1))
    again, said = load(path, cache)
    assert again == fingerprint and said[0].endswith("is damaged: it is converted again")
    assert (folder / "openvino_model.bin").read_bytes() == whole
    assert load(path, cache) == (fingerprint, [])


def test_a_second_process_waits_for_the_first_and_uses_what_it_made(tmp_path: Path) -> None:
    path, cache = model_file(tmp_path / "m.gguf"), tmp_path / "cache"
    with ThreadPoolExecutor() as executor:
        found = list(executor.map(lambda _: load(path, cache), range(3)))
    assert len({fingerprint for fingerprint, _ in found}) == 1
    assert sum("Converting m.gguf for this machine (once)" in said for _, said in found) == 1
    assert len(list((cache / FOLDER).iterdir())) == 1


def test_the_graph_of_a_file_reads_its_weights_at_their_places(tmp_path: Path) -> None:
    one, other = np.arange(12, dtype=np.float32).reshape(3, 4), np.full((3, 4), 7, np.float32)
    with WeightsFile(tmp_path / "w.bin") as file:
        nodes = [file.constant(array, ov.Type.f32, [3, 4]) for array in (one, other, one)]
        small = ops.constant(np.asarray([1, 2, 3, 4], np.float32))
        result = ops.result(ops.add(ops.multiply(ops.subtract(nodes[0], nodes[1]), small), nodes[2]))
        digest = file.write_graph(ov.Model([result], [], "m"), tmp_path / "w.xml")
    assert digest == hashlib.sha256((tmp_path / "w.bin").read_bytes()).hexdigest()
    request = ov.Core().compile_model(tmp_path / "w.xml", "CPU").create_infer_request()
    np.testing.assert_array_equal(request.infer()[0], (one - other) * [1, 2, 3, 4] + one)


def test_a_disk_that_fails_while_weights_are_written_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: WeightsFile, *arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(WeightsFile, "_write", fail)
    with pytest.raises(SetupError, match=r"could not be written to .* \(No space left on device\)"):
        load(model_file(tmp_path / "m.gguf"), tmp_path / "cache")
    assert list((tmp_path / "cache" / FOLDER).iterdir()) == []


def test_a_full_disk_is_a_sentence_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = model_file(tmp_path / "m.gguf"), tmp_path / "cache"
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(SetupError, match="of free space, but the converted model needs"):
        load(path, cache)
    assert list((cache / FOLDER).iterdir()) == []


def test_a_file_that_changes_while_it_is_read_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache, write = model_file(tmp_path / "m.gguf"), tmp_path / "cache", conversion._write

    def write_and_change(*arguments: Any) -> dict[str, str]:
        written = write(*arguments)
        path.write_bytes(path.read_bytes()[:-1] + b"\1")
        return written

    monkeypatch.setattr(conversion, "_write", write_and_change)
    with pytest.raises(CheckpointError, match="was changed while it was read"):
        load(path, cache)


def test_a_folder_with_one_file_is_that_model_and_with_two_a_question(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    model_file(folder / "m.gguf")
    assert check_model(folder).name == "GGUF"
    assert resolve(str(folder / "m.gguf")).id == "m"
    model_file(folder / "n.gguf")
    with pytest.raises(ModelFolderError, match=r"several models \(m.gguf, n.gguf\): pass the path of one"):
        check_model(folder)


def test_what_a_file_states_is_shown(tmp_path: Path) -> None:
    known = {"context_length": 512, "kind": "llama", "vocabulary": 30}
    plain = GGUFFormat().facts(model_file(tmp_path / "m.gguf"))
    assert known.items() <= plain.items()
    named = model_file(tmp_path / "n.gguf", **{"general.file_type": 15})
    assert GGUFFormat().facts(named) == {**plain, "quantisation": "Q4_K_M"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba'.*It computes cohere2, gemma3"),
        ({"llama.expert_count": 8}, "a mixture of experts"),
        ({"llama.attn_logit_softcapping": 50.0}, "soft-capped attention"),
        ({"llama.rope.scaling.type": "dynamic"}, "'dynamic'"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 0.5}, "its numbers are impossible"),
        ({"llama.rope.scaling.factor": -2.0}, "no model can have"),
        ({"llama.rope.freq_base": 0.0}, "a base of positions that no model can have"),
        ({"llama.attention.head_count": 0}, "with which Onward cannot compute"),
        ({"llama.attention.head_count": "four"}, "with which Onward cannot compute"),
        ({"llama.attention.head_count_kv": 3}, "no model can have"),
        ({"llama.embedding_length": 32}, "has the shape"),
        ({"llama.block_count": 9}, "no tensor 'blk.2.attn_q.weight'"),
        ({"llama.final_logit_softcapping": 30.0}, "soft-capped logits"),
        ({"llama.logit_scale": 8.0}, "scaled logits"),
        ({"llama.attention.sliding_window": 64}, "attends to 64 tokens at a time"),
        ({"llama.attention.causal": False}, "model of embeddings"),
        ({"llama.block_count": 1}, "tensor 'blk.1.attn_.*does not compute for 'llama'"),
        ({"llama.attention.value_length": 8}, "of different sizes"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = model_file(tmp_path / "m.gguf", **changed)
    with pytest.raises(ModelFolderError, match=words):
        check_model(path)


def test_a_tensor_that_the_graph_would_leave_out_is_refused(tmp_path: Path) -> None:
    metadata, tensors = tiny("llama")
    tensors["blk.0.attn_sinks.weight"] = np.zeros(4, np.float32)
    path = write_gguf(tmp_path / "m.gguf", metadata, {name: floats(array) for name, array in tensors.items()})
    with pytest.raises(ModelFolderError, match=r"tensor 'blk\.0\.attn_sinks\.weight', which Onward does not compute"):
        check_model(path)


def test_a_conversion_that_may_not_be_written_to_is_used(tmp_path: Path) -> None:
    path, cache = model_file(tmp_path / "m.gguf"), tmp_path / "cache"
    fingerprint, _ = load(path, cache)
    (converted,) = (cache / FOLDER).iterdir()
    converted.chmod(0o555)
    assert load(path, cache) == (fingerprint, [])


def test_weights_that_are_not_numbers_end_requests_and_not_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONWARD_CACHE_DIR", str(tmp_path))
    metadata, tensors = tiny("llama")
    tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)
    path = write_gguf(tmp_path / "m.gguf", metadata, {name: floats(array) for name, array in tensors.items()})
    with onward.Onward(model=str(path), kv_memory="8MB") as client:
        for _ in range(2):
            with pytest.raises(ServerError):
                client.completions.create(prompt="abc", max_tokens=2)
