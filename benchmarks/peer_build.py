"""Find llama.cpp's programs: a given path, on PATH, or built once from the source package of llama-cpp-python.

`python -m benchmarks.peer_build` builds them (fourteen minutes of processor time) and prints their paths.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from benchmarks import measure
from benchmarks.measure import BenchmarkError

PEERS = Path(__file__).parent.parent / ".peers"
"""Where benchmarks put what they build and download; ignored by git."""
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
SOURCE = PEERS / f"llama_cpp_python-{VERSION}"
LLAMA_CPP = SOURCE / "vendor" / "llama.cpp"
PROGRAMS = SOURCE / "build" / "bin"
SERVER, BATCHED_BENCH = "llama-server", "llama-batched-bench"
CMAKE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
}
"""All instructions of this machine, no network access, no web page."""
_AVX2 = ("AVX", "AVX2", "FMA", "F16C", "BMI2")
PROCESSORS = {"avx2": _AVX2, "avx512": (*_AVX2, "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16")}
"""Instructions of other processors than this one: AVX2 and nothing newer; AVX-512 VNNI, but not AMX."""


class PeerError(BenchmarkError):
    """llama.cpp cannot be found, built or started; the message says what to do."""


def find(program: str, given: Path | None = None) -> Path:
    """Return the path of a program: `given`, else the one on PATH, else the one built here, built now if necessary.

    `given` may be another program in the same folder. Raises PeerError.
    """
    if given is not None:
        path = given.with_name(given.name.replace(SERVER, program)) if program != SERVER else given
        if not os.access(path, os.X_OK):
            raise PeerError(
                f"{path} is not an executable program. Pass the path of the {program} of a llama.cpp build."
            )
        return path
    if on_path := shutil.which(program):
        return Path(on_path)
    built = PROGRAMS / program
    return built if os.access(built, os.X_OK) else build(program)


def build(program: str, processor: str | None = None) -> Path:
    """Download the source package if it is missing, and compile one program, for this machine or, into a folder of its
    own, for one of PROCESSORS. Raises PeerError."""
    check_tools()
    if not LLAMA_CPP.is_dir():
        _download()
    folder, options = PROGRAMS.parent, CMAKE_OPTIONS
    if processor is not None:
        folder = SOURCE / f"build-{processor}"
        options = options | {"GGML_NATIVE": "OFF"} | {f"GGML_{name}": "ON" for name in PROCESSORS[processor]}
    configure = ["cmake", "-S", str(LLAMA_CPP), "-B", str(folder)]
    if shutil.which("ninja"):
        configure += ["-G", "Ninja"]
    _run([*configure, *(f"-D{name}={value}" for name, value in options.items())])
    _run(["cmake", "--build", str(folder), "--target", program, "--parallel", str(os.cpu_count() or 1)])
    return folder / "bin" / program


def check_tools() -> None:
    """Raise PeerError if build tools are missing."""
    missing = [] if shutil.which("cmake") else ["cmake"]
    if not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")):
        missing.append("a C++ compiler")
    if missing:
        raise PeerError(
            f"Building {SERVER} needs {' and '.join(missing)} (Debian: `apt install cmake ninja-build g++`). "
            f"Or pass the path of an existing one: --llama-server PATH."
        )


def _download() -> None:
    PEERS.mkdir(exist_ok=True)
    archive = PEERS / f"{SOURCE.name}.tar.gz"
    if not archive.is_file():
        arguments = ["--no-deps", "--no-binary", PACKAGE, f"{PACKAGE}=={VERSION}"]
        _run([sys.executable, "-m", "pip", "download", "--dest", str(PEERS), *arguments])
    with tarfile.open(archive) as files:
        files.extractall(PEERS, filter="data")


def _run(command: list[str]) -> None:
    print(f"+ {' '.join(command)}", file=sys.stderr)
    try:
        subprocess.run(command, check=True, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PeerError(f"{command[0]} failed ({error}). Its output is above.") from error


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peer_build", description=__doc__)
    parser.add_argument(
        "--processor", choices=PROCESSORS,
        help="build others for such a processor, whatever this one has; pass llama-server's path with --llama-server",
    )  # fmt: skip
    processor = parser.parse_args().processor
    for program in (SERVER, BATCHED_BENCH):
        print(build(program, processor) if processor else find(program))


if __name__ == "__main__":
    measure.run_main(main)
