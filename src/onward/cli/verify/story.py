"""Reads the stories that the playground exports: which request generated each text of a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from onward.cli.verify.saved import Saved
from onward.errors import SetupError

FORMATS = ("onward-story", "onward-tree")
FINISHED = ("stop", "length", "content_filter")
"""Other reasons are the page's: it ended the text, or its user did."""


class _Frame(msgspec.Struct):
    """What was sent around a text; places count UTF-16 units, as JavaScript does."""

    head: str
    cut: int
    note: str
    noteAt: int
    follow: int | None = None


class _Run(msgspec.Struct):
    """How a text was generated."""

    model: str
    settings: dict[str, Any]
    seed: int | None = None
    fingerprint: str = ""
    finish: str = ""
    suffix: str | None = None
    until: str = ""
    frame: _Frame | None = None


class _Node(msgspec.Struct):
    id: int
    parent: int | None
    text: str
    origin: str = "written"
    run: _Run | None = None


class _Story(msgspec.Struct):
    nodes: list[_Node]
    title: str = ""


@dataclass(slots=True)
class _Tree:
    """A story by its nodes. `is_continued` has the nodes that a child with the same run continues."""

    name: str
    nodes: dict[int, _Node]
    is_continued: set[int] = field(default_factory=set)

    def generator(self, node: _Node) -> _Node | None:
        """Return the parent of a generated node if the same run generated it: one text that was cut in two, or a text
        that was continued with the same seed."""
        parent = None if node.parent is None else self.nodes.get(node.parent)
        return parent if parent is not None and parent.run is not None and parent.run == node.run else None

    def text_before(self, node: _Node) -> str:
        """Return the text that a node continues. Raises SetupError for a circle."""
        texts, seen = [], {node.id}
        while node.parent is not None:
            if node.parent in seen or node.parent not in self.nodes:
                raise SetupError(f"The tree of {self.name} is broken at node {node.id}.")
            seen.add(node.parent)
            node = self.nodes[node.parent]
            texts.append(node.text)
        return "".join(reversed(texts))


def read_story(path: Path, document: dict[str, Any]) -> Iterator[Saved]:
    """Yield the requests of a story, each with the texts that are kept of its answer. Raises SetupError."""
    try:
        story = msgspec.convert(document, _Story)
    except msgspec.ValidationError as problem:
        raise SetupError(f"{path} is not a story that the playground exported: {problem}.") from None
    tree = _Tree(story.title or path.stem, {node.id: node for node in story.nodes})
    generated = [node for node in story.nodes if node.run is not None and node.origin == "generated"]
    tree.is_continued = {parent.id for node in generated if (parent := tree.generator(node)) is not None}
    groups: dict[bytes, list[_Node]] = {}
    for node in generated:
        if tree.generator(node) is None:
            groups.setdefault(_request_key(node), []).append(node)
        else:
            yield _continuing(tree, node)
    for group in groups.values():
        yield _saved(tree, group[0], [_choice(tree, node, node.text) for node in group])


def _request_key(node: _Node) -> bytes:
    """Return what the choices of one request have in common."""
    assert node.run is not None
    run = msgspec.structs.replace(node.run, finish="", fingerprint="")
    return msgspec.json.encode([node.parent, run], order="sorted")


def _continuing(tree: _Tree, node: _Node) -> Saved:
    """Classify a node whose run is its parent's: the rest of its text, or else a text of its own."""
    first, texts, seen = node, [node.text], {node.id}
    while (parent := tree.generator(first)) is not None:
        if parent.id in seen:
            raise SetupError(f"The tree of {tree.name} is broken at node {node.id}.")
        seen.add(parent.id)
        first = parent
        texts.append(parent.text)
    rest = _saved(tree, first, [_choice(tree, node, "".join(reversed(texts)))])
    own = _saved(tree, node, [_choice(tree, node, node.text)])
    return replace(rest, id=own.id, otherwise=own)


def _choice(tree: _Tree, node: _Node, text: str) -> dict[str, Any]:
    """Return a node as a choice, whose index is not known. A proposal that was accepted may be part of one."""
    run = node.run
    assert run is not None
    is_end = run.finish in FINISHED and run.suffix is None and node.id not in tree.is_continued
    return {"text": text, "finish_reason": run.finish if is_end else None}


def _saved(tree: _Tree, node: _Node, choices: list[dict[str, Any]]) -> Saved:
    run = node.run
    assert run is not None
    fields = {"model": run.model, **run.settings, "prompt": _framed(run.frame, tree.text_before(node))}
    if run.seed is not None:
        fields["seed"] = run.seed
    if run.suffix is not None:
        follow = None if run.frame is None else run.frame.follow
        fields["suffix"] = run.suffix if follow is None else _sliced(run.suffix, 0, follow)
    return Saved(
        id=f"{tree.name}, node {node.id}",
        model=run.model,
        fields=fields,
        choices=choices,
        fingerprint=run.fingerprint,
        is_whole=False,
    )


def _framed(frame: _Frame | None, text: str) -> str:
    """Return the part of a text that was sent, and what was sent around it."""
    if frame is None:
        return text
    length = len(text.encode("utf-16-le", "surrogatepass")) // 2
    note_at = min(max(frame.noteAt, frame.cut), length)
    return frame.head + _sliced(text, frame.cut, note_at) + frame.note + _sliced(text, note_at, length)


def _sliced(text: str, start: int, end: int) -> str:
    """Return a part of a text by its UTF-16 units."""
    units = text.encode("utf-16-le", "surrogatepass")
    return units[2 * start : 2 * end].decode("utf-16-le", "surrogatepass")
