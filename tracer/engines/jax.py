"""JAX.

XLA marks in the domain TSL each run of a compiled function (`XlaModule:#hlo_module=jit_step,program_id=1#`, by the
name of the Python function), each operation that it records into a graph or launches (`Thunk:#…#`), and each part of
compiling it (`XlaPass:#…,module=jit_step#`). Small functions (`jit_convert_element_type`) and trials of the compiler
run as modules, too, so a module is a step only if its name says so, as that of any range. The host waits for a result
by a host function and a lock, without a sync. Seen in recordings of JAX 0.11.
"""

from __future__ import annotations

from typing import Final

XLA: Final = r"^(?:Xla(?!Module:)\w*|Thunk):"
"""The expression for the texts of XLA's compiler, and of the operations in a step."""
