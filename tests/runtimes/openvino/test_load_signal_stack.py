"""After a model was closed, a signal with a Python handler is handled: OpenVINO leaves no unmapped stack behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.random_model import tokenizer

from tests.runtimes.openvino.tiny_ir import Shape, write_folder

PROGRAM = """
import faulthandler, gc, os, signal, threading
import onward

handled = []
signal.signal(signal.SIGUSR1, lambda *arguments: handled.append(1))

def use(close=True):
    client = onward.Onward(FOLDER, kv_memory="8MB")
    client.completions.create(prompt="a", max_tokens=2)
    if close:
        client.close()

def on_thread():
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()

def two():
    with onward.Onward(FOLDER, kv_memory="8MB"):
        use()

def forgotten():
    use(close=False)
    gc.collect()

def with_faulthandler():
    faulthandler.enable()
    use()

CASE()
for _ in range(200):
    os.kill(os.getpid(), signal.SIGUSR1)
assert len(handled) == 200
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="OpenVINO installs a signal stack on Linux only")
@pytest.mark.parametrize(
    "case",
    [
        "use",
        pytest.param("on_thread", marks=pytest.mark.slow),
        pytest.param("two", marks=pytest.mark.slow),
        pytest.param("forgotten", marks=pytest.mark.slow),
        pytest.param("with_faulthandler", marks=pytest.mark.slow),
    ],
)
def test_signals_are_handled_after_the_last_model_was_closed(case: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model", Shape())
    tokenizer(Shape().vocab).save(str(folder / "tokenizer.json"))
    program = PROGRAM.replace("CASE", case).replace("FOLDER", repr(str(folder)))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
