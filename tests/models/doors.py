"""The public interfaces to a model on disk: what `onward models show` and `onward tokenize` print, and what the Python
API computes."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner

import onward
from onward.cli.root import root

TEXTS_AND_ERRORS: dict[str, Any] = (
    {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}
)


def command(*arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `onward …`."""
    done = CliRunner(**TEXTS_AND_ERRORS).invoke(root, list(arguments), prog_name="onward")
    return done.exit_code, done.stdout, done.stderr


def shown(model: Path | str) -> dict[str, Any]:
    """What `onward models show` prints of a model that can be served."""
    code, out, err = command("models", "show", str(model), "--format", "json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    assert found["problems"] == []
    return found


def refusal(model: Path | str) -> str:
    """The sentence with which `onward models show` refuses a model."""
    code, out, err = command("models", "show", str(model), "--format", "json")
    assert code != 0 and not out, out
    assert "Traceback" not in err
    return err.replace("\n", " ")


def token_ids(model: Path | str, text: str, *, special: bool = False) -> list[int]:
    """The tokens of a text."""
    return [token for token, _ in tokens(model, text, special=special)]


def tokens(model: Path | str, text: str, *, special: bool = False) -> list[tuple[int, bytes]]:
    """The tokens of a text, and the bytes of each."""
    flag = "--add-special-tokens" if special else "--no-add-special-tokens"
    code, out, err = command("tokenize", "--model", str(model), flag, "--format", "json", text)
    assert code == 0, err
    found = json.loads(out)
    return list(zip(found["tokens"], map(bytes.fromhex, found["bytes"]), strict=True))


@contextmanager
def client(model: Path | str, cache: Path, **settings: Any) -> Iterator[onward.Onward]:
    """A model in this process that computes with the file's weights."""
    common: dict[str, Any] = {"precision": "exact", "offline": True, "threads": 1, "kv_memory": "8MB"}
    with (
        mock.patch.dict(os.environ, {"ONWARD_CACHE_DIR": str(cache)}),
        onward.Onward(model=str(model), **(common | settings)) as found,
    ):
        yield found


def scores(model: Path | str, prompt: list[int] | str, cache: Path, **settings: Any) -> list[float]:
    """Log probabilities of a prompt's tokens, except the first."""
    with client(model, cache, **settings) as found:
        answer = found.completions.create(prompt=prompt, max_tokens=0, echo=True, logprobs=0)
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    return [number for number in logprobs.token_logprobs[1:] if number is not None]


def hub_downloads(monkeypatch: pytest.MonkeyPatch, download: Callable[..., str]) -> None:
    """Let a function stand for the download of the hub's library, whose repositories have no GGUF files."""

    def snapshot(*, tqdm_class: object = None, **asked: Any) -> str:
        return download(**asked)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: [])
