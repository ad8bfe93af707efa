"""The structure holds: rooms import downwards only, without cycles (imports for type checkers and those inside
functions included), in files that are neither large nor shattered, and every public type has a name of its own.

import-linter could check the levels and the cycles. It is not used: it does not know which imports are inside
functions, and sizes, lonely modules and names would need this file all the same, over the same graph.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "onward"
FILES = sorted(SOURCE.rglob("*.py"))

LEVELS = {
    "errors": 0,
    "engine_load": 0,
    "machine": 0,
    "loop_thread": 0,
    "offload": 0,
    "tracing": 0,
    "fair_pool": 0,
    "file_locks": 0,
    "folders": 0,
    "private_files": 0,
    "values": 0,
    "settings": 0,
    "residency": 0,
    "stdio": 0,
    "ipc": 0,
    "network": 0,
    "text": 1,
    "kernels": 1,
    "sampling": 1,
    "routing": 1,
    "templates": 1,
    "constraints": 1,
    "checkpoints": 2,
    "engine": 2,
    "model_files": 3,
    "runtimes": 3,
    "completions": 3,
    "models": 3,
    "engines": 4,
    "engines.child": 4,
    "engines.cluster": 4,
    "engines.programs": 4,
    "engines.upstreams": 4,
    "backends": 4,
    "service": 4,
    "compose": 5,
    "api": 5,
    "server": 6,
    "cli": 6,
    "client": 6,
    "__init__": 7,
    "__main__": 7,
}
SIDEWAYS = {
    ("settings", "errors"),
    ("settings", "values"),
    ("settings", "folders"),
    ("offload", "fair_pool"),
    ("network", "errors"),
    ("settings", "network"),
    ("cli", "server"),  # `onward serve` runs the server
    ("constraints", "sampling"),  # the shape of masks
    ("sampling", "kernels"),  # sampling is written in the vector language
    *((room, "engines") for room in ("engines.child", "engines.cluster", "engines.upstreams")),
    ("engines.programs", "engines.upstreams"),  # a program that is started is an upstream
    ("engines.programs", "engines.child"),  # when a lost engine is restarted
    ("models", "model_files"),
    ("runtimes", "model_files"),
}
"""Imports within one level that are meant."""

ENGINE_INTERNALS = {path.stem for path in (SOURCE / "engine").glob("*.py")} - {
    "choice_end",
    "client",
    "events",
    "job",
    "journal",
    "model",
}
"""Modules of the engine that are not part of its interface."""
FORBIDDEN = {
    "engine": {"onward.api", "asyncio", "json", "msgspec.json", "starlette"},
    "checkpoints": {"openvino", "tokenizers"},
    "text": {"numpy"},
    "kernels": {"numpy", "ctypes.util"},
    "api": {
        "onward.engine",
        "onward.runtimes",
        "onward.model_files",
        "onward.sampling",
        "onward.constraints",
        "asyncio",
    },
    "server": {"onward.engine", "onward.runtimes", "onward.model_files", "onward.sampling", "onward.text"},
    "cli": {"onward.engine", "onward.sampling", "onward.runtimes", "onward.model_files", "onward.server"},
    "client": {"onward.engine", "onward.runtimes", "onward.model_files", "onward.sampling", "onward.text"},
    "backends": {"onward.runtimes", "onward.model_files", *(f"onward.engine.{name}" for name in ENGINE_INTERNALS)},
    "engines.child": {"onward.runtimes", "onward.model_files", "onward.api", "asyncio"},
    "engines.upstreams": {
        "onward.runtimes",
        "onward.model_files",
        "onward.api",
        *(f"onward.engine.{name}" for name in ENGINE_INTERNALS),
    },
    "model_files": {"openvino"},
    "models": {"onward.runtimes"},
    "compose": {f"onward.runtimes.{name}" for name in ("native", "openvino", "toy")},
    "completions": {
        "onward.runtimes",
        "onward.model_files",
        "onward.api",
        *(f"onward.engine.{name}" for name in ENGINE_INTERNALS),
    },
}
"""Room → what it must not import, whatever its level."""

ALLOWED = {
    ("cli/commands/serve.py", "onward.server.run"),
    ("api/extension_parameters.py", "onward.sampling.filters"),
    *(
        (f"kernels/{name}.py", "numpy")
        for name in ("records", "memory", "operands", "parts", "tape", "expert_tape", "machine", "attention_plan")
    ),
}
"""Files that may import what is forbidden to their rooms: the command that serves runs the server; the table of filters
has the names that `samplers` may list; what hands memory to kernels has it as numpy's arrays, with which it computes
addresses alone."""

LATE_IMPORTS = {
    "compose": "the wiring imports what the settings ask for, while models load",
    "cli": "help and completion must come at once",
    "__init__": "importing the package is cheap",
}
"""Rooms that may import inside functions, and why. Such imports count as any other for levels and cycles."""
LATE_MODULES = [
    *(SOURCE / "model_files" / f"{name}.py" for name in ("checkpoint", "gguf", "openvino_ir", "safetensors")),
    *sorted(SOURCE.glob("runtimes/*/runtime.py")),
    SOURCE / "constraints" / "process" / "worker.py",
    SOURCE / "kernels" / "code.py",
]
"""Entries of the tables of formats and runtimes import what they need when a model is loaded: completion and `doctor`
read the tables, and must not wait for numpy and OpenVINO. A process that only checks grammars needs no numpy, and a
start that compiles nothing no other process."""

LATE_LIBRARIES = {
    "gguf": "an extra",
    "ray": "an extra",
    "re2": "an extra",
    "resource": "not on Windows",
    "uvloop": "not on Windows",
    "ctypes": "only Windows is asked through it",
    "httpx2": "takes a tenth of a second, and only downloads and the command line send requests",
    "importlib": "importlib.metadata imports email and zipfile, and only a content filter of a package needs it",
    "llguidance": "only constrained requests need it",
    "msgspec": "completion reads the table of formats",
    "ssl": "takes a sixth of the time of help, and only encrypted connections need it",
    "tqdm": "only downloads need it",
    "urllib": "urllib.request imports http.client and email, and only requests to other servers need it",
}
"""Libraries that other rooms import inside functions, and why."""

LONGEST_FILE, LONGEST_FUNCTION = 400, 60
SMALL_MODULE = 60
SMALL_ON_PURPOSE = {
    "kernels/executable_memory.py",  # code that differs by system has a module of its own
}
"""Small modules with one importer that stay."""
MAX_METHODS = {("engine/scheduler.py", "Scheduler"): 12, ("engine/admission.py", "Admission"): 12}
"""Classes that tend to attract methods."""


def room_of(path: Path) -> str:
    return room_among(path.relative_to(SOURCE).with_suffix("").parts)


def room_among(parts: Sequence[str]) -> str:
    """The room of a module: its first folder, or a folder within that has a level of its own."""
    inner = ".".join(parts[:2])
    return inner if inner in LEVELS else parts[0]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """All nodes of a module."""
    return list(ast.walk(parsed(path)))


@cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    """(module, whether it is imported inside a function) of every import, also of those under TYPE_CHECKING."""
    found: list[tuple[str, bool]] = []

    def visit(node: ast.AST, inside: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend((alias.name, inside) for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module:
                found.append((child.module, inside))
                found.extend((f"{child.module}.{alias.name}", inside) for alias in child.names)
            visit(child, inside or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)))

    visit(parsed(path), False)
    return found


def own_rooms(path: Path) -> set[str]:
    names = (module.split(".")[1:] for module, _ in imports_of(path) if module.startswith("onward."))
    return {room_among(parts) for parts in names if (SOURCE / parts[0]).is_dir() or parts[0] in LEVELS} - {
        room_of(path)
    }


def test_every_room_has_a_level() -> None:
    assert {room_of(path) for path in FILES} <= LEVELS.keys()


def test_a_room_imports_only_from_below() -> None:
    pairs = [(path, room_of(path), other) for path in FILES for other in own_rooms(path)]
    wrong = [
        f"{path.relative_to(SOURCE)} imports {other}"
        for path, room, other in pairs
        if LEVELS[other] >= LEVELS[room] and (room, other) not in SIDEWAYS
    ]
    assert not wrong


def is_forbidden(path: Path, module: str) -> bool:
    name = path.relative_to(SOURCE).as_posix()
    if any(name == file and module.startswith(allowed) for file, allowed in ALLOWED):
        return False
    forbidden = FORBIDDEN.get(room_of(path), ())
    return any(module == other or module.startswith(other + ".") for other in forbidden)


def test_a_room_keeps_away_from_what_is_not_its_business() -> None:
    imported = [(path, module) for path in FILES for module, _ in imports_of(path)]
    wrong = [f"{path.relative_to(SOURCE)} imports {module}" for path, module in imported if is_forbidden(path, module)]
    assert not wrong


def test_own_modules_are_imported_at_the_top() -> None:
    bound = [path for path in FILES if room_of(path) not in LATE_IMPORTS and path not in LATE_MODULES]
    imported = [(path, module) for path in bound for module, inside in imports_of(path) if inside]
    late = [f"{path.relative_to(SOURCE)} imports {module}" for path, module in imported if module.startswith("onward")]
    assert not late


def test_libraries_are_imported_at_the_top() -> None:
    bound = [path for path in FILES if room_of(path) not in LATE_IMPORTS]
    late = {module.split(".")[0] for path in bound for module, inside in imports_of(path) if inside}
    assert late - {"onward"} == LATE_LIBRARIES.keys()


def test_there_is_no_cycle_of_modules() -> None:
    graph = {}
    for path in FILES:
        name = ".".join(["onward", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        graph[name] = {module for module, _ in imports_of(path)}
    del graph["onward"]  # the package itself: every import loads it first, and it loads the client on first use
    graph = {name: {module for module in modules if module in graph} - {name} for name, modules in graph.items()}
    finished: set[str] = set()

    def walk(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, " -> ".join([*trail[trail.index(name) :], name])
        if name not in finished:
            for module in graph[name]:
                walk(module, (*trail, name))
            finished.add(name)

    for name in graph:
        walk(name, ())


def test_nobody_imports_a_name_from_where_it_is_only_imported() -> None:
    """A type is taken from the module that declares it, so that a room sees only what it may import. A package's own
    `__init__` may gather what its modules declare."""
    modules = {module_name(path): path for path in FILES}
    passed_on = []
    for path in FILES:
        for node in imports_from(path):
            if node.module not in modules:
                continue
            sources = imported_names(modules[node.module])
            for alias in node.names:
                source = sources.get(alias.name, "")
                is_gathered = modules[node.module].stem == "__init__" and source.startswith(f"{node.module}.")
                if source.startswith("onward.") and source != "onward" and not is_gathered:
                    passed_on.append(f"{module_name(path)} has {alias.name} of {source} from {node.module}")
    assert not passed_on, passed_on


def imports_from(path: Path) -> list[ast.ImportFrom]:
    return [node for node in nodes_of(path) if isinstance(node, ast.ImportFrom)]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imported_names(path: Path) -> dict[str, str]:
    """The names that a module imports at its top, and from which modules."""
    imports = [node for node in parsed(path).body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: str(node.module) for node in imports for alias in node.names}


def test_no_small_module_has_a_single_importer_in_its_folder() -> None:
    """Such a module belongs to its importer."""
    importers: dict[str, set[Path]] = {}
    for path in FILES:
        for module, _ in imports_of(path):
            importers.setdefault(module, set()).add(path)
    lonely = []
    for path in FILES:
        found = importers.get(".".join(["onward", *path.relative_to(SOURCE).with_suffix("").parts]), set())
        is_small = path.read_text(encoding="utf-8").count("\n") < SMALL_MODULE
        if is_small and [each.parent for each in found] == [path.parent]:
            lonely.append(path.relative_to(SOURCE).as_posix())
    assert {*lonely} == SMALL_ON_PURPOSE


def test_every_public_type_has_a_name_of_its_own() -> None:
    """Classes, and those aliases of types that another module imports. `client` is left out: its names are those of
    OpenAI's library."""
    taken = {(node.module, alias.name) for path in FILES for node in imports_from(path) for alias in node.names}
    places: dict[str, list[str]] = {}
    for path in FILES:
        for name in declared_types(path) if room_of(path) != "client" else ():
            is_class = any(isinstance(node, ast.ClassDef) and node.name == name for node in parsed(path).body)
            if is_class or (module_name(path), name) in taken:
                places.setdefault(name, []).append(path.relative_to(SOURCE).as_posix())
    assert not {name: found for name, found in places.items() if len(found) > 1}


