"""A disposable process that does what the text of a grammar orders: `python fake_worker.py`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from onward.constraints.process.messages import Check, Checked, decode_request, encode
from onward.ipc.frames import FrameReader, write_frame
from onward.ipc.worker_end import take_connection


def main() -> None:
    down, up = take_connection()
    for payload in FrameReader(down):
        request = decode_request(payload)
        assert isinstance(request, Check)
        word, _, path = request.grammar.partition(" ")
        match word:
            case "die":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "take":
                os.kill(os.getpid(), signal.SIGPROF)
            case "wait":
                while not Path(path).exists():
                    time.sleep(0.01)
            case "write":
                with Path(path).open("a", encoding="utf-8") as file:
                    file.write("x")
        answer = Checked("", "it is refused") if word == "refuse" else Checked(f"{os.getpid()} {request.grammar}")
        write_frame(up, encode(answer))


if __name__ == "__main__":
    main()
