"""Neovim without a window, driven by its own API: what is typed, what is shown at the cursor, what the buffer has."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pynvim
from report import until

PLUGIN = sys.argv[1]
PROGRAM = Path(sys.executable).with_name("nvim.exe" if sys.platform == "win32" else "nvim")
TEXT = "x = one two one two\ny = one two one two\nz = one two\n"


class Neovim:
    """An editor whose `init.lua` is `settings`, with the file `text.txt`."""

    def __init__(self, folder: Path, settings: str) -> None:
        file, init = folder / "text.txt", folder / "init.lua"
        file.write_text(TEXT, encoding="utf-8")
        init.write_text(
            f"vim.opt.runtimepath:prepend([[{PLUGIN}]])\nvim.opt.swapfile = false\n{settings}", encoding="utf-8"
        )
        command = [str(PROGRAM), "--embed", "--headless", "-i", "NONE", "-u", str(init), str(file)]
        self.api: Any = pynvim.attach("child", argv=command)
        until(lambda: self.api.vvars["vim_did_enter"])

    def type(self, keys: str) -> None:
        self.api.input(keys)

    @property
    def text(self) -> str:
        return "\n".join(self.api.current.buffer[:]) + "\n"

    def ghost(self) -> str:
        """Return the text that is shown after the cursor and is not in the buffer; empty if there is none."""
        lines: list[str] = [""]
        for space in self.api.api.get_namespaces().values():
            for *_, details in self.api.api.buf_get_extmarks(0, space, 0, -1, {"details": True}):
                lines[0] += "".join(part[0] for part in details.get("virt_text", []))
                lines += ["".join(part[0] for part in line) for line in details.get("virt_lines", [])]
        text = "\n".join(lines)
        return text if text.strip() else ""

    def messages(self) -> str:
        return str(self.api.command_output("messages"))


@contextlib.contextmanager
def neovim(settings: str) -> Iterator[Neovim]:
    """Run an editor until the block ends."""
    with tempfile.TemporaryDirectory() as folder:
        editor = Neovim(Path(folder), settings)
        try:
            yield editor
        finally:
            with contextlib.suppress(EOFError):  # it is gone before it can answer
                editor.api.command("qall!")
