"""The folders and modules of the dashboard: each imports only those that come before it, at the top or later."""

import ast
from pathlib import Path

import dashboard

FOLDER = Path(dashboard.__file__).parent
ORDER = (
    "text", "units", "palette", "links", "rates", "view", "timeline", "reading", "figures", "scene", "report",
    "recording", "pages", "serving", "app", "notebook", "cli", "commands",
)  # fmt: skip


def imports(path: Path) -> set[str]:
    """The folders and modules of the dashboard, directly under it, that a module imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "dashboard":
            found |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dashboard."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("dashboard.")}
    return found


def test_each_folder_imports_only_those_before_it():
    found = {path.relative_to(FOLDER).with_suffix("").parts: imports(path) for path in FOLDER.rglob("*.py")}
    assert {importer[0] for importer in found} - {"__init__"} == set(ORDER)
    above = [
        (importer, imported)
        for importer, modules in found.items()
        for imported in modules
        if ORDER.index(imported) > ORDER.index(importer[0])
    ]
    assert not above
    assert sum(map(len, found.values())) > 300
