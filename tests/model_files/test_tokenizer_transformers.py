"""Token ids are those of transformers: of tiny folders in every form that both read, and of vocabularies of published
models, as far as packages contain them.

The right values are what `AutoTokenizer` makes of the same folder, in an environment of its own.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onward.checkpoints.read import read_checkpoint
from onward.checkpoints.tokenizer import tokenizer_files
from onward.errors import HubUnreachable
from onward.model_files.tokenizer import HuggingFaceTokenizer
from onward.models.resolve import built_in_folder
from tests.checkpoints import test_sentencepiece
from tests.clients.environments import PYTHON, PythonEnvironment, Unavailable
from tests.model_files import test_tokenizer_folder
from tests.model_files.tiny_tokenizers import END, START, byte_level, save, sentencepiece
from tests.real_models.corpus import lines
from tests.real_models.fetch import MODELS, fetch

pytestmark = [pytest.mark.slow, pytest.mark.companion]

PROGRAM = """
import json, sys
from transformers import AutoTokenizer
folder, texts = sys.argv[1], json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder)
ids = {str(special): [tokenizer(text, add_special_tokens=special)["input_ids"] for text in texts]
       for special in (False, True)}
json.dump({"ids": ids, "special": sorted(tokenizer.all_special_ids)}, sys.stdout)
"""
PACKAGES = """
import importlib.util, pathlib
for package in ("litellm", "mistral_common"):
    found = importlib.util.find_spec(package)
    if found and found.origin:
        print(pathlib.Path(found.origin).parent)
