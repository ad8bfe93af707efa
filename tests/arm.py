"""Machines with ARM processors, emulated by QEMU: Debian's Python for AArch64 and the wheels of AArch64 in a folder, in
which tests run as on such a machine, with its threads, its system calls and its processor's features.

`python -m tests.arm FOLDER [MACHINE]` makes them there and prints how to start a machine's Python. As a plugin of
pytest on such a machine (`-p tests.arm`) it has kernels compiled by this processor's Python, in a tenth of the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path
from threading import Lock
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main\n"
PYTHON = "python3.11"
"""Of that release."""
PACKAGES = (f"{PYTHON}-minimal", f"lib{PYTHON}-stdlib", "libstdc++6")
WHEELS = ("pytest", "hypothesis", "gguf")
"""Beside what Onward depends on."""
COMPILER = "ARM_TEST_COMPILER"
"""The variable that names the Python that compiles."""
_PLATFORMS = ("manylinux2014_aarch64", *(f"manylinux_2_{minor}_aarch64" for minor in range(17, 37)))
"""Of wheels, up to the release's C library."""
_OLDEST = "fp asimd evtstrm crc32 cpuid"
_OLDER = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs"
_NEWER = f"{_OLDER} jscvt fcma sha3 sm3 sm4 sha512 sve asimdfhm dit uscat ilrcpc flagm svei8mm svebf16 i8mm bf16 rng"


class Unavailable(Exception):
    """Why no such machine can be emulated here, in a sentence."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor: what QEMU calls one with its instructions, and what Linux states of it in /proc/cpuinfo."""

    cpu: str
    part: int
    features: str
    isa: str
    """The form of kernels that it runs."""

    @property
    def cpuinfo(self) -> str:
        stated = f"Features\t: {self.features}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
        return f"processor\t: 0\nBogoMIPS\t: 100.00\n{stated}CPU part\t: {self.part:#x}\nCPU revision\t: 1\n\n"


MACHINES: Mapping[str, Machine] = {
    "Raspberry Pi 4": Machine("cortex-a72", 0xD08, _OLDEST, "portable"),
    "Graviton 2": Machine("neoverse-n1", 0xD0C, _OLDER, "neon-dot"),
    "Graviton 3": Machine("max", 0xD40, _NEWER, "neon-i8mm"),
}


def qemu() -> str:
    """Return QEMU's program for one process of AArch64. Raises Unavailable."""
    found = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if found is None:
        raise Unavailable("qemu-aarch64 is not installed: it is in Debian's package qemu-user.")
    return found


def installed_at() -> Path:
    """Return the folder in which tests have it: beside the packages of the environment that they run in."""
    return Path(sys.prefix) / "arm"


def install(folder: Path) -> None:
    """Fill a folder with what all machines have in common, once: about 450 MB, of Debian and of the package index.
    Raises Unavailable."""
    if shutil.which("apt-get") is None:
        raise Unavailable("a Python for AArch64 is fetched by apt-get, which is not here.")
    import fcntl  # where apt-get is, this is

    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.exists():
            return
        partial = folder.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _install_python(partial)
        _install_wheels(partial / "wheels")
        partial.rename(folder)


def _install_python(folder: Path) -> None:
    state = folder / "apt"
    for name in ("lists/partial", "archives/partial"):
        (state / name).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "sources.list").write_text(SOURCE, encoding="utf-8")
    settings = {
        "APT::Architecture": "arm64", "APT::Architectures::": "arm64", "APT::Sandbox::User": "",
        "Dir::State::status": state / "status", "Dir::State::Lists": state / "lists",
        "Dir::Cache::Archives": state / "archives", "Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "",
        "Dir::Etc::SourceList": state / "sources.list", "Dir::Etc::SourceParts": "/dev/null",
    }  # fmt: skip
    apt = ["apt-get", "--quiet", *(f"-o{key}={value}" for key, value in settings.items())]
    _run([*apt, "update"])
    _run([*apt, "install", "--yes", "--download-only", "--no-install-recommends", *PACKAGES])
    for package in sorted((state / "archives").glob("*.deb")):
        _run(["dpkg-deb", "--extract", str(package), str(folder / "root")])
    shutil.rmtree(state)


def _install_wheels(folder: Path) -> None:
    own = distribution("onward")
    wanted = [each for each in own.requires or () if "extra ==" not in each]
    platforms = [argument for each in _PLATFORMS for argument in ("--platform", each)]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(folder)]
    version = ["--python-version", PYTHON.removeprefix("python"), "--only-binary", ":all:", *platforms]
    _run([*pip, *version, *wanted, *WHEELS])
    (stated := folder / f"onward-{own.version}.dist-info").mkdir()
    (stated / "METADATA").write_text(own.read_text("METADATA") or "", encoding="utf-8")


def _run(command: Sequence[str]) -> None:
    """Raises Unavailable."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise Unavailable(f"{command[0]} failed: {(done.stderr or done.stdout).strip()[-300:]}")


def python_of(machine: Machine, folder: Path) -> list[str]:
    """Return the command that starts a machine's Python. `folder`: where `install` put it. Raises Unavailable."""
    stated = folder / machine.cpu / "proc"
    stated.mkdir(parents=True, exist_ok=True)
    (stated / "cpuinfo").write_text(machine.cpuinfo, encoding="utf-8")
    for name in ("lib", "usr"):  # QEMU looks for files of the system there first
        if not (link := folder / machine.cpu / name).is_symlink():
            link.symlink_to(folder / "root" / name)
    environment = [f"PYTHONPATH={ROOT / 'src'}:{ROOT}:{folder / 'wheels'}", f"{COMPILER}={sys.executable}"]
    program = str(folder / "root" / "usr" / "bin" / PYTHON)
    return ["env", *environment, qemu(), "-L", str(folder / machine.cpu), "-cpu", machine.cpu, program]


def pytest_configure(config: Any) -> None:
    """Have kernels compiled by a Python of this processor: QEMU starts other programs as they are."""
    from onward.kernels import compiler, compiler_processes

    python, *arguments = compiler_processes.WORKER
    assert python == sys.executable
    compiler_processes.WORKER = ("env", "-u", "PYTHONPATH", os.environ[COMPILER], *arguments)  # type: ignore[assignment]
    compiler_processes.MIN_JOBS = sys.maxsize
    helper, lock = compiler_processes._Helper(), Lock()

    def compile_object(text: str, target: Any) -> bytes:
        with lock:
            return helper.compile(text, target)

    here = compiler.compile_object
    for module in list(sys.modules.values()):
        if getattr(module, "compile_object", None) is here:
            setattr(module, "compile_object", compile_object)  # noqa: B010


def pytest_report_header() -> str:
    from onward.kernels.targets import host

    return f"kernels for {host().isa.name}"


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    install(folder)
    print(*python_of(MACHINES[sys.argv[2] if len(sys.argv) > 2 else "Graviton 3"], folder))
