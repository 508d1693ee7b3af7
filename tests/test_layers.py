"""The layers of the three packages: each folder imports only those before it, files that read or record no analysis, no
family of devices another; and no circle of files."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import dashboard
import executor
import intertoken
import tracer

FIRST = ("errors", "compiled", "text", "notes", "extensions", "progress")
LAST = ("command_options", "record_python", "commands", "pytest_recording", "pytest_plugin", "cli")
ORDER = {
    dashboard: (
        "text", "palette", "view", "timeline", "reading", "headline", "files", "figures", "scene", "report",
        "downloads", "pages", "serving", "app", "notebook", "cli", "commands",
    ),
    executor: ("names", "graph", "planning", "backends", "scheduling", "run", "commands"),
    tracer: (
        *FIRST, "files", "model", "engines", "analysis", "whatif", "formats", "batch", "stored",
        "recorders", "scrub", "experiments", "reporting", "races", "notebook", "api", *LAST,
    ),
}  # fmt: skip
MODEL = {*FIRST, "files", "model"}
ALONE = {"files": {*FIRST}, "model": {*FIRST, "files"}, "formats": MODEL, "recorders": MODEL | {"formats"}}
"""What these folders of the tracer import of the others: neither engines nor analyses."""
TOLD = {"tracer.analysis.summary", "tracer.analysis.recorded"}
"""What a `tracer.analysis.recording` makes of itself on first use; it is only a type there."""


def modules(package):
    """The modules of a package, by name."""
    root = Path(package.__file__).parent
    named = {".".join(path.relative_to(root.parent).with_suffix("").parts): path for path in root.rglob("*.py")}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def everything():
    return {name: path for package in (*ORDER, intertoken) for name, path in modules(package).items()}


def imports(path, known, nodes=ast.walk):
    """Which of the known modules a file, or these parts of it, imports; relative imports are not used."""
    found = set()
    for node in nodes(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {part if part in known else node.module for part in parts}
    return found & known.keys()


def folder(module):
    """The folder, or the module, of a package."""
    return module.split(".")[1]


@pytest.mark.parametrize("package", ORDER, ids=lambda package: package.__name__)
def test_each_folder_imports_only_those_before_it(package):
    order, known = ORDER[package], modules(package)
    found = {name: imports(path, known) for name, path in known.items() if name != package.__name__}
    assert {folder(name) for name in found} == set(order)
    above = {(importer, imported) for importer, names in found.items() for imported in names - {package.__name__}
             if order.index(folder(imported)) > order.index(folder(importer))}  # fmt: skip
    assert not above
    assert sum(map(len, found.values())) > 150


@pytest.mark.parametrize("name", ALONE)
def test_what_reads_writes_and_records_imports_no_analysis(name):
    known = modules(tracer)
    found = [imports(path, known) for importer, path in known.items() if importer.startswith(f"tracer.{name}")]
    assert set(map(folder, set().union(*found))) <= ALONE[name] | {name}
    assert len(found) >= 3


def test_there_is_no_circle_of_files():
    """Whether they are imported at once, in a function or for their types."""
    known = everything()
    needed = {name: imports(path, known) - {name} for name, path in known.items()}
    for told in TOLD:
        needed[told].remove("tracer.analysis.recording")
    try:
        assert set(TopologicalSorter(needed).static_order()) == known.keys()
    except CycleError as circle:
        pytest.fail(" -> ".join(circle.args[1][::-1]))


def at_import(tree):
    """What runs when a module is imported."""
    for node in tree.body:
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.FunctionDef():
                continue
            case ast.If() | ast.Try() | ast.With():
                yield from at_import(node)
        yield node


def folders_of(module):
    """The packages that are imported before a module."""
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts))}


def test_every_module_can_be_the_first_one_imported():
    known = everything()
    needed = {}
    for name, path in known.items():
        imported = imports(path, known, at_import)
        needed[name] = imported.union(*map(folders_of, imported)) - folders_of(name) - {name}
    assert set(TopologicalSorter(needed).static_order()) == known.keys()


def test_no_family_of_devices_imports_another():
    shared = {"interface", "weight_formats"}
    known = modules(executor)
    for family in ("cpu", "cuda", "sim"):
        for path in (Path(executor.__file__).parent / "backends" / family).rglob("*.py"):
            named = [module.split(".") for module in imports(path, known)]
            assert {parts[2] for parts in named if parts[1:2] == ["backends"] and parts[2:]} <= {family, *shared}
