"""A disposable process whose grammars are words: `python fake_masks.py`.

"large" takes long to compile, "slow" takes long for every token, "wait PATH" waits for a file before it answers a
token, "encode" asks for the tokens of a text, and forces these. Long durations are reported, not spent: no clock is
needed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from onward.constraints.process.messages import (
    Advance,
    Advanced,
    Compile,
    CompiledGrammar,
    Encode,
    Encoded,
    Load,
    Loaded,
    WorkerReply,
    decode_request,
    encode,
)
from onward.ipc.frames import FrameReader, write_frame
from onward.ipc.worker_end import take_connection

MASK = (0xFF).to_bytes(4, "little")
LONG = 1.0


def main() -> None:
    down, up = take_connection()
    grammars: dict[int, str] = {}
    for payload in FrameReader(down):
        reply: WorkerReply
        match decode_request(payload):
            case Load():
                reply = Loaded()
            case Compile(number, grammar, _):
                grammars[number] = grammar
                reply = CompiledGrammar(MASK, "", LONG if grammar == "large" else 0.0)
            case Advance(_, number, tokens):
                word, _, path = grammars[number].partition(" ")
                while word == "wait" and not Path(path).exists():
                    time.sleep(0.01)
                # the process and how many tokens it was sent, as forced tokens
                reply = Advanced(MASK * 3, [os.getpid(), len(tokens)], False, "", LONG if word == "slow" else 0.0)
                if word == "encode":
                    reply = Encode("a")
            case Encoded(tokens):
                reply = Advanced(MASK * 3, tokens, False, "", 0.0)
            case _:
                continue
        write_frame(up, encode(reply))


if __name__ == "__main__":
    main()
