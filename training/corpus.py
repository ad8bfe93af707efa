"""The training text: stories from the data folder, code from Python's own standard library."""

from __future__ import annotations

import hashlib
import json
import lzma
import platform
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from training.errors import RecipeError

STORY_SOURCES = (
    "tinystories",
    "storybooks_cc_by",
    "fairytaleqa",
    "children_classics",
    "chilit",
    "plain_fiction",
)
CODE_SOURCE = "python_stdlib"
SOURCES = (*STORY_SOURCES, CODE_SOURCE)

CODE_VALID_PERCENT = 3
MAX_MODULE_BYTES = 400_000


@dataclass(frozen=True)
class Document:
    """One text with the attribution that the model card needs."""

    text: str
    title: str = ""
    author: str = ""
    licence: str = ""


@dataclass(frozen=True)
class Source:
    """A named corpus, split into training and validation documents."""

    name: str
    train: tuple[Document, ...]
    valid: tuple[Document, ...]

    @property
    def is_code(self) -> bool:
        """Whether the documents are source code, which is infilled more often."""
        return self.name == CODE_SOURCE


def check_data_folder(data: Path | None) -> Path:
    """Return the data folder. Raises RecipeError, with what it must contain, if files are missing."""
    needed = [f"text/{name}.jsonl.xz" for name in STORY_SOURCES] + ["eval/lambada_openai.jsonl"]
    description = "a folder that contains " + ", ".join(needed[:-1]) + " and " + needed[-1]
    if data is None:
        raise RecipeError(f"Pass the data folder with --data DIR: {description}.")
    missing = [name for name in needed if not (data / name).is_file()]
    if missing:
        raise RecipeError(f"{data} lacks {', '.join(missing)}. --data must be {description}.")
    return data


def load_sources(data: Path) -> dict[str, Source]:
    """Read every source: the story files of the data folder, then the standard library. Raises RecipeError."""
    sources = {name: _load_stories(data / "text" / f"{name}.jsonl.xz", name) for name in STORY_SOURCES}
    sources[CODE_SOURCE] = load_standard_library()
    return sources


def _load_stories(path: Path, name: str) -> Source:
    """Read one compressed file of JSON lines, with the split stated in its records. Raises RecipeError if damaged."""
    split: dict[str, list[Document]] = {"train": [], "valid": []}
    try:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                record = json.loads(line)
                document = Document(
                    text=record["text"],
                    title=record.get("title", ""),
                    author=record.get("author", ""),
                    licence=record.get("license", ""),
                )
                split[record["split"]].append(document)
    except (lzma.LZMAError, EOFError, json.JSONDecodeError, KeyError) as error:
        raise RecipeError(f"{path} is damaged or not a file of text records: {error!r}.") from error
    return Source(name, tuple(split["train"]), tuple(split["valid"]))


def load_standard_library() -> Source:
    """Read the running interpreter's own modules (no tests, no installed packages).

    A module is held out for validation by a hash of its path, so the split does
    not depend on the order or number of the files.
    """
    root = Path(sysconfig.get_path("stdlib"))
    licence = f"PSF-2.0 (Python {platform.python_version()} standard library)"
    train: list[Document] = []
    valid: list[Document] = []
    for path in sorted(root.rglob("*.py")):
        module = path.relative_to(root).as_posix()
        if _is_excluded(module) or path.stat().st_size > MAX_MODULE_BYTES:
            continue
        text = _read_module(path)
        if not text.strip():
            continue
        document = Document(text=text, title=module, author="Python contributors", licence=licence)
        (valid if is_held_out(module) else train).append(document)
    return Source(CODE_SOURCE, tuple(train), tuple(valid))


def is_held_out(module: str) -> bool:
    """Return whether a standard-library module belongs to the validation split."""
    digest = hashlib.sha256(module.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 100 < CODE_VALID_PERCENT


def _is_excluded(module: str) -> bool:
    parts = module.split("/")
    return "site-packages" in parts or any("test" in part for part in parts) or parts[0] == "pydoc_data"


def _read_module(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""
