"""The command line that comes with openai for Python 0.28 and 2.x: `openai api completions.create`."""

import os
import subprocess
import sys
from pathlib import Path

import openai
from report import PROMPT, URLS, check

OLD = openai.version.VERSION.startswith("0.") if hasattr(openai, "version") else False
COMMAND = [str(Path(sys.executable).with_name("openai")), "api", "completions.create"]
ENVIRONMENT = os.environ | {
    "OPENAI_API_KEY": "any",
    "OPENAI_BASE_URL": URLS["default"] + "/v1",
    "OPENAI_API_BASE": URLS["default"] + "/v1",
}


def run(*flags):
    ran = subprocess.run([*COMMAND, *flags], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    return ran.returncode, ran.stdout, ran.stderr


MODEL = ("-e" if OLD else "-m", "toy")


@check("completions.create writes the text")
def whole():
    code, out, err = run(*MODEL, "-p", PROMPT, "-M", "8", "-t", "0")
    assert code == 0 and out.strip(), err


@check("completions.create --stream writes the same text")
def stream():
    flags = (*MODEL, "-p", PROMPT, "-M", "8", "-t", "0")
    (_, whole, _), (code, streamed, err) = run(*flags), run(*flags, "--stream")
    assert code == 0 and streamed.strip().startswith(whole.strip()[:5]) and whole.split() == streamed.split(), err


@check("several choices, stops and log-probabilities")
def more():
    code, out, err = run(*MODEL, "-p", PROMPT, "-n", "2", "-M", "4", "--stop", "zz", "--logprobs", "2")
    assert code == 0 and out.count("===== Completion") in (0, 2), (out, err)


@check("an unknown model is an error, with a failing exit code")
def unknown():
    code, out, err = run(*(MODEL[0], "nope"), "-p", PROMPT)
    assert code != 0 and "does not exist" in out + err
