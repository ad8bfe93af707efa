"""Records the token ids of llama.cpp's tokenizers for the corpus: `python -m tests.real_models.token_ids`.

Needs a llama-server (`python -m benchmarks.peer_build`). A line's entry is the CRC-32 of its token ids, eight digits.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
import zlib
from collections.abc import Iterable
from pathlib import Path

from benchmarks.llama_server import Slots, serve_peer
from benchmarks.peer_build import SERVER, find

from tests.real_models.corpus import lines
from tests.real_models.fetch import LARGE_MODELS, MODELS, fetch

FOLDER = Path(__file__).parent / "token_ids"


def checksum(tokens: Iterable[int]) -> str:
    return f"{zlib.crc32(','.join(map(str, tokens)).encode()):08x}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.real_models.token_ids", description=__doc__)
    parser.add_argument("--llama-server", type=Path, help="default: the one on PATH, else built into .peers")
    program = find(SERVER, parser.parse_args().llama_server)
    FOLDER.mkdir(exist_ok=True)
    for model in (*MODELS, *LARGE_MODELS):
        with serve_peer(program, fetch(model), Slots(1, 512, 2)) as server:
            url = server.url.removesuffix("/v1") + "/tokenize"
            sums = [checksum(_tokens(url, line)) for line in lines()]
        (FOLDER / f"{model}.txt").write_text("\n".join(sums) + "\n", encoding="utf-8")
        print(model, len(sums))


def _tokens(url: str, text: str) -> list[int]:
    body = json.dumps({"content": text, "add_special": False, "parse_special": True}).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})) as answer:
        found: list[int] = json.load(answer)["tokens"]
    return found


if __name__ == "__main__":
    main()