def declared_types(path: Path) -> list[str]:
    """The public classes and aliases of types of a module, all in CamelCase."""
    names = []
    for node in parsed(path).body:
        if isinstance(node, ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)]


def test_files_and_functions_stay_small() -> None:
    long = []
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > LONGEST_FILE:
            long.append(f"{path.relative_to(SOURCE)} is a room to divide")
        for node in nodes_of(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > LONGEST_FUNCTION:
                    long.append(f"{path.relative_to(SOURCE)}: {node.name} has {lines} lines")
    assert not long


@pytest.mark.parametrize(("file", "name"), MAX_METHODS)
def test_the_parts_of_the_scheduler_stay_small(file: str, name: str) -> None:
    classes = [node for node in parsed(SOURCE / file).body if isinstance(node, ast.ClassDef)]
    (found,) = (node for node in classes if node.name == name)
    methods = [node.name for node in found.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    assert len(methods) <= MAX_METHODS[file, name], methods


TESTS = Path(__file__).parent
NO_MODULE = {"clocks", "docs", "imports", "layers", "repository"}
"""Test files next to this one that are about the whole source, or about the repository."""


def test_the_test_of_a_module_is_where_the_module_is() -> None:
    """tests/x/test_y.py or test_y_ASPECT.py for x/y; folders that are not rooms are by purpose."""
    wrong = []
    for path in TESTS.rglob("test_*.py"):
        where = path.relative_to(TESTS)
        name = path.stem.removeprefix("test_")
        if len(where.parts) == 1:
            is_right = name in NO_MODULE or (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file()
        elif not (SOURCE / where.parts[0]).is_dir():
            continue
        else:
            modules = {each.stem for each in (SOURCE / where.parent).glob("*") if each.stem[:1] != "_"}
            is_right = any(name == module or name.startswith(f"{module}_") for module in modules)
        if not is_right:
            wrong.append(f"{where} is named after no module of src/onward/{where.parent}")
    assert not wrong


def test_every_module_says_what_it_is_for() -> None:
    silent = [path for path in FILES if path.stat().st_size and not ast.get_docstring(parsed(path))]
    assert not silent, [str(path.relative_to(SOURCE)) for path in silent]


RESULT_ROOMS = ("kernels", "sampling", "checkpoints", "engine", "completions", "model_files", "runtimes")
"""Rooms in which numbers arise that reach a logit, a sampled token or a log-probability."""
MACHINE_DEPENDENT = {
    f"{module}.{name}"
    for module in ("math", "np")
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "logaddexp", "pow", "power", "sin", "cos", "tan",
        "asin", "acos", "atan", "atan2", "arctan2", "sinh", "cosh", "tanh", "erf", "erfc", "gamma", "lgamma", "cbrt",
        "hypot", "dot", "matmul", "einsum", "inner", "vdot", "tensordot", "linalg",
    )
}  # fmt: skip
"""What C libraries, and numpy by the processor, compute with different last bits. Square roots are not among it."""
MAY_DEPEND = {
    "sampling/reference.py": "what tests compare the kernels with",
    "sampling/candidates.py": "what tests compare the kernels with",
    "sampling/filters.py": "each entry has its numpy form for the reference, next to its kernel",
    "sampling/chains.py": "a bound of what is sorted, with a margin",
    "checkpoints/state_spaces.py": "with a margin, within which decimal numbers decide",
}


def test_no_result_depends_on_a_library_of_the_machine() -> None:
    """Law 2 on any machine: logarithms, powers and the like come from kernels.maths or decimal numbers."""
    found = {}
    for path in FILES:
        if room_of(path) not in RESULT_ROOMS or "openvino" in path.parts:
            continue
        used = {
            f"{node.value.id}.{node.attr}"
            for node in nodes_of(path)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        powers = [node for node in nodes_of(path) if isinstance(node, ast.BinOp) and _may_differ(node)]
        if used & MACHINE_DEPENDENT or powers:
            found[path.relative_to(SOURCE).as_posix()] = sorted(used & MACHINE_DEPENDENT) + [
                ast.unparse(node) for node in powers
            ]
    assert found.keys() == MAY_DEPEND.keys(), found


def _may_differ(node: ast.BinOp) -> bool:
    """Whether a node is a sum of products in an order that a library chooses, or a power of something other than a
    plain number."""
    is_power = isinstance(node.op, ast.Pow) and not isinstance(node.left, ast.Constant)
    return is_power or isinstance(node.op, ast.MatMult)
