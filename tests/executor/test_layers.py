"""The folders of the executor: each imports only those that come before it, and no family of devices another."""

import ast
from pathlib import Path

import executor

FOLDER = Path(executor.__file__).parent
ORDER = ("names", "graph", "planning", "backends", "scheduling", "run", "calibration", "commands")


def imports(path: Path) -> set[tuple[str, ...]]:
    """The modules of the executor that a module imports, without the name of the package."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    return {tuple(node.module.split(".")[1:]) for node in nodes if node.module and node.module.startswith("executor.")}


def test_each_folder_imports_only_those_before_it():
    found = {path.relative_to(FOLDER).with_suffix("").parts: imports(path) for path in FOLDER.rglob("*.py")}
    places = {importer[0] for importer in found} - {"__init__"}
    assert places == set(ORDER)
    above = [
        (importer, imported)
        for importer, modules in found.items()
        for imported in modules
        if ORDER.index(imported[0]) > ORDER.index(importer[0])
    ]
    assert not above
    assert sum(map(len, found.values())) > 200


def test_no_family_of_devices_imports_another():
    shared = {"interface", "weight_formats"}
    for family in ("cpu", "cuda", "sim"):
        for path in (FOLDER / "backends" / family).glob("*.py"):
            assert {module[1] for module in imports(path) if module[0] == "backends"} <= {family, *shared}
