"""What a fresh interpreter imports: help is printed at once, and tables cost nothing but themselves. One interpreter
goes through all of it, from what may import least; so a later step may only see more modules than it would alone."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import pytest

from onward.cli.root import COMMANDS

HEAVY = {
    "httpx2", "huggingface_hub", "llvmlite", "msgspec", "numpy", "openvino", "prometheus_client", "ruamel.yaml",
    "sqlalchemy", "starlette", "tokenizers", "uvicorn",
}  # fmt: skip


def help_of(*words: str) -> str:
    return f"from onward.cli.root import root; root({[*words, '--help']}, standalone_mode=False)"


STEPS = {
    "the package": (
        "import onward; assert not [name for name in sys.modules if name.startswith('onward.')]",
        {*HEAVY, "asyncio", "click", "typing"},
    ),
    "its errors": ("import onward; assert onward.errors.InvalidRequest.status == 400", {*HEAVY, "asyncio", "click"}),
    "help": (help_of(), {*HEAVY, "asyncio", "onward.cli.commands.serve", "ssl"}),
    "the help of create": (help_of("completions", "create"), {*HEAVY, "asyncio", "onward.cli.commands.serve", "ssl"}),
    **{f"the help of {name}": (help_of(name), HEAVY) for name in COMMANDS if name != "serve"},
    "the help of serve": (help_of("serve"), HEAVY),
    "the table of model formats": ("import onward.model_files.formats", HEAVY),
    "the table of runtimes": ("import onward.runtimes.table", HEAVY),
    "a process that checks grammars": (
        "from onward.constraints.process.worker import check; assert not check('start: /a/')",
        HEAVY - {"msgspec"},
    ),
    "parameters of samplers": (
        "import onward.sampling.params, onward.sampling.reference",
        HEAVY - {"msgspec", "numpy"},
    ),
    "a server without traces": (
        "import onward.compose.live_models, onward.server.run\n"
        "from onward.compose.telemetry import open_tracer\n"
        "from onward.settings import Settings\n"
        "assert open_tracer(Settings()) is None",
        {"opentelemetry", "openvino", "ray", "sqlalchemy"},
    ),
}
"""Code, and modules that may not be loaded after it."""


@cache
def loaded() -> dict[str, set[str]]:
    """The modules that are loaded after each step."""
    lines = ["import sys"]
    for code, _ in STEPS.values():
        lines += [code, "print('\\nloaded:', *sys.modules)"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("loaded: ")]
    return {step: set(names) for step, (_, *names) in zip(STEPS, found, strict=True)}


@pytest.mark.parametrize("step", STEPS)
def test_nothing_is_imported_that_is_not_needed(step: str) -> None:
    names = loaded()[step]
    assert "sys" in names
    assert not names & STEPS[step][1]
