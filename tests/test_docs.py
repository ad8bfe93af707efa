"""Documentation is true: Python blocks run, the curl command works, links resolve, generated pages are up to date."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import openai
import pytest

from onward.checkpoints.table import ARCHITECTURES, MODEL_TYPES
from onward.errors import HubUnreachable
from onward.folders import cache_folder

from .examples import slow_but
from .listening import served_here
from .processes import free_port
from .real_models.fetch import cache_folder as model_cache
from .real_models.fetch import fetch
from .waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parent.parent
FOLDERS = ("docs", "benchmarks", "training", "src")
PAGES = [*sorted(ROOT.glob("*.md")), *(page for folder in FOLDERS for page in sorted((ROOT / folder).rglob("*.md")))]
TEMPLATES = {ROOT / "training/card_template.md": ROOT / "src/onward/models/storyteller/README.md"}
"""Pages whose links are relative to another page, which is generated from them."""
SOURCE = ROOT / "src" / "onward"
DEFAULT_URL = "http://127.0.0.1:8000"


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def storyteller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served_here("--data-dir", str(tmp_path_factory.mktemp("data")), model="storyteller") as url:
        yield url


@pytest.mark.real
@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        *(
            ROOT / f"docs/how-to/{name}.md"
            for name in ("python", "predictions", "constrained-output", "batches", "reproduce")
        ),
    ],
    ids=lambda page: page.stem,
)
def test_the_python_of_a_page_runs(page: Path, storyteller: str) -> None:
    """A text block after a program shows exactly what the program prints."""
    names: dict[str, Any] = {"__name__": "__main__"}
    programs = programs_of(page)
    assert programs
    try:
        for program, shown in programs:
            written = io.StringIO()
            with contextlib.redirect_stdout(written):
                exec(compile(program.replace(DEFAULT_URL, storyteller), page.name, "exec"), names)
            if shown:
                assert written.getvalue() == shown
    finally:  # collected as garbage, a client may come after its sockets, which then say that nobody has closed them
        for value in names.values():
            if isinstance(value, openai.OpenAI):
                value.close()


@pytest.mark.real
@pytest.mark.parametrize("page", slow_but(["usage"], ["operate", "team", "usage", "reproduce"]))
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    """Commands of `console` blocks run in one shell, without a terminal, in a folder of their own; the server that they
    start last runs until the end. What a page shows of their output is in it."""
    shown = [line for block in blocks(ROOT / f"docs/how-to/{page}.md", "console") for line in block.splitlines()]
    commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    port = free_port()
    script = "set -eu\n" + "\n".join(
        f"rm -f ready\n{command.removesuffix(' &')} --port {port} > ready & trap 'kill $!' EXIT\n"
        "until grep -qs ready ready; do sleep 0.1; done"
        if command.startswith("onward serve")
        else command.replace(DEFAULT_URL, f"http://127.0.0.1:{port}")
        for command in commands
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {"PATH": path, "HOME": str(tmp_path), "XDG_CACHE_HOME": str(cache_folder().parent)}
    shell = subprocess.Popen(
        ["bash", "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        encoding="utf-8", start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = shell.communicate(timeout=3 * PATIENCE_SECONDS)
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has left nothing behind
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, said
    missing = [line for line in shown if not line.startswith("$ ") and line not in said]
    assert not missing


def programs_of(page: Path) -> list[tuple[str, str]]:
    """Return a page's Python blocks, each with the text block that follows it, or an empty string."""
    pattern = r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?"
    return re.findall(pattern, page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").glob("*.md")), ids=lambda page: page.stem)
def test_a_guide_says_where_its_commands_are_found(page: Path) -> None:
    """`make serve` does not put `onward` on PATH."""
    text = page.read_text(encoding="utf-8")
    if re.search(r"^\$ onward ", text, re.MULTILINE):
        assert "`source .venv/bin/activate`" in text.partition("```console")[0]


def test_the_readme_counts_the_architectures() -> None:
    counts = re.findall(r"(\d+) architectures", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(counts) == 2 and set(counts) == {str(len(ARCHITECTURES))}


def test_the_page_about_models_names_all_that_are_computed() -> None:
    page = (ROOT / "docs" / "how-to" / "models.md").read_text(encoding="utf-8")
    table = page.partition("| architecture (`general.architecture`)")[2].partition("\n\n")[0]
    of_files = re.findall(r"`([^`]+)`", " ".join(re.findall(r"^\| (`[^|]+`) \|", table, re.MULTILINE)))
    kinds = page.partition("by their `model_type`: ")[2].partition(". Llama")[0]
    assert sorted(of_files) == sorted(ARCHITECTURES)
    assert sorted(re.findall(r"`(\w+)`", kinds)) == sorted(MODEL_TYPES)


def test_the_readme_shows_what_its_programs_print() -> None:
    programs = programs_of(ROOT / "README.md")
    assert programs and all(shown for _, shown in programs)


CODER = "qwen-coder"
MADE_BY_MAKE = {"MAKEFLAGS", "MFLAGS", "MAKEOVERRIDES", "MAKELEVEL", "ARGS"}
"""Variables by which `make test-all ARGS=…` would hand its arguments to the `make serve` of a test."""


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs bash and make")
def test_the_commands_of_the_readme_run_as_they_stand() -> None:
    """In order, in this checkout: a server answers until the next one starts, and Ctrl-C ends it without an error. The
    coder model (1.1 GB) is left to the next test."""
    commands = [command for command in blocks(ROOT / "README.md", "bash") if CODER not in command]
    assert len(commands) >= 4 and not any(re.search(r"^\$ |<[a-z ]+>", command, re.MULTILINE) for command in commands)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    inherited = {name: value for name, value in os.environ.items() if name not in MADE_BY_MAKE}
    environment = {**inherited, "PATH": path, "ONWARD_PORT": "0"}
    with contextlib.ExitStack() as servers:
        url = DEFAULT_URL
        for command in commands:
            if command.startswith("make serve"):
                servers.close()
                url = servers.enter_context(made(command, environment))
                continue
            given = command.replace(DEFAULT_URL, url).replace("curl ", "curl -sSf ")
            ran = subprocess.run(
                ["bash", "-c", given], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            assert ran.returncode == 0 and ran.stdout, f"{command}\n{ran.stderr}"


@pytest.mark.companion
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
def test_the_coder_model_of_the_readme_writes_what_the_readme_shows() -> None:
    try:
        fetch(CODER)
    except HubUnreachable as problem:
        pytest.skip(str(problem))
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    [(command, text)] = re.findall(rf"^```bash\n([^`]*{CODER}[^`]*)```\n\n```text\n([^`]*)```$", page, re.MULTILINE)
    environment = {**os.environ, "ONWARD_CACHE_DIR": str(model_cache())}
    ran = subprocess.run(["bash", "-c", command], cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
    assert json.loads(ran.stdout)["choices"][0]["text"] == text


@contextlib.contextmanager
def made(command: str, environment: dict[str, str]) -> Iterator[str]:
    """Run a `make serve` in this checkout; yield the server's URL, then send what Ctrl-C sends."""
    server = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], cwd=ROOT, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert server.stdout is not None and server.stderr is not None
    try:
        found = next((re.search(r"http://[\w.:]+", line) for line in server.stdout if "is ready" in line), None)
        assert found is not None, server.stderr.read()
        yield found[0]
    finally:
        os.killpg(server.pid, signal.SIGINT)
        _, written = server.communicate(timeout=PATIENCE_SECONDS)
        assert "Error" not in written and "Traceback" not in written, written


@pytest.mark.real
@pytest.mark.skipif(sys.platform == "win32", reason="needs bash")
@pytest.mark.parametrize("command", blocks(ROOT / "docs/how-to/dialects.md", "bash"))
def test_the_curl_commands_of_the_dialects_are_answered(storyteller: str, command: str) -> None:
    ran = subprocess.run(
        ["bash", "-c", command.replace(DEFAULT_URL, storyteller).replace("curl ", "curl -sSf ")],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert all(json.loads(line) for line in ran.stdout.splitlines() if line)


def test_generated_pages_are_up_to_date() -> None:
    ran = subprocess.run(
        [sys.executable, ROOT / "docs/generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + "Run `make docs`."


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_resolve(page: Path) -> None:
    home = TEMPLATES.get(page, page)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", prose(page)):
        place = home.parent / target if target else page
        assert place.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(place), f"{page.name} links to {target}#{anchor}"


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a code host derives from headings; the second of two equal ones ends in -1."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        words = re.sub(r"\]\([^)]*\)", "", heading).lower()
        name = re.sub(r"[^\w -]", "", words).strip().replace(" ", "-")
        number = next(count for count in range(len(found) + 1) if (f"{name}-{count}" if count else name) not in found)
        found.add(f"{name}-{number}" if number else name)
    return found


def test_no_page_has_two_versions_of_its_text() -> None:
    """As after a merge with unresolved conflicts was committed."""
    marks = re.compile(r"^(<<<<<<<|\|\|\|\|\|\|\||>>>>>>>) ", re.MULTILINE)
    assert [page.name for page in PAGES if marks.search(page.read_text(encoding="utf-8"))] == []


def test_anchors_are_those_of_a_code_host(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One: `--two`, 0.5B\n## [Again](x.md)\n## Again\n```\n# no heading\n```\n", encoding="utf-8")
    assert anchors(page) == {"one---two-05b", "again", "again-1"}


NO_THREADS = {
    *("onward-warning", "onward-seed", "onward-ray-token", "onward-batch-", "onward-"),
    *("onward-story", "onward-tree"),
}
"""Headers, a secret, the beginnings of names of files and models, and formats of files."""


def test_every_thread_is_in_the_table_of_threads() -> None:
    table = (ROOT / "docs/explanation/processes.md").read_text(encoding="utf-8")
    literals = {
        found.rstrip("-") if found not in NO_THREADS else ""
        for path in SOURCE.rglob("*.py")
        for found in re.findall(r'"(onward-[a-z-]*)["{]', path.read_text(encoding="utf-8"))
    }
    threads = literals - {"", "onward"}
    assert {"onward-work", "onward-masks", "onward-reports"} <= threads
    assert threads == set(re.findall(r"`(onward-[a-z-]+)`", table))


PATHS = (ROOT / "CONTRIBUTING.md", ROOT / "docs/maintainers.md", *sorted((ROOT / "docs/explanation").glob("*.md")))
TOPS = {"tests", "docs", "benchmarks", "playground", "training", "src"}


@pytest.mark.parametrize("page", PATHS, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_that_a_page_names_exists(page: Path) -> None:
    """Files, folders, modules and what is defined in them, as `engine/choice_end.ChoiceEnd` or `tests/examples.py`."""
    named = set(re.findall(r"(?<!`)`([a-z_]\w*(?:[/.]\w+)+/?)`(?!`)", prose(page)))
    missing = [name for name in sorted(named) if not exists(name.rstrip("/"))]
    assert not missing


def exists(name: str) -> bool:
    """Whether a path exists that begins with a folder of the repository, a room, or a module before its class; anything
    else is not a path."""
    first, *rest = re.split(r"[/.]", name.removesuffix(".py"))
    if first in TOPS:
        place = ROOT / first
    elif (SOURCE / first).is_dir() and rest:
        place = SOURCE / first
    else:
        is_class = re.match(r"\w+\.[A-Z]", name) is not None
        return not is_class or any(defines(path, rest[0]) for path in SOURCE.rglob(f"{first}.py"))
    while rest and (place / rest[0]).is_dir():
        place /= rest.pop(0)
    if not rest or (place / ".".join(rest)).is_file():
        return True
    place /= f"{rest.pop(0)}.py" if (place / f"{rest[0]}.py").is_file() else "__init__.py"
    return all(defines(place, part) for part in rest)


def defines(path: Path, name: str) -> bool:
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    return re.search(rf"\b(?:class|def|import)\b.*\b{name}\b|^ *{name}\b[^=\n]*=", text, re.MULTILINE) is not None


def test_what_a_page_names_and_does_not_exist_is_found() -> None:
    assert exists("engine/choice_end.ChoiceEnd") and exists("tests/examples.py") and exists("engine.model.ModelRunner")
    assert exists("model_files/formats.FORMATS") and exists("models/catalogue.toml") and exists("v1/completions")
    assert exists("choice_end.ChoiceEnd") and not exists("suspects.ChoiceEnd")
    assert not exists("engine/no_such_module") and not exists("engine/choice_end.NoSuchClass")


def test_every_page_for_users_can_be_reached_from_the_readme() -> None:
    reached, new = set[Path](), {ROOT / "README.md"}
    while new:
        reached |= new
        links = {page.parent / link for page in new for link in re.findall(r"\]\(([^):#\s]+\.md)", prose(page))}
        new = {link.resolve() for link in links} - reached
    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} <= reached


CITATION = re.compile(r"\bbehaviour,? (?P<places>(?:(?:§|W)\d[\d.]*(?: G\d+)*(?:, | and |; )?)+)")


def test_every_citation_names_a_rule_of_the_page_of_behaviour() -> None:
    page = (ROOT / "docs/reference/behaviour.md").read_text(encoding="utf-8")
    rules = {f"§{number}" for number in re.findall(r"^#+ (\d[\d.]*?)\.? ", page, re.MULTILINE)}
    rules |= {f"§0.{number}" for number in re.findall(r"^(\d+)\. ", page.split("## 1.")[0], re.MULTILINE)}
    for section in ("16", "17", "18"):
        numbered = re.findall(r"^(\d+)\. ", page.partition(f"## {section}.")[2], re.MULTILINE)
        rules |= {f"§{section}.{number}" for number in numbered}
    rules |= set(re.findall(r"^\| \*\*(W\d+)\*\*", page, re.MULTILINE))
    cited = {
        place.rstrip(".")
        for folder in ("src", "tests")
        for file in (ROOT / folder).rglob("*.py")
        for citation in CITATION.finditer(file.read_text(encoding="utf-8"))
        for place in re.findall(r"(?:§|W)\d[\d.]*", citation["places"])
    }
    assert len(cited) > 40
    assert cited <= rules, cited - rules


CALL = re.compile(r"(?:^|[|(;&] *|bin/|\b\w+=\S+ |\) )onward (?=\S)")
"""Where a call begins: also behind variables, a path, a pipe and another command."""


def shown_commands(page: Path) -> list[list[str]]:
    """Return the words of every call of `onward` in the blocks of a page, and in its indented lines."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^```(?:console|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    lines = [*fenced.splitlines(), *re.findall(r"^ {4}(\S.*)$", prose(page), re.MULTILINE)]
    commands = [line.removeprefix("$ ") for line in lines]
    return [words_of(command[call.end() :]) for command in commands for call in CALL.finditer(command)]


def words_of(command: str) -> list[str]:
    """Return the words of a command up to a pipe, a redirection or the end of a substitution."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [index for index, word in enumerate(words) if set(word) <= set("|<>;&()")]
    return words[: ends[0]] if ends else words


MISTAKES = {"tutorial.md": {"--temprature"}}
"""What pages show a hint for."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_that_a_page_shows_exists_with_its_flags(page: Path) -> None:
    """Including those that no test runs because they need a network, another program, or a day."""
    from onward.cli.command import command_context
    from onward.cli.root import root

    for words in shown_commands(page):
        command: click.Command = root
        context, left = command_context(root, "onward"), list(words)
        while isinstance(command, click.Group) and left:
            name = left.pop(0)
            if name.startswith("-"):
                continue
            found = command.get_command(context, name)
            assert found is not None, f"{page.name}: onward {' '.join(words)}"
            command = found
        flags = {flag for each in command.get_params(context) for flag in (*each.opts, *each.secondary_opts)}
        used = {word.partition("=")[0] for word in left if re.match(r"--?[a-zA-Z]", word)}
        assert used - flags <= MISTAKES.get(page.name, set()), (
            f"{page.name}: onward {' '.join(words)} has {used - flags}"
        )


def test_calls_are_found_in_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n$ printf a | onward score --top 2 > out\n$ onward batch \\\n  run x\n```\n    onward key list\n"
        "```bash\nKEY=$(cat a.key) A=b onward doctor && .venv/bin/onward models list\n```\n",
        encoding="utf-8",
    )
    expected = [["score", "--top", "2"], ["batch", "run", "x"], ["doctor"], ["models", "list"], ["key", "list"]]
    assert shown_commands(page) == expected


def test_every_setting_named_in_the_docs_exists() -> None:
    from onward.settings import options

    flags = {option.flag for option in options()} | {"--config", "--help", "--check", "--version"}
    flags |= {"--no-" + flag.removeprefix("--") for flag in flags}
    pages = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "README.md", ROOT / "docs/how-to/serve.md"))
    known = flags | {"--prompt", "--max-tokens", "--model", "--temperature", "--suffix", "--compare-tokenizer"}
    known |= {"--from", "--server"}  # of uvx and `onward doctor`
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", pages)) <= known
