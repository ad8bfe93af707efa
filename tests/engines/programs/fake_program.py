"""A program that is started in place of llama-server: its flags, and the stand-in's answers on its Unix socket.

`--ends=TEXT`: prints TEXT and ends at once. `--lives=FILE`: ends when FILE has lost its last character, one per start.
`--gate=FILE`: waits until FILE exists before each token after the first 20. `--mute=FILE`: does not load, and prints
nothing, while FILE exists. `--stuck=FILE`: its engine does nothing while FILE exists; its server answers. `--garbage`:
prints a megabyte without a line break first. `--space`: its tokenizer puts a space first.
"""

from __future__ import annotations

import argparse
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.engines.upstreams.standin import StandIn


def executable(folder: Path, *prefix: str) -> Path:
    """Write an executable file that runs this module, with `prefix` before its arguments."""
    path = folder / "llama-server"
    root = Path(__file__).parents[3]
    words = " ".join(prefix)
    path.write_text(
        f'#!/bin/sh\nPYTHONPATH="{root}" exec "{sys.executable}" -m tests.engines.programs.fake_program {words} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


def _forward(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for each in (source, target):
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


def _serve(path: str, address: tuple[str, int]) -> None:
    """Take connections on a Unix socket, and forward them to an address."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(64)
        while True:
            here, _ = listener.accept()
            there = socket.create_connection(address)
            for pair in ((here, there), (there, here)):
                threading.Thread(target=_forward, args=pair, daemon=True).start()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host")
    parser.add_argument("--ends")
    parser.add_argument("--lives", type=Path)
    parser.add_argument("--gate", type=Path)
    parser.add_argument("--mute", type=Path)
    parser.add_argument("--stuck", type=Path)
    parser.add_argument("--garbage", action="store_true")
    parser.add_argument("--space", action="store_true")
    options, _ = parser.parse_known_args()
    if options.garbage:
        sys.stdout.buffer.write(b"\x00\xff" * (1 << 19))
    if options.ends is not None:
        print(options.ends, flush=True)
        return 1
    if options.lives is not None:
        left = options.lives.read_text(encoding="utf-8")
        options.lives.write_text(left[1:], encoding="utf-8")
        if not left:
            return 3
    while options.mute is not None and options.mute.exists():
        time.sleep(0.01)
    print("loading model tensors: 42%", flush=True)
    stand_in = StandIn("llama")
    stand_in.adds_space = options.space
    quick = stand_in.script

    def script(tokens: Sequence[int]) -> int:
        while options.gate is not None and len(tokens) > 20 and not options.gate.exists():
            time.sleep(0.01)
        while options.stuck is not None and options.stuck.exists():
            time.sleep(0.01)
        return quick(tokens)

    stand_in.script = script
    parts = urlsplit(stand_in.url)
    _serve(options.host, (parts.hostname or "", parts.port or 0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
