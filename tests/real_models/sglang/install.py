"""Installs SGLang, once per machine, into an environment of its own beside vLLM's, whose PyTorch it uses.

`python -m tests.real_models.sglang.install` prints the path of its Python. It downloads 300 MB; the installation takes
1.3 GB. ONWARD_TEST_SGLANG names a Python that has it instead.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.real_models.vllm.install import NotAvailable, environment_of, pip, site_packages
from tests.real_models.vllm.install import installed as installed_vllm

VERSION = "0.5.23"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FREE_BYTES = 3_000_000_000
ENVIRONMENT = {"SGLANG_USE_CPU_ENGINE": "1"}
FLAGS = ("--device=cpu", "--attention-backend=torch_native", "--dtype=float32", "--max-total-tokens=20000")
KERNELS = """
def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*arguments, **more):
        raise NotImplementedError(name)

    return missing
"""
"""Its kernels for processors are in no package index: what it imports of them are names here that nothing calls. All
else is its own, on PyTorch."""


def installed() -> Path:
    """Return the path of its Python, after installing it if need be. Raises NotAvailable."""
    if stated := os.environ.get("ONWARD_TEST_SGLANG"):
        return Path(stated)
    beside = installed_vllm().parents[1]
    if not site_packages(beside).is_dir():
        raise NotAvailable(f"the vLLM that ONWARD_TEST_VLLM names is in no environment of this Python: {beside}")
    return environment_of(f"sglang-{VERSION}", FREE_BYTES, lambda own: _install(own, beside)) / "bin" / "python"


def _install(environment: Path, beside: Path) -> None:
    pip(environment, "--no-deps", "--requirement", str(REQUIREMENTS), f"sglang=={VERSION}")
    own = site_packages(environment)
    (own / "vllm.pth").write_text(f"{site_packages(beside)}\n", encoding="utf-8")
    (own / "sgl_kernel").mkdir(exist_ok=True)
    (own / "sgl_kernel" / "__init__.py").write_text(KERNELS, encoding="utf-8")


if __name__ == "__main__":
    print(installed())
