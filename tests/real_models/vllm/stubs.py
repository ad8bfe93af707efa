"""Empty stand-ins for the CUDA libraries that PyPI's torch for Linux is linked with, so that it can be imported on a
machine without a GPU, without three gigabytes of wheels. Needs gcc and readelf.

libcudart must be the real one (nvidia-cuda-runtime): it is called while torch is loaded. Of the others only the names
must exist.
"""

from __future__ import annotations

import re
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

REAL = {"libcudart.so.13", "libcuda.so.1"}
"""Libraries that are there, or that nothing needs without a device."""
SYSTEM = re.compile(r"lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|gomp)\.so|ld-linux")
UNVERSIONED = {
    "libcupti.so.13": r"cupti", "libcusparse.so.12": r"cusparse(?!Lt)", "libcufft.so.12": r"cufft",
    "libcufile.so.0": r"cuFile", "libcusparseLt.so.0": r"cusparseLt", "libnccl.so.2": r"p?nccl",
    "libcurand.so.10": r"curand", "libcublas.so.13": r"cublas(?!Lt)", "libcublasLt.so.13": r"cublasLt",
    "libcudnn.so.9": r"cudnn", "libnvrtc.so.13": r"nvrtc", "libcusolver.so.12": r"cusolver",
    "libnvshmem_host.so.3": r"nvshmem",
}  # fmt: skip
"""How the names of symbols without a version begin, by library."""


class Wanted(NamedTuple):
    """Requirements of libraries: the files, undefined symbols by version ("" for none), and the files that have a
    version."""

    files: set[str]
    symbols: dict[str, set[str]]
    versions: dict[str, set[str]]


def write_stubs(site_packages: Path) -> None:
    """Write a library for each file that torch needs and that is missing."""
    target = site_packages / "nvidia" / "cu13" / "lib"
    target.mkdir(parents=True, exist_ok=True)
    wanted = _wanted(sorted((site_packages / "torch" / "lib").glob("*.so*")))
    for name in sorted(wanted.files - REAL):
        versions = {version: names for version, names in wanted.symbols.items() if name in wanted.versions[version]}
        prefix = UNVERSIONED.get(name, "$^")
        plain = {symbol for symbol in wanted.symbols[""] if re.match(prefix, symbol)}
        _build(target / name, versions, plain)


def _wanted(libraries: list[Path]) -> Wanted:
    wanted, own = Wanted(set(), defaultdict(set), defaultdict(set)), {library.name for library in libraries}
    for library in libraries:
        for name in re.findall(r"NEEDED.*\[(.*?)\]", _run("readelf", "-dW", library)):
            if name not in own and not SYSTEM.match(name):
                wanted.files.add(name)
        file = ""
        for line in _run("readelf", "-VW", library).splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif file and (found := re.search(r"Name: (\S+)", line)):
                wanted.versions[found[1]].add(file)
        for line in _run("readelf", "--dyn-syms", "-W", library).splitlines():
            if found := re.search(
                r"(?:FUNC|OBJECT|NOTYPE)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+UND\s+(\S+?)(?:@(\S+))?(?:\s|$)", line
            ):
                wanted.symbols[found[2] or ""].add(found[1])
    return wanted


def _build(path: Path, versions: dict[str, set[str]], plain: set[str]) -> None:
    """Compile a library with functions of these names that return an error."""
    symbols = sorted(symbol for symbol in plain.union(*versions.values()) if re.fullmatch(r"\w+", symbol))
    source, script = path.with_suffix(".c"), path.with_suffix(".map")
    source.write_text(
        "".join(f"int {symbol}(void) {{ return 999; }}\n" for symbol in symbols) or "int nothing;\n", encoding="utf-8"
    )
    script.write_text(
        "".join(f"{name} {{ global: {'; '.join(sorted(names))}; }};\n" for name, names in versions.items()),
        encoding="utf-8",
    )
    flags = [f"-Wl,--version-script={script}"] if versions else []
    _run("gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", *flags, "-o", path, source)
    source.unlink()
    script.unlink()


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
