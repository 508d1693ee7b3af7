"""Build hook: compile the light recorder's library into the wheel if a C compiler is available.

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
        library = Path(self.root, NATIVE, native["NAME"])
        try:
            native["compile_library"](library, compiler, ["-s"])
        except native["CompileError"] as problem:
            self.app.display_warning(f"the wheel lacks the recorder's library: {problem}")
            library.unlink(missing_ok=True)
            return
        build_data["artifacts"].append(f"{NATIVE}/{native['NAME']}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_of(library)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the library from the source tree, where an outdated one would be used."""
        Path(self.root, NATIVE, "libintertoken_light.so").unlink(missing_ok=True)
