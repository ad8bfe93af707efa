"""Names of GGUF files on the hub, of Ollama's models, and of the catalogue."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from onward.errors import ModelNameError
from onward.models import hub as hub_module
from onward.models import resolve as resolving
from onward.models.gguf_names import choose
from onward.models.hub import hub_name
from onward.models.resolve import resolve, split_adapter
from onward.settings import Settings, adapted_models
from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny

FILES = [
    "README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-f16-00001-of-00002.gguf",
    "m-f16-00002-of-00002.gguf", "mmproj-m-f16.gguf", "sub/m-IQ4_XS.gguf",
]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("", ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("Q4_K_S", ["m-Q4_K_S.gguf"]),
        ("F16", ["m-f16-00001-of-00002.gguf", "m-f16-00002-of-00002.gguf"]),
        ("m-Q8_0.gguf", ["m-Q8_0.gguf"]),
        ("m-IQ4_XS.gguf", ["sub/m-IQ4_XS.gguf"]),
    ],
)
def test_a_file_is_chosen_by_its_quantisation(wanted: str, found: list[str]) -> None:
    assert choose(FILES, wanted, "org/name") == found


def test_without_the_usual_one_the_next_best_is_taken() -> None:
    assert choose(["a-Q8_0.gguf", "a-Q5_K_M.gguf"], "", "org/name") == ["a-Q5_K_M.gguf"]
    assert choose(["model.gguf"], "", "org/name") == ["model.gguf"]


def test_what_is_not_there_is_reported_in_one_message() -> None:
    with pytest.raises(ModelNameError, match=r"org/name has no 'Q4_K'. It has m-Q4_K_M.gguf, m-Q4_K_S.gguf"):
        choose(FILES, "Q4_K", "org/name")
    with pytest.raises(ModelNameError, match="contains no GGUF file"):
        choose(["README.md", "mmproj.gguf"], "", "org/name")


@pytest.mark.parametrize(
    ("text", "repository", "revision", "file"),
    [
        ("org/name", "org/name", None, ""),
        ("hf.co/org/name", "org/name", None, ""),
        ("https://huggingface.co/org/name", "org/name", None, ""),
        ("hf.co/org/name:Q8_0", "org/name", None, "Q8_0"),
        ("org/name@v2/x:sub/m.gguf", "org/name", "v2/x", "sub/m.gguf"),
    ],
)
def test_names_of_the_hub_have_a_repository_a_revision_and_a_file(
    text: str, repository: str, revision: str | None, file: str
) -> None:
    found = hub_name(text)
    assert found is not None and (found.repository, found.revision, found.file) == (repository, revision, file)


def gguf(path: Path) -> Path:
    metadata, tensors = tiny("llama")
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_gguf(path, metadata, tensors)


class Hub:
    """Stands in for huggingface_hub: a repository with GGUF files alone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.asked = folder, list[list[str]]()

    def snapshot_download(self, *, allow_patterns: list[str], **_: Any) -> str:
        self.asked.append(allow_patterns)
        return str(self.folder)

    def HfApi(self) -> Hub:
        return self

    def list_repo_files(self, repository: str, *, revision: str | None) -> list[str]:
        return ["README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf"]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub(tmp_path / "snapshot")
    for name in ("m-Q8_0.gguf", "m-Q4_K_M.gguf"):
        gguf(made.folder / name)
    real = importlib.import_module
    monkeypatch.setattr(hub_module, "trusted_certificates", lambda: None)  # reading them takes longer than the tests
    monkeypatch.setattr(hub_module, "import_module", lambda name: made if name == "huggingface_hub" else real(name))
    return made


def test_a_repository_of_gguf_files_is_a_model(hub: Hub) -> None:
    found = resolve("org/name")
    assert (found.id, found.path.name, found.files.format) == ("org/name", "m-Q4_K_M.gguf", "GGUF")
    assert hub.asked[-1] == ["m-Q4_K_M.gguf"]
    chosen = resolve("hf.co/org/name:Q8_0")
    assert (chosen.id, chosen.path.name) == ("org/name:Q8_0", "m-Q8_0.gguf")
    assert len(hub.asked) == 4, "a name with a file asks for nothing else"


