"""The `llm` command line with a completion model in extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from report import PROMPT, URLS, check

home = tempfile.TemporaryDirectory()
Path(home.name, "extra-openai-models.yaml").write_text(
    f"- model_id: local\n  model_name: toy\n  api_base: {URLS['default']}/v1\n  completion: true\n", encoding="utf-8"
)
ENVIRONMENT = os.environ | {"LLM_USER_PATH": home.name, "OPENAI_API_KEY": "any"}


def llm(*arguments):
    program = str(Path(sys.executable).with_name("llm"))
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, env=ENVIRONMENT, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@check("the model is listed")
def listed():
    assert "local" in llm("models")


@check("streamed and whole completions agree")
def prompted():
    options = ("-m", "local", "-o", "temperature", "0", "-o", "max_tokens", "12")
    streamed = llm(*options, PROMPT)
    assert streamed.strip() and llm(*options, "--no-stream", PROMPT) == streamed


@check("log-probabilities are stored in its log")
def logged():
    llm("-m", "local", "-o", "logprobs", "2", "-o", "max_tokens", "3", "-o", "temperature", "0", PROMPT)
    entry = json.loads(llm("logs", "--json", "-n", "1"))[0]
    assert "logprobs" in json.dumps(entry["response_json"])
