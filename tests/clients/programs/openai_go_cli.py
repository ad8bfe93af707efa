"""openai-cli, OpenAI's official command line: the invocations of its documentation. The first argument is its path."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request

from report import KEY, PROMPT, URLS, check

PROGRAM = sys.argv[1]
GREEDY = ("--model", "toy", "--temperature", "0", "--max-tokens", "12")


def run(*arguments, server="default", key="My API Key", stdin=""):
    environment = os.environ | {"OPENAI_BASE_URL": URLS[server] + "/v1", "OPENAI_API_KEY": key}
    return subprocess.run(
        [PROGRAM, *arguments], input=stdin, capture_output=True, text=True, env=environment, timeout=60
    )


def create(*flags, stdin=""):
    ran = run("completions", "create", *flags, stdin=stdin)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def texts(completion):
    return [choice["text"] for choice in completion["choices"]]


def num_running():
    with urllib.request.urlopen(URLS["default"] + "/metrics") as response:
        text = response.read().decode()
    return float(re.search(r'^onward_engine_running\{model="toy"\} (\S+)$', text, re.MULTILINE)[1])


def wait_until(holds):
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.01)


@check("the documentation's first invocation, with OpenAI's model")
def first():
    flags = ("--api-key", "My API Key", "--model", "gpt-3.5-turbo-instruct", "--prompt", "This is a test.")
    completion = create(*flags)
    assert completion["object"] == "text_completion" and completion["model"] == "toy", completion


@check("token ids, lists of texts and of token ids")
def prompts():
    one = texts(create(*GREEDY, "--prompt", "ab"))
    assert texts(create(*GREEDY, "--prompt", "[97, 98]")) == one
    both = texts(create(*GREEDY, "--prompt", '["ab", "Say"]'))
    assert texts(create(*GREEDY, "--prompt", "[[97, 98], [83, 97, 121]]")) == both and both[0] == one[0]


@check("n, best_of, logprobs, echo, suffix, stop and every other flag")
def flags():
    many = create(*GREEDY, "--prompt", PROMPT, "--n", "2", "--best-of", "4", "--seed", "7", "--user", "u")
    assert len(many["choices"]) == 2
    echoed = create(*GREEDY, "--prompt", PROMPT, "--echo", "true", "--logprobs", "2")["choices"][0]
    assert echoed["text"].startswith(PROMPT) and echoed["logprobs"]["token_logprobs"][0] is None
    numbers = ("--top-p", "0.9", "--presence-penalty", "0.1", "--frequency-penalty", "0.1")
    more = ("--logit-bias", '{"50": -100}', "--stop", '["\\n\\n\\n", END]', "--suffix", " end", "--best-of", "null")
    assert create(*GREEDY, "--prompt", PROMPT, *numbers, *more)["usage"]["prompt_tokens"] > 17


@check("--stream with usage is the whole answer; --transform writes the text")
def stream():
    whole = create(*GREEDY, "--prompt", PROMPT)
    shown = ("--format", "jsonl", "--stream", "true", "--stream-options.include-usage")
    ran = run("completions", "create", *GREEDY, "--prompt", PROMPT, *shown)
    chunks = [json.loads(line) for line in ran.stdout.splitlines()]
    joined = "".join(text for chunk in chunks for text in texts(chunk))
    assert joined == texts(whole)[0] and chunks[-1]["usage"]["completion_tokens"] == 12, ran.stdout + ran.stderr
    text = run("completions", "create", *GREEDY, "--prompt", "ab", "--transform", "choices.0.text", "-r").stdout
    assert text.rstrip("\n") == texts(create(*GREEDY, "--prompt", "ab"))[0].rstrip("\n"), text


@check("a request body on standard input, with fields that have no flag, and 256 prompts")
def body():
    many = {"prompt": [f"prompt {number}" for number in range(256)], "max_tokens": 4, "temperature": 0, "top_k": 5}
    completion = create("--model", "toy", stdin=json.dumps(many))
    assert [choice["index"] for choice in completion["choices"]] == list(range(256))


@check("errors: the error object on standard output, exit code 1")
def errors():
    ran = run("completions", "create", "--model", "nope", "--prompt", "x")
    assert ran.returncode == 1 and "404 Not Found" in ran.stderr, ran.stdout + ran.stderr
    assert json.loads(ran.stdout)["code"] == "model_not_found", ran.stdout
    ran = run("completions", "create", *GREEDY, "--prompt", "x", server="keyed", key="wrong")
    assert ran.returncode == 1 and json.loads(ran.stdout)["code"] == "invalid_api_key", ran.stdout
    assert run("completions", "create", *GREEDY, "--prompt", "x", server="keyed", key=KEY).returncode == 0


@check("models list and models retrieve")
def models():
    listed = run("models", "list", "--format", "jsonl")
    assert '"toy"' in listed.stdout and '"davinci-002"' in listed.stdout, listed.stdout + listed.stderr
    one = run("models", "retrieve", "--model", "toy")
    assert json.loads(one.stdout)["id"] == "toy", one.stdout + one.stderr


@check("a killed command ends its work on the server")
def killed():
    fields = {"prompt": PROMPT, "max_tokens": 1900, "n": 16, "ignore_eos": True}
    environment = os.environ | {"OPENAI_BASE_URL": URLS["default"] + "/v1", "OPENAI_API_KEY": "any"}
    command = [PROGRAM, "completions", "create", "--model", "toy", "--stream", "true"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, env=environment, **pipes) as running:
        running.stdin.write(json.dumps(fields).encode())
        running.stdin.close()
        wait_until(lambda: num_running() > 0)
        running.kill()
    wait_until(lambda: num_running() == 0)
