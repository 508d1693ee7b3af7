"""Build hook: compile the preloaded libraries into the wheel if a C compiler is available.

Without a compiler the wheel is pure Python and compiles the library on the user's machine at the first recording.
"""

import re
import runpy
import sys
from pathlib import Path
from sysconfig import get_platform
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "tracer/recorders/native"


def platform_of(library: Path) -> str:
    """The platform tag: the oldest glibc that can load the library (PEP 600), by the versions of its symbols."""
    platform = get_platform().replace("-", "_").replace(".", "_")
    needed = re.findall(rb"\0GLIBC_(\d+)\.(\d+)", library.read_bytes())
    if not needed:
        return platform
    major, minor = max((int(a), int(b)) for a, b in needed)
    return platform.replace("linux", f"manylinux_{major}_{minor}", 1)


def _version(platform: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", platform.partition("manylinux_")[2])[:2]]


class NativeLibrary(BuildHookInterface[Any]):
    """Adds the compiled library and the platform tag to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library; an editable installation compiles it when recording, to follow the sources."""
        if version == "editable" or not sys.platform.startswith("linux"):
            return
        native = runpy.run_path(str(Path(self.root, NATIVE, "__init__.py")))
        compiler = native["compiler"]()
        if compiler is None:
            self.app.display_warning("no C compiler (cc, gcc, clang, CC): the wheel lacks the recorder's library")
            return
        libraries = [Path(self.root, NATIVE, native[name]) for name in ("NAME", "RACES")]
        try:
            for library in libraries:
                native["compile_library"](library, compiler, ["-s"], races=library.name == native["RACES"])
        except native["CompileError"] as problem:
            self.app.display_warning(f"the wheel lacks the recorder's libraries: {problem}")
            self._remove()
            return
        build_data["artifacts"] += [f"{NATIVE}/{library.name}" for library in libraries]
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{max(map(platform_of, libraries), key=_version)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the libraries from the source tree, where outdated ones would be used."""
        self._remove()

    def _remove(self) -> None:
        for library in Path(self.root, NATIVE).glob("libintertoken_*.so"):
            library.unlink(missing_ok=True)
