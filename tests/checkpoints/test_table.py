"""What concerns one architecture stands in its module of checkpoints/families, and nowhere else in the source."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import onward
from onward.checkpoints.pretokenizers import PRE_TOKENIZERS
from onward.checkpoints.table import ARCHITECTURES, FAMILIES, MODEL_TYPES

SOURCE = Path(onward.__file__).parent
NAMES = ARCHITECTURES.keys() | MODEL_TYPES.keys()
OTHER_MEANINGS = {
    "checkpoints/pretokenizers.py": "rules that cut texts, by llama.cpp's names",
    "checkpoints/sentencepiece.py": "a kind of tokenizer",
    "checkpoints/vocabulary.py": "kinds of tokenizers",
    "model_files/tekken.py": "a kind of tokenizer",
    "model_files/tokenizer_folder.py": "a kind of tokenizer",
    "engines/programs/kinds.py": "another server's command",
    "compose/upstreams.py": "another server",
    "settings/names.py": "another server",
    "settings/declared.py": "another server's API",
    "api/mistral.py": "another server's API",
    "checkpoints/tokenizer.py": "a part of a model's name, by which llama.cpp goes",
    "checkpoints/quantised.py": "which folders' types of weights are read",
}
"""Modules in which names of architectures mean something else."""


def test_no_other_module_names_an_architecture() -> None:
    found: dict[str, set[str]] = {}
    quoted = re.compile(f"[\"']({'|'.join(map(re.escape, NAMES))})[\"']")
    for path in SOURCE.rglob("*.py"):
        name, source = path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8")
        if name.startswith("checkpoints/families/") or not quoted.search(source):
            continue
        texts = {
            node.value
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        if texts & NAMES:
            found[name] = texts & NAMES
    assert found.keys() == OTHER_MEANINGS.keys(), found


def test_each_family_is_in_the_table_and_each_name_in_one_family() -> None:
    modules = {path.stem for path in (SOURCE / "checkpoints" / "families").glob("*.py")} - {"__init__", "common"}
    assert {module.__name__.rpartition(".")[2] for module in FAMILIES} == modules
    assert sum(len(module.ARCHITECTURES) for module in FAMILIES) == len(ARCHITECTURES)
    assert sum(len(each.model_types) for each in ARCHITECTURES.values()) == len(MODEL_TYPES)


def test_texts_are_cut_by_rules_that_are_known() -> None:
    rules = {each.cuts_by for each in MODEL_TYPES.values()} - {""}
    assert rules and rules <= PRE_TOKENIZERS.keys()
