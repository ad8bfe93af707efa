"""The repository's own files: workflows, templates, container, service unit, package metadata."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hatchling.builders.wheel import WheelBuilder
from ruamel.yaml import YAML

from onward.compose import telemetry
from onward.server import app, run
from onward.service import team
from onward.settings import CONFIG_ENVIRONMENT, PREFIX_CACHE_SAVE_SECONDS, options
from tests.tables import each_row

ROOT = Path(__file__).parent.parent
YAML_FILES = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml"])
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FLAGS = {option.flag: option for option in options()}
ENVIRONMENT = {option.environment for option in options()} | {CONFIG_ENVIRONMENT}


def load(path: str) -> Any:
    return YAML(typ="safe", pure=True).load(ROOT / path)


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_yaml_can_be_read(path: Path) -> None:
    assert load(str(path.relative_to(ROOT)))


def jobs(workflow: str) -> dict[str, Any]:
    found: dict[str, Any] = load(f".github/workflows/{workflow}")["jobs"]
    return found


def test_workflows_run_only_make_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    matrix = jobs("ci.yml")["dependencies"]["strategy"]["matrix"]["target"]
    steps = [step for name in ("ci.yml", "release.yml") for job in jobs(name).values() for step in job["steps"]]
    named = {target for step in steps for target in re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))}
    assert {"check", "companions", "coverage", "package", "test-all"} <= named
    assert named | set(matrix) <= targets


def test_jobs_have_a_time_limit_and_workflows_ask_for_few_rights() -> None:
    for name in ("ci.yml", "release.yml"):
        assert load(f".github/workflows/{name}")["permissions"] in ({}, {"contents": "read"})
        assert all("timeout-minutes" in job for job in jobs(name).values())
    assert jobs("release.yml")["publish"]["permissions"]["id-token"] == "write"


def test_every_python_that_is_claimed_is_tested_and_all_three_systems() -> None:
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    matrix = jobs("ci.yml")["test"]["strategy"]["matrix"]
    assert matrix["python"] == claimed
    assert PROJECT["requires-python"] == f">={claimed[0]}"
    systems = {*matrix["os"], *(each["os"] for each in matrix["include"])}
    assert systems == {"ubuntu-latest", "macos-latest", "windows-latest"}


@pytest.mark.skipif(sys.platform == "win32" or shutil.which("make") is None, reason="needs make")
def test_a_clone_in_a_folder_with_a_space_is_installed(tmp_path: Path) -> None:
    """By a Python that writes down what it is called for: pip gets a folder for its files on the same disk."""
    clone = tmp_path / "a clone"
    clone.mkdir()
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, clone)
    python = clone / "python"
    python.write_text(
        '#!/bin/sh\ncase "$2" in\nvenv) mkdir -p "$3/bin" && cp python "$3/bin" ;;\n'
        'pip) printf %s "$TMPDIR" > called ;;\nesac\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    made = subprocess.run(
        ["make", ".venv/bin/onward", "PYTHON=./python"],
        cwd=clone, env={"PATH": os.environ["PATH"]}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    assert (clone / "called").read_text(encoding="utf-8") == str(clone / ".venv" / "tmp")


def test_the_devcontainer_is_json_and_runs_a_make_target() -> None:
    container = json.loads(read(".devcontainer/devcontainer.json"))
    assert container["postCreateCommand"] == "make install"
    assert "\ninstall:" in read("Makefile")


def test_hooks_run_what_make_check_runs() -> None:
    (repository,) = load(".pre-commit-config.yaml")["repos"]
    tools = [Path(hook["entry"].split()[0]).name for hook in repository["hooks"]]
    assert tools == ["ruff", "ruff", "mypy"]


def test_the_service_unit_is_notified_and_restarted() -> None:
    unit = dict(re.findall(r"^(\w+)=(.*)$", read("deploy/systemd/onward.service"), re.MULTILINE))
    assert unit["Type"] == "notify" and unit["Restart"] == "on-failure"
    assert shlex.split(unit["ExecStart"])[1:] == ["serve"]


def test_the_socket_unit_listens_where_a_server_does() -> None:
    """It has the service's name, so the service gets the socket."""
    unit = dict(re.findall(r"^(\w+)=(.*)$", read("deploy/systemd/onward.socket"), re.MULTILINE))
    assert unit["ListenStream"] == f"{FLAGS['--host'].default}:{FLAGS['--port'].default}"


