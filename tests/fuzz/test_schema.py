"""schemathesis sends requests that /openapi.json describes, and some that it does not; bounded in count and time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.clients.environments import PYTHON, Unavailable
from tests.parity.servers import Server

from .conftest import wait_until_idle

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "response_headers_conformance",
    "unsupported_method",
)
PHASES = [("default", "examples", []), ("default", "coverage", [pytest.mark.companion]),
          ("lenient", "examples,coverage,fuzzing", [pytest.mark.companion])]  # fmt: skip
"""By server. Random requests go to the lenient one: those to the other name a model that it does not have, and end
there."""
SECONDS = 1200


@pytest.fixture
def server(profile: str) -> Iterator[Server]:
    """A server of its own process; the lenient one accepts any model name, so that random requests reach the engine."""
    flags = ("--profile", "lenient") if profile == "lenient" else ()
    server = Server(*flags, "--max-body", "1MB", "--max-parallel", "64")
    yield server
    wait_until_idle(server)
    log = server.close()
    assert "Traceback" not in log, log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "phases"),
    [pytest.param(profile, phases, marks=marks, id=f"{profile}-{phases}") for profile, phases, marks in PHASES],
)
def test_every_route_does_what_its_schema_says(server: Server, phases: str) -> None:
    environment = PYTHON["schemathesis"]
    try:
        environment.make()
    except Unavailable as problem:
        pytest.skip(f"schemathesis COULD NOT BE INSTALLED: {problem}")
    ran = subprocess.run(
        [
            *(environment.program("schemathesis"), "run", f"{server.url}/openapi.json"),
            *("--checks", ",".join(CHECKS), "--max-examples", "40", "--seed", "1", "--workers", "1"),
            *("--phases", phases, "--no-color", "--request-timeout", "20"),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
        cwd=environment.folder,
    )
    assert ran.returncode == 0, ran.stdout[-6000:] + ran.stderr[-2000:]
