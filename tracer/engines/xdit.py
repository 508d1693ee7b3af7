"""xDiT and other servers of diffusion models.

ROCm's builds mark an image with `execute_diffusion_N_WxH`; diffusers itself sets no marks. Such a step denoises and
gains no token. Source: recordings in AMD's TraceLens; diffusers 0.42 has no marks.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import DIFFUSION, Engine, Mark, Work

XDIT: Final = Engine("xDiT", marks=(Mark(re.compile(r"^execute_diffusion_"), lambda _: Work(DIFFUSION)),), generality=1)