def test_systemd_finds_nothing_wrong_with_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    units = [tmp_path / name for name in ("onward.service", "onward.socket")]
    for unit in units:
        unit.write_text(
            read(f"deploy/systemd/{unit.name}").replace("/opt/onward/bin/onward", sys.executable), encoding="utf-8"
        )
    verified = subprocess.run(["systemd-analyze", "verify", *units], capture_output=True, text=True, check=False)
    assert [line for line in verified.stderr.splitlines() if "onward" in line] == []
    assert verified.returncode == 0, verified.stderr


CHART = "deploy/helm/templates/onward.yaml"


def test_the_chart_uses_the_values_that_it_has() -> None:
    values, chart = load("deploy/helm/values.yaml"), load("deploy/helm/Chart.yaml")
    assert set(re.findall(r"\.Values\.(\w+)", read(CHART))) == set(values)
    assert chart["apiVersion"] == "v2" and chart["name"] == "onward"


def rendered(*flags: str) -> subprocess.CompletedProcess[str]:
    """Return what Helm makes of the chart."""
    if shutil.which("helm") is None:
        pytest.skip("Helm is not installed")
    command = ["helm", "template", "mine", str(ROOT / "deploy/helm"), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_helm_renders_the_chart() -> None:
    made = rendered(
        "--set", "secret=s", "--set", "modelsClaim=m", "--set", "settings.ONWARD_MAX_ROWS=8", "--set", "replicas=2"
    )
    assert made.returncode == 0, made.stderr
    objects = {each["kind"]: each for each in YAML(typ="safe", pure=True).load_all(made.stdout)}
    assert set(objects) == {"ConfigMap", "Service", "StatefulSet"}
    assert {each["metadata"]["name"] for each in objects.values()} == {"mine"}
    assert objects["ConfigMap"]["data"] == {"ONWARD_MAX_ROWS": "8"}
    spec = objects["StatefulSet"]["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels == spec["selector"]["matchLabels"] == objects["Service"]["spec"]["selector"]
    assert spec["replicas"] == 2 and spec["serviceName"] == "mine"
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["serve", "--model", "storyteller"] and pod["enableServiceLinks"] is False
    assert container["envFrom"] == [{"configMapRef": {"name": "mine"}}, {"secretRef": {"name": "s"}}]
    probed = {container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "readiness", "liveness")}
    assert probed == {"/health", "/live"} <= {route.path for route in app.ROUTES}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    made_here = {volume["name"] for volume in (*pod["volumes"], *[c["metadata"] for c in spec["volumeClaimTemplates"]])}
    assert mounted == made_here == {"kept", "models", "tmp"}
    assert pod["terminationGracePeriodSeconds"] == 60


def test_helm_writes_numbers_as_they_stand_in_the_values(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(
        "settings: {ONWARD_MAX_BODY: 2000000000, ONWARD_KEEP_ALIVE: 0.5, ONWARD_OFFLINE: true}", encoding="utf-8"
    )
    made = rendered("--set", "secret=s", "--values", str(values))
    assert made.returncode == 0, made.stderr
    settings = next(iter(YAML(typ="safe", pure=True).load_all(made.stdout)))["data"]
    assert settings == {"ONWARD_MAX_BODY": "2000000000", "ONWARD_KEEP_ALIVE": "0.5", "ONWARD_OFFLINE": "true"}


def test_helm_says_what_the_chart_needs() -> None:
    made = rendered()
    assert made.returncode != 0 and "Name a secret with ONWARD_API_KEY or ONWARD_DATABASE" in made.stderr


def test_the_stack_mounts_files_that_exist_and_publishes_loopback_ports_only() -> None:
    stack = load("deploy/stack/compose.yaml")
    written = {"./models", "./prometheus.key"}  # by the operator, as the page says
    for service in stack["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        sources = [volume.partition(":")[0] for volume in service["volumes"]]
        files = {source for source in sources if source.startswith("./")}
        assert all((ROOT / "deploy/stack" / name).is_file() for name in files - written), files
        assert set(sources) - files <= set(stack["volumes"])
        assert {secret in stack["secrets"] for secret in service.get("secrets", ())} <= {True}
    page = read("docs/how-to/deploy.md")
    assert all(name.removeprefix("./") in page for name in written)


def test_the_stack_waits_for_a_database_that_accepts_connections() -> None:
    """PostgreSQL's image makes the database with a server on a Unix socket, which pg_isready asks without a host."""
    check = load("deploy/stack/compose.yaml")["services"]["postgres"]["healthcheck"]["test"]
    assert check[1] == "pg_isready" and check[check.index("--host") + 1] == "127.0.0.1"


@pytest.mark.parametrize(
    ("path", "setting"),
    [
        ("deploy/systemd/onward.service", "TimeoutStopSec="),
        ("deploy/stack/compose.yaml", "stop_grace_period: "),
        ("docs/how-to/deploy.md", "--stop-timeout "),
        ("deploy/helm/values.yaml", "terminationGracePeriodSeconds: "),
    ],
)
def test_a_server_has_time_to_close(path: str, setting: str) -> None:
    """Engines (with the caches that they save), traces and ledger are closed one after the other; pages and files state
    a sufficient time."""
    text, drain = read(path), float(str(FLAGS["--drain"].default))
    closing = run.CLOSE_SECONDS + PREFIX_CACHE_SAVE_SECONDS + telemetry.CLOSE_SECONDS + team.CLOSE_SECONDS
    (given,) = re.findall(rf"{setting}(\d+)", text)
    assert int(given) > drain + closing
    said = re.findall(r"(\d+) seconds (?:for|of) closing", text)
    assert said and {*said} == {f"{closing:g}"}


def test_files_and_pages_for_deployment_name_settings_that_exist() -> None:
    files = [
        *("Dockerfile", "deploy/systemd/onward.service", "deploy/stack/compose.yaml", "docs/how-to/deploy.md"),
        *("deploy/helm/values.yaml", CHART),
    ]
    text = "\n".join(map(read, files))
    named = set(re.findall(r"ONWARD_[A-Z_]+", text))
    assert {"ONWARD_HOST", "ONWARD_API_KEY", "ONWARD_API_KEY_FILE"} <= named <= ENVIRONMENT


def test_the_image_copies_what_the_build_reads_and_runs_without_privileges() -> None:
    steps = re.findall(r"^([A-Z]+) (.*)$", read("Dockerfile"), re.MULTILINE)
    copied = {name for step, rest in steps for name in rest.split()[:-1] if step == "COPY"}
    assert {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "NOTICE", "src"} <= copied
    kept = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    assert kept == copied - {"--from=build", "/opt/onward"}
    order = [step for step, _ in steps]
    assert order.index("USER") < order.index("ENTRYPOINT")
    assert {"HEALTHCHECK", "VOLUME"} <= set(order)


def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_of_the_package_page_are_absolute_or_gone() -> None:
    text = "[a](docs/a.md#b) [c](https://example.org/d.md) [e](#f) ![g](h.svg)"
    files = "https://example.org/blob/v1/"
    linked = hook().package_readme(text, files)
    assert linked == f"[a]({files}docs/a.md#b) [c](https://example.org/d.md) [e](#f) ![g]({files}h.svg)"
    assert hook().package_readme("[a](docs/a.md#b), [c](https://example.org)", "") == "a, [c](https://example.org)"
    assert hook().package_readme("![a chart](chart.svg)", "") == "a chart"


@pytest.mark.parametrize("wanted", ["", "1", "here"])
def test_a_wheel_contains_compiled_kernels_where_that_is_asked_for(
    wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command))
    monkeypatch.setenv("PACKAGE_KERNELS", wanted)
    builder = WheelBuilder(str(ROOT))
    made = hook().CompiledKernels(str(ROOT), {}, builder.config, builder.metadata, str(ROOT / "dist"), "wheel")
    names = {re.split("[>=]", each)[0] for each in made.dependencies()}
    assert names == ({"llvmlite", "msgspec", "numpy"} if wanted else set())
    data: dict[str, Any] = {"force_include": {}}
    made.initialize("editable", data)
    assert not commands and not data["force_include"]
    made.initialize("standard", data)
    assert [*data["force_include"].values()] == ["onward/kernels/objects"] * bool(wanted)
    assert [command[1:3] for command in commands] == [["-m", "onward.runtimes.native.packaged"]] * bool(wanted)
    assert all((command[4:] == ["--here"]) is (wanted == "here") for command in commands)
    made.finalize("standard", data, "")


def test_an_image_contains_kernels_of_its_own_architecture_only() -> None:
    assert "PACKAGE_KERNELS=here" in read("Dockerfile")


def metadata(environment: dict[str, str]) -> dict[str, Any]:
    """The metadata that the build backend makes from pyproject.toml."""
    command = [sys.executable, "-m", "hatchling", "metadata", "--compact"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_a_package_that_is_published_knows_its_repository() -> None:
    place = "https://example.org/somebody/onward"
    found = metadata({"PACKAGE_REPOSITORY_URL": place})
    assert found["urls"]["Repository"] == place
    assert f"({place}/blob/v{PROJECT['version']}/docs/tutorial.md)" in found["readme"]["text"]


def test_a_package_of_nowhere_has_no_dead_links() -> None:
    found = metadata({})
    assert not found.get("urls")
    assert "](docs/" not in found["readme"]["text"] and "Tutorial" in found["readme"]["text"]


def test_the_licences_of_bundled_javascript_are_part_of_the_packages_expression() -> None:
    found = re.findall(r"^## (\S+) - \S+ \((.+)\)$", read("src/onward/server/pages/static/LICENSES.txt"), re.MULTILINE)
    assert {"preact", "@codemirror/view"} <= {name for name, _ in found}
    assert {licence for _, licence in found} <= set(PROJECT["license"].split(" AND "))


def test_the_files_of_licences_exist_and_the_notice_names_whose_formats_are_followed() -> None:
    assert all((ROOT / path).is_file() for path in PROJECT["license-files"])
    notice = read("NOTICE")
    assert all(name in notice for name in ("SentencePiece", "Darts-clone", "ggml", "DRY"))
    assert all((ROOT / path).exists() for path in re.findall(r"\b(?:src|tests)/[\w/.]+\w", notice))


def test_training_imports_only_what_the_package_has() -> None:
    """Its own tests need PyTorch, so nothing else notices a module that has moved."""
    imported = {
        (node.module, alias.name)
        for path in (ROOT / "training").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("onward")
        for alias in node.names
    }
    assert imported
    for module, name in sorted(imported):
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name}"


def test_every_text_file_is_read_and_written_with_its_encoding() -> None:
    """The linter (PLW1514) knows the type of few paths."""
    folders = ("src", "tests", "benchmarks", "docs", "training", "playground")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.py") if "node_modules" not in path.parts]
    calls = [
        (path, node)
        for path in found
        if "_text(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, node in calls
        if (node.func.attr, len(node.args)) in (("read_text", 0), ("write_text", 1))  # type: ignore[attr-defined]
        and not any(keyword.arg in ("encoding", None) for keyword in node.keywords)
    ]
    assert len(found) > 500 and without == []


def test_a_wrong_row_of_a_table_is_named_and_the_others_are_tried() -> None:
    tried = []

    @each_row(("number", "double"), [(1, 2), (2, 5), (3, 6), (4, 9)])
    def table(number: int, double: int) -> None:
        tried.append(number)
        assert 2 * number == double

    with pytest.raises(ExceptionGroup, match="2 of 4 rows are wrong") as caught:
        table()
    assert tried == [1, 2, 3, 4]
    assert [error.__notes__ for error in caught.value.exceptions] == [["row: 2, 5"], ["row: 4, 9"]]