def test_file_names_that_are_not_text_are_skipped(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[Any] = [5, None, ["x"], "m-Q8_0.gguf"]
    monkeypatch.setattr(Hub, "list_repo_files", lambda *_, **__: names)
    assert resolve("org/name:Q8_0").path.name == "m-Q8_0.gguf"


def test_offline_the_cache_is_searched(hub: Hub) -> None:
    assert resolve("org/name:Q8_0", allow_download=False).path.name == "m-Q8_0.gguf"


DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Ollama with one model. Returns the path of its manifest."""
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path))
    gguf(tmp_path / "blobs" / DIGEST.replace(":", "-"))
    manifest = tmp_path / "manifests/registry.ollama.ai/library/tiny/1b"
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:00"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": DIGEST},
    ]
    manifest.write_text(json.dumps({"layers": layers}), encoding="utf-8")
    return manifest


def test_a_model_of_ollama_is_found_by_its_name_or_manifest(ollama: Path) -> None:
    for name in ("ollama:tiny:1b", str(ollama)):
        found = resolve(name)
        assert (found.id, found.files.format) == ("tiny:1b", "GGUF")


def test_a_gguf_file_in_a_folder_of_that_name_is_a_model(tmp_path: Path) -> None:
    assert resolve(str(gguf(tmp_path / "manifests" / "m.gguf"))).id == "m"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"layers": [1]}', '{"layers": [{"mediaType": "x"}]}'])
def test_a_broken_manifest_is_reported_in_one_message(ollama: Path, content: str) -> None:
    ollama.write_text(content, encoding="utf-8")
    with pytest.raises(ModelNameError, match="not a manifest of Ollama"):
        resolve("ollama:tiny:1b")


def test_a_name_that_ollama_does_not_have_is_reported_in_one_message(ollama: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNameError, match="Fetch it with `ollama pull other`, or set OLLAMA_MODELS"):
        resolve("ollama:other")
    for name in ("..", "../..", "a/..", "tiny:..", "."):
        with pytest.raises(ModelNameError, match="not the name of a model of Ollama"):
            resolve(f"ollama:{name}")
    with pytest.raises(ModelNameError, match="not the name of a model of Ollama"):
        resolve("ollama:../x y")
    next((tmp_path / "blobs").iterdir()).unlink()
    with pytest.raises(ModelNameError, match="fetch the model again"):
        resolve("ollama:tiny:1b")


def test_a_name_of_the_catalogue_is_fetched_or_its_command_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "pull", lambda entry, cache, *_, **__: gguf(cache / f"{entry.name}.gguf"))
    found = resolve("smollm2", cache_dir=tmp_path)
    assert (found.id, found.source) == ("smollm2", "catalogue")
    with pytest.raises(ModelNameError, match=r"not on this machine: fetch it with `onward pull smollm2`"):
        resolve("smollm2", cache_dir=tmp_path, allow_download=False)
    with pytest.raises(ModelNameError, match="Did you mean 'smollm2'"):
        resolve("smolm2", cache_dir=tmp_path)


def test_a_name_of_the_catalogue_on_the_hub_keeps_its_name(hub: Hub, tmp_path: Path) -> None:
    assert resolve("gpt2", cache_dir=tmp_path).id == "gpt2"


@pytest.mark.parametrize(
    ("name", "base", "adapter"),
    [
        ("base+adapter", "base", "adapter"),
        ("c++/base.gguf+adapter", "c++/base.gguf", "adapter"),
        ("base+a+b", "base", "a+b"),
        ("base+missing", "base", "missing"),
        ("c++/missing.gguf", "c++/missing.gguf", None),
        ("c++/base.gguf", "c++/base.gguf", None),
        ("base+", "base+", None),
    ],
)
def test_what_exists_decides_which_plus_names_an_adapter(
    name: str, base: str, adapter: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for each in ("adapter", "c++/base.gguf", "a+b"):
        (tmp_path / each).mkdir(parents=True)
    assert split_adapter(name) == (base, None if adapter is None else Path(adapter))


def test_an_at_sign_in_the_path_of_an_adapter_does_not_name_a_base(tmp_path: Path) -> None:
    (tmp_path / "me@home").mkdir()
    settings = Settings(model=("base",), lora=(("one", f"{tmp_path}/me@home"), ("two", f"{tmp_path}/x@other")))
    assert adapted_models(settings) == {"one": f"base+{tmp_path}/me@home", "two": f"other+{tmp_path}/x"}
