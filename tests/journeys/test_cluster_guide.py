"""The commands of docs/how-to/cluster.md, each executed, on a Ray of this machine with authentication."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.processes import free_port

if not sys.platform.startswith("linux"):
    pytest.skip("starts Ray on this machine", allow_module_level=True)
pytest.importorskip("ray", reason="needs Ray: pip install 'onward[cluster]'")

pytestmark = [pytest.mark.slow, pytest.mark.companion]
PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "cluster.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\$ (.+?)(?: +#.*)?$", PAGE, re.MULTILINE)
CLUSTER_TOML = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
RAY_OF_MACHINE = Path("/tmp/ray/ray_current_cluster")
COMMAND_SECONDS = 240
NOT_HERE = {"pip install 'onward[cluster]'"}
"""What is run before the tests."""
ONWARD = (sys.executable, "-m", "onward")
RAY = (sys.executable, "-m", "ray.scripts.scripts")


class Machine:
    """An account of its own on this machine, with one Ray, which is stopped at the end."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.done: set[str] = set()
        """The commands of the page that were executed."""
        hidden = ("RAY_AUTH_MODE", "RAY_ADDRESS")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment |= {"HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}
        self.environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.port = free_port()

    def run(self, *command: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, which must be 0 unless it `fails`."""
        ran = subprocess.run(
            command, cwd=self.home, env=self.environment, capture_output=True, text=True, timeout=COMMAND_SECONDS
        )
        assert bool(ran.returncode) == fails, ran.stderr[-2000:] + ran.stdout[-2000:]
        return ran

    def execute(self, words: str, *more: str, **replaced: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the page, with further flags, and some of its words replaced."""
        assert words in COMMANDS, f"the page does not have {words}"
        self.done.add(words)
        plain = words.partition(" > ")[0].split()
        assert plain[0] == "onward"
        return self.run(*ONWARD, *(replaced.get(word, word) for word in plain[1:]), *more)

    def serve_deploy(self) -> None:
        """Run `serve deploy onward.yaml`, which needs Ray's dashboard."""
        flags = (f"--port={self.port}", "--num-cpus=4", "--include-dashboard=true", "--dashboard-host=127.0.0.1")
        self.environment["RAY_AUTH_MODE"] = "token"
        self.run(*RAY, "start", "--head", "--object-store-memory=200000000", *flags)
        self.run("serve", "deploy", "onward.yaml")


def ray_runs() -> bool:
    """Whether a Ray is running that `auto` would find."""
    try:
        host, _, port = RAY_OF_MACHINE.read_text(encoding="utf-8").strip().rpartition(":")
        socket.create_connection((host, int(port)), 5).close()
    except (OSError, ValueError):
        return False
    return True


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    if ray_runs():
        pytest.skip("Ray runs on this machine already, and is left alone")
    machine = Machine(tmp_path_factory.mktemp("home"))
    yield machine
    if ray_runs():
        machine.run(*RAY, "stop", "--grace-period", "10")


def completion_over(machine: Machine, words: Sequence[str]) -> str:
    """Serve, complete, end by Ctrl-C; return the text."""
    process = subprocess.Popen(
        [*ONWARD, *words, "--port", "0"], cwd=machine.home, env=machine.environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        ready = next(line for line in process.stdout if line.startswith("Onward is ready at "))
        body = json.dumps({"model": "storyteller", "prompt": "Once upon a time", "max_tokens": 8, "seed": 1}).encode()
        request = urllib.request.Request(ready.split()[4] + "/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return str(json.loads(answer.read())["choices"][0]["text"])
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) in (0, 130)
        process.stdout.close()


def models_of(machine: Machine) -> dict[str, str]:
    """The models that the cluster serves, and how many replicas."""
    found = json.loads(machine.execute("onward cluster status").stdout)["models"]
    return {model["id"]: model["replicas"] for model in found}


def test_every_command_of_the_page_works(machine: Machine) -> None:
    up = machine.execute(
        "onward cluster up --model storyteller --replicas 2", "--num-cpus", "4", "--port", str(machine.port)
    )
    address = json.loads(up.stdout)["address"]
    assert "Starting Ray" in up.stderr
    assert (machine.home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    machine.done.add("onward serve --cluster auto")
    text = completion_over(machine, ["serve", "--cluster", "auto"])
    assert text

    assert CLUSTER_TOML is not None
    table = CLUSTER_TOML[1].replace('"smollm2"', '"toy"').replace("cpus = 4", "cpus = 1")
    (machine.home / "cluster.toml").write_text(table, encoding="utf-8")
    assert "Joined" in machine.execute("onward cluster up cluster.toml").stderr
    assert models_of(machine) == {"storyteller": "1 running", "toy": "2 running"}
    refused = machine.run(*ONWARD, "cluster", "up", "--model", "storyteller", fails=True)
    assert "also serves toy" in refused.stderr and set(models_of(machine)) == {"storyteller", "toy"}
    machine.run(*ONWARD, "cluster", "up", "--model", "storyteller", "--remove-others")
    assert set(models_of(machine)) == {"storyteller"}

    node = "onward cluster add-node 10.0.0.5:6379"
    machine.execute(node, "--num-cpus", "0", **{"10.0.0.5:6379": address})
    assert len(json.loads(machine.execute("onward cluster status").stdout)["nodes"]) == 2
    manifest = next(words for words in COMMANDS if "--kuberay" in words)
    assert "kind: RayService" in machine.execute(manifest).stdout
    (machine.home / "cluster.toml").write_text('[[model]]\nmodel = "storyteller"\n', encoding="utf-8")
    (machine.home / "onward.yaml").write_text(
        machine.execute("onward cluster config cluster.toml > onward.yaml").stdout, encoding="utf-8"
    )
    down = machine.run(*ONWARD, "cluster", "down")
    assert "Ray was stopped" in down.stderr and not ray_runs()

    machine.serve_deploy()
    deadline = time.monotonic() + COMMAND_SECONDS
    while models_of(machine) != {"storyteller": "1 running"}:
        assert time.monotonic() < deadline
        time.sleep(1)
    assert completion_over(machine, ["serve", "--cluster", "auto"]) == text
    assert machine.done == set(COMMANDS) - NOT_HERE
