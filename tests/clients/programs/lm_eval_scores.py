"""lm-eval's local-completions and gguf, offline: scores bit for bit those of the engine, is_greedy equal.
On storyteller, the server has a second model.

ONWARD_CLIENT_EXPECTED names a file of [context, continuation, sum of log-probabilities, is_greedy].
ONWARD_CLIENT_MODEL names the model.
"""

import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from lm_eval.api.instance import Instance
from lm_eval.models.gguf import GGUFLM
from lm_eval.models.openai_completions import LocalCompletionsAPI
from report import URLS, check

EXPECTED = json.loads(Path(os.environ["ONWARD_CLIENT_EXPECTED"]).read_text(encoding="utf-8"))
MODEL = os.environ["ONWARD_CLIENT_MODEL"]
TASKS = Path(os.environ["ONWARD_CLIENT_TASKS"])
OFFLINE = os.environ | {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
PAGE = Path(__file__).parents[3] / "docs/how-to/evaluate.md"
PAIRS = [(context, continuation) for context, continuation, _, _ in EXPECTED]


def requests(pairs):
    return [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]


def compare(scores):
    for (score, greedy), (context, continuation, wanted, wanted_greedy) in zip(scores, EXPECTED, strict=True):
        assert score == wanted, (context, continuation, score, wanted)
        assert greedy is wanted_greedy, (context, continuation, greedy)
    assert {greedy for _, greedy in scores} == {True, False}


def local(**options):
    url = f"{URLS['default']}/m/{MODEL}/v1/completions"
    return LocalCompletionsAPI(model=MODEL, base_url=url, max_retries=1, **options)


@check("local-completions: scores equal the engine's bit for bit, is_greedy equal")
def scores():
    compare(local(batch_size=4).loglikelihood(requests(PAIRS), disable_tqdm=True))


@check("local-completions: equal results one at a time and concurrently")
def alone():
    compare(local(batch_size=1).loglikelihood(requests(PAIRS), disable_tqdm=True))
    compare(local(batch_size=3, num_concurrent=3).loglikelihood(requests(PAIRS), disable_tqdm=True))


@check("local-completions: generate_until stops at the right place")
def generates():
    arguments = ("Once upon", {"until": [" ", "\n\n"], "max_gen_toks": 40, "temperature": 0, "top_p": 1})
    instances = [Instance("generate_until", {}, arguments, index) for index in range(3)]
    texts = local(batch_size=1).generate_until(instances, disable_tqdm=True)
    assert len(set(texts)) == 1 and " " not in texts[0]


def scored(texts):
    given = "".join(json.dumps(text) + "\n" for text in texts)
    flags = ("--input", "jsonl", "--window", "199", "--model", MODEL, "--base-url", URLS["default"] + "/v1")
    command = [os.environ["ONWARD_CLIENT_COMMAND"], "score", *flags]
    ran = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=120)
    return [json.loads(line) for line in ran.stdout.splitlines()]


@check("onward score: the harness' numbers digit by digit, of continuations and of whole texts in windows")
def score_command():
    harness = local(batch_size=4, tokenizer_backend="remote", max_length=200)
    texts = [context + continuation for context, continuation in PAIRS]
    instances = [Instance("loglikelihood_rolling", {}, (text,), index) for index, text in enumerate(texts)]
    whole = harness.loglikelihood_rolling(instances, disable_tqdm=True)
    pairs = [{"context": context, "text": continuation} for context, continuation in PAIRS]
    assert [record["logprob"] for record in scored(texts)] == whole
    assert [(each["logprob"], each["is_greedy"]) for each in scored(pairs)] == harness.loglikelihood(
        requests(PAIRS), disable_tqdm=True
    )


@check("gguf: scores equal the engine's bit for bit, is_greedy equal")
def gguf():
    with contextlib.redirect_stderr(io.StringIO()):
        model = GGUFLM(base_url=URLS["lenient"])
        compare(model.loglikelihood(requests(PAIRS), disable_tqdm=True))
        arguments = ("Once upon", {"until": [" "], "max_gen_toks": 40})
        (text,) = model.generate_until([Instance("generate_until", {}, arguments, 0)], disable_tqdm=True)
        assert " " not in text


def pasted():
    """The words of the page's first command, for this server and model, on tasks that need no network."""
    command = re.search(r"^\$ lm_eval ((?:.*\\\n)*.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)[1]
    command = command.replace("http://127.0.0.1:8000", URLS["default"]).replace("storyteller", MODEL)
    words = shlex.split(command.replace("\\\n", " "))
    words[words.index("--tasks") + 1] = "toy_mc,toy_gen"
    return words


@check("the first command of docs/how-to/evaluate.md runs local task files, offline")
def command_line():
    with tempfile.TemporaryDirectory() as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "lm_eval", *pasted(), "--include_path", str(TASKS), "--output_path", folder],
            cwd=TASKS,
            capture_output=True,
            text=True,
            env=OFFLINE,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        (path,) = Path(folder).rglob("results_*.json")
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
    assert 0 <= results["toy_mc"]["acc,none"] <= 1 and "exact_match,none" in results["toy_gen"]
