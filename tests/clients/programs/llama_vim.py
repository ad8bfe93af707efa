"""llama.vim in Vim on a pseudo-terminal: it requests a completion at the cursor from /infill, shows it, and accepts
it."""

import os
import pty
import select
import sys
import tempfile
import time
from pathlib import Path

from report import KEY, URLS, check, recipe

PLUGIN = sys.argv[1]
SECTION = "Vim and Neovim: llama.vim"
SETTINGS = """
set nocompatible encoding=utf-8 ambiwidth=single
{recipe}
call extend(g:llama_config, {{'api_key': '{key}', 'auto_fim': v:false, 'keymap_fim_trigger': '<C-F>', 'show_info': 2}})
set runtimepath^={plugin}
runtime plugin/llama.vim
"""
TEXT = "x = one two one two\ny = one two one two\nz = one two\n"
SHOWN = b" t/s"
"""Part of what the plug-in shows after a completion."""
PATIENCE_SECONDS = 30


class Vim:
    """Vim with a file open, driven by keystrokes of a program."""

    def __init__(self, folder: Path, url: str, key: str) -> None:
        self.file = folder / "text.txt"
        self.file.write_text(TEXT, encoding="utf-8")
        settings = folder / "settings.vim"
        settings.write_text(SETTINGS.format(recipe=recipe(SECTION, url), key=key, plugin=PLUGIN), encoding="utf-8")
        self._screen = b""
        command = ["vim", "-N", "-u", str(settings), "-i", "NONE", "-n", str(self.file)]
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.execvpe("vim", command, os.environ | {"TERM": "xterm", "COLUMNS": "200", "LINES": "24"})

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def wait(self, text: bytes, seconds: float = PATIENCE_SECONDS) -> bool:
        """Return whether the screen shows a text in time. Earlier output is discarded."""
        self._screen = b""
        deadline = time.monotonic() + seconds
        while text not in self._screen:
            if time.monotonic() > deadline:
                return False
            if select.select([self._terminal], [], [], 0.1)[0]:
                try:
                    self._screen += os.read(self._terminal, 65536)
                except OSError:
                    return False
        return True

    def leave(self) -> str:
        """Save, quit, and return the file."""
        self.type("\x1b")
        self.wait(b"never", 0.5)
        self.type(":wq\r")
        self.wait(b"never")
        os.close(self._terminal)
        os.waitpid(self._pid, 0)
        return self.file.read_text(encoding="utf-8")


def completed(url: str, key: str = "") -> tuple[bool, str]:
    """Return whether a completion of the second line was shown, and the file with it."""
    with tempfile.TemporaryDirectory() as folder:
        vim = Vim(Path(folder), url, key)
        vim.wait(b"z = one")
        vim.wait(b"never", 1)
        vim.type("\r\r\x1b2GA")
        vim.wait(b"INSERT")
        vim.type("\x06")
        is_shown = vim.wait(SHOWN, PATIENCE_SECONDS if key != "wrong" else 3)
        if is_shown:
            vim.type("\t")
            vim.wait(b"never", 0.5)
        return is_shown, vim.leave()


def assert_completed(is_shown: bool, text: str) -> None:
    first, second, third = TEXT.splitlines()
    lines = text.splitlines()
    assert is_shown and lines[0] == first and lines[-1] == third, text
    assert lines[1].startswith(second) and len(text) > len(TEXT), text


@check("a completion at the cursor is shown and accepted")
def infill():
    assert_completed(*completed(URLS["editors"]))


@check("a server with keys")
def keyed():
    assert_completed(*completed(URLS["keyed"], KEY))
    assert completed(URLS["keyed"], "wrong") == (False, TEXT)
