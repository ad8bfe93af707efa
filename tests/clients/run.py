"""`make clients`: every real client against real servers; prints a table, and writes it to the documentation.

`python -m tests.clients.run [CLIENT …] [--write]`. Exit code: 1 when a check failed, 2 when one was skipped.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.parity.servers import KEY, Server

from . import wire
from .environments import NODE, PYTHON, ROOT, Environment, NodeEnvironment, Unavailable
from .faults import FaultProxy
from .page import write_page
from .report import Report
from .scores import expected_scores

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
CLIENT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Installed:
    """A client with an environment of its own. `package` is whose version the table shows."""

    name: str
    environment: Environment
    package: str
    program: str


@dataclass(frozen=True, slots=True)
class Shaped:
    """A client whose rules are checked from here."""

    name: str
    version: str
    check: Callable[[Server, Report], None]


CLIENTS: tuple[Installed | Shaped, ...] = (
    Installed("openai (Python)", PYTHON["openai-3"], "openai", "openai_python.py"),
    Installed("openai (Python) 2", PYTHON["openai-2.34"], "openai", "openai_python.py"),
    Installed("openai command line 2", PYTHON["openai-2.34"], "openai", "openai_cli.py"),
    Installed("openai (Python) 0.28", PYTHON["openai-0.28"], "openai", "openai_0.py"),
    Installed("openai command line 0.28", PYTHON["openai-0.28"], "openai", "openai_cli.py"),
    Installed("openai (Node) 6", NODE["node-openai-6"], "openai", "openai_node.mjs"),
    Installed("openai (Node) 7, Node 22", NODE["node-openai-7"], "openai", "openai_node.mjs"),
    Installed("LangChain OpenAI()", PYTHON["langchain"], "langchain-openai", "langchain_llm.py"),
    Installed(
        "LlamaIndex OpenAILike", PYTHON["llama-index"], "llama-index-llms-openai-like", "llama_index_llm.py"
    ),
    Installed("llm", PYTHON["llm"], "llm", "llm_cli.py"),
    Installed("litellm text-completion-openai", PYTHON["litellm"], "litellm", "litellm_text.py"),
    Installed("lm-eval local-completions, gguf", PYTHON["lm-eval"], "lm_eval", "lm_eval_scores.py"),
    Shaped("openai (Java), its rules", "4.52.0", wire.check_java),
    Shaped("Tabby, its reader", "openai/completion", wire.check_tabby),
    Shaped("vllm bench serve, its reader", "--backend openai", wire.check_bench),
    Shaped("curl (editors)", "", wire.check_curl),
)


@dataclass(frozen=True, slots=True)
class Bench:
    """The servers that clients talk to, and what evaluations must find."""

    default: Server
    urls: dict[str, str]
    expected: Path


@contextmanager
def bench() -> Iterator[Bench]:
    """Start three servers and the misbehaving proxy; end them all."""
    with ExitStack() as stack:

        def start(*flags: str) -> Server:
            server = Server(*flags)
            stack.callback(server.close)
            return server

        default = start("--alias", "gpt-3.5-turbo-instruct=toy")
        proxy = FaultProxy(default.url)
        stack.callback(proxy.close)
        urls = {
            "default": default.url,
            "lenient": start("--profile", "lenient").url,
            "keyed": start("--api-key", KEY).url,
            "faults": proxy.url,
        }
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        expected = Path(folder, "expected.json")
        expected.write_text(json.dumps(expected_scores()))
        yield Bench(default, urls, expected)


def run_client(client: Installed | Shaped, on: Bench) -> Report:
    """All checks of one client. A client that cannot be installed is skipped with the reason, never in silence."""
    report = Report(client.name)
    if isinstance(client, Shaped):
        report.version = client.version or _curl_version()
        client.check(on.default, report)
        return report
    try:
        client.environment.make()
        report.version = client.environment.version(client.package)
        node = isinstance(client.environment, NodeEnvironment)
        interpreter = client.environment.program("node" if node else "python")
    except Unavailable as problem:
        report.skipped = str(problem)
        return report
    _run_program(client, interpreter, on, report)
    return report


def _run_program(client: Installed, interpreter: Path, on: Bench, report: Report) -> None:
    environment = os.environ | {
        "ONWARD_CLIENT_URLS": json.dumps(on.urls),
        "ONWARD_CLIENT_KEY": KEY,
        "ONWARD_CLIENT_EXPECTED": str(on.expected),
        "ONWARD_CLIENT_TASKS": str(HERE / "tasks"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    program = PROGRAMS / client.program
    if isinstance(client.environment, NodeEnvironment):  # imports are looked up from the program's own folder
        program = Path(shutil.copy(program, client.environment.folder))
    ran = subprocess.run(
        [interpreter, program], capture_output=True, text=True, env=environment, timeout=CLIENT_SECONDS, cwd=ROOT
    )
    report.read(ran.stdout)
    if not report.checks or (ran.returncode and not report.failed):
        report.checks.append(("the program runs to its end", ran.stderr[-3000:] or ran.stdout[-3000:]))


def _curl_version() -> str:
    ran = subprocess.run(["curl", "--version"], capture_output=True, text=True, check=True)
    return ran.stdout.split()[1]


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    wanted = [argument for argument in arguments if not argument.startswith("--")]
    chosen = [client for client in CLIENTS if not wanted or any(name in client.name for name in wanted)]
    reports = []
    with bench() as on:
        for client in chosen:
            report = run_client(client, on)
            reports.append(report)
            print(f"{report.client:34} {report.version:18} {len(report.checks):3}  {report.verdict}", flush=True)
            for name, why in report.failed:
                print(f"    {name}\n{why}", flush=True)
    if write:
        write_page(reports, platform.python_version())
    if any(report.failed for report in reports):
        return 1
    return 2 if any(report.skipped for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
