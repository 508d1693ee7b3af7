"""xDiT and other servers of diffusion models.

ROCm's builds mark an image with `execute_diffusion_N_WxH`; diffusers itself sets no marks. Such a step is the whole run
of the pipeline, which denoises the image several times, and gains no token. Source: recordings in AMD's TraceLens, of
four denoising steps each; diffusers 0.42 has no marks.
"""

from __future__ import annotations

import re
from typing import Final

from tracer.engines.engine import DIFFUSION, Engine, Mark, Work

XDIT: Final = Engine("xDiT", marks=(Mark(re.compile(r"^execute_diffusion_"), lambda _: Work(DIFFUSION)),), generality=1)