"""
TEXTS = [
    "the cat sat", " the  cat", "", " ", "a\n\n b\t", "naïve café 10 000 m²", "日本 🎉", "def f(x):\n    return x\n",
    f"a{END}b {START} c", "<s>ab</s> the", "é è<note>the", "<unk> a", "it's 12,345.67!!", "x" * 50, "the \u00a0 cat",
]  # fmt: skip
Make = Callable[[Path], Path]


VERSIONS = ("transformers-4", "transformers-5")
REBUILT = (
    "5 makes a tokenizer of this class from its vocabulary anew, without what its files say of spaces and the start"
)


def installed(name: str) -> PythonEnvironment:
    try:
        PYTHON[name].make()
    except Unavailable as reason:
        pytest.skip(f"{name} COULD NOT BE INSTALLED: {reason}")
    return PYTHON[name]


@pytest.fixture(scope="module", params=VERSIONS)
def transformers(request: pytest.FixtureRequest) -> PythonEnvironment:
    return installed(request.param)


def of_transformers(environment: PythonEnvironment, folder: Path, texts: list[str]) -> dict[str, Any]:
    command: list[str | Path] = [environment.program("python"), "-c", PROGRAM, folder]
    ran = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def check(environment: PythonEnvironment, folder: Path, texts: list[str]) -> None:
    found, own = of_transformers(environment, folder, texts), HuggingFaceTokenizer(folder)
    for special in (False, True):
        for text, expected in zip(texts, found["ids"][str(special)], strict=True):
            assert own.encode(text, add_special_tokens=special) == expected, (special, text)
    assert all(own.is_special(token) for token in found["special"])


def byte_level_of(**config: Any) -> Make:
    return lambda path: save(byte_level(), path, tokenizer_config={"eos_token": END, "bos_token": START, **config})


def sentencepiece_of(style: str, **config: Any) -> Make:
    names = {"eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    return lambda path: save(sentencepiece(style), path, tokenizer_config=names | config)


FOLDERS: dict[str, Make] = {
    "byte level": byte_level_of(tokenizer_class="PreTrainedTokenizerFast"),
    "byte level, a start token asked for": byte_level_of(tokenizer_class="PreTrainedTokenizerFast", add_bos_token=True),
    "SentencePiece of old files": sentencepiece_of("normalizer", tokenizer_class="PreTrainedTokenizerFast"),
    "SentencePiece of new files": sentencepiece_of("metaspace", tokenizer_class="PreTrainedTokenizerFast"),
    "SentencePiece of old files, Llama's class": sentencepiece_of("normalizer", tokenizer_class="LlamaTokenizerFast"),
    "Llama's class": sentencepiece_of("metaspace", tokenizer_class="LlamaTokenizerFast"),
    "Llama's class with a start token": sentencepiece_of(
        "metaspace", tokenizer_class="LlamaTokenizerFast", add_bos_token=True
    ),
    "Llama's class without a start token": sentencepiece_of(
        "metaspace", tokenizer_class="LlamaTokenizerFast", add_bos_token=False
    ),
    **{
        f"vocab.json and merges.txt of {kind}": lambda path, kind=kind: test_tokenizer_folder.folder(path, kind)  # type: ignore[misc]
        for kind in ("gpt2", "qwen2")  # for others, transformers splits text by GPT-2's rule, unlike their own files
    },
    "vocab.json and merges.txt with a start token": lambda path: test_tokenizer_folder.folder(
        path,
        "opt",
        tokenizer_config={
            "add_bos_token": True,
            "bos_token": "<|endoftext|>",
            "eos_token": "<|endoftext|>",
            "unk_token": "<|endoftext|>",
        },
    ),
    "tokenizer.model": lambda path: test_sentencepiece.folder(
        path, tokenizer_config={"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>"}
    ),
}


OF_4 = ("Llama's class without a start token", "SentencePiece of old files, Llama's class", "tokenizer.model")
"""Where 4, with which such files were made, and 5 differ: Onward is as 4 and SentencePiece itself."""


@pytest.mark.parametrize("name", FOLDERS)
def test_tiny_folders_have_the_token_ids_of_transformers(
    name: str, transformers: PythonEnvironment, tmp_path: Path
) -> None:
    if name in OF_4 and transformers.name == "transformers-5":
        pytest.skip(REBUILT)
    check(transformers, FOLDERS[name](tmp_path), TEXTS)


def folder_of(file: Path, folder: Path) -> Path:
    """Write the tokenizer of a GGUF file as the files that transformers reads."""
    files = tokenizer_files(read_checkpoint(file).parameters)
    (folder / "tokenizer.json").write_bytes(files.tokenizer)
    names = {name: files.configuration[name] for name in ("bos_token", "eos_token") if files.configuration[name]}
    stated = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
    return folder


@pytest.mark.parametrize("model", ["storyteller", *MODELS])
def test_vocabularies_of_gguf_files_have_the_token_ids_of_transformers(
    model: str, transformers: PythonEnvironment, tmp_path: Path
) -> None:
    try:
        file = built_in_folder(model) / f"{model}.gguf" if model == "storyteller" else fetch(model)
    except HubUnreachable as reason:
        pytest.skip(str(reason))
    check(transformers, folder_of(file, tmp_path), [*lines(), *TEXTS])


def packaged() -> list[Path]:
    """The tokenizers of published models in packages: tokenizer.json, and tokenizer.model."""
    python = installed("transformers-5").program("python")
    ran = subprocess.run([python, "-c", PACKAGES], capture_output=True, text=True, check=True)
    found = (each for line in ran.stdout.splitlines() for each in sorted(Path(line).rglob("*tokenizer*")))
    return [path for path in found if path.suffix == ".json" or ".model" in path.suffixes]


@pytest.mark.parametrize("version", VERSIONS)
def test_vocabularies_of_packages_have_the_token_ids_of_transformers(version: str, tmp_path: Path) -> None:
    found, environment = packaged(), installed(version)
    assert found
    for number, path in enumerate(found):
        is_json = path.suffix == ".json"
        if version == "transformers-5" and not is_json:
            continue  # REBUILT
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / ("tokenizer.json" if is_json else "tokenizer.model")).write_bytes(path.read_bytes())
        stated = {"tokenizer_class": "PreTrainedTokenizerFast"} if is_json else {
            "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
        }  # fmt: skip
        (folder / "tokenizer_config.json").write_text(json.dumps(stated), encoding="utf-8")
        check(environment, folder, [*lines(), *TEXTS])
