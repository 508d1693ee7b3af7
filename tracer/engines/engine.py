"""What a file of this folder tells of its engine: which marks are steps, what their texts say, what it calls kernels.

A mark is an NVTX range, or an annotation of PyTorch's profiler, that the engine sets around one step. Only a mark on a
thread that launches work counts. Where an engine sets several, one inside another, the outermost is the step and the
others add what they know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tracer.schema import MISSING

DECODE: Final = "decode"
PREFILL: Final = "prefill"
MIXED: Final = "mixed"
SPECULATIVE: Final = "speculative"
TRAINING: Final = "training"
DIFFUSION: Final = "diffusion"
FORWARD: Final = "forward"
ITERATION: Final = "iteration"
EAGER: Final = "eager"
EMPTY: Final = "empty"

TOKEN_PHASES: Final = (DECODE, SPECULATIVE, MIXED, PREFILL)
"""What a step of an engine that generates text can be; those that gain every sequence a token first."""
PHASES: Final = (*TOKEN_PHASES, EAGER, TRAINING, DIFFUSION, FORWARD, ITERATION)
"""What any step can be. `eager` is a pass without a graph among steps that replay one: a short prompt, a warm-up or a
batch for which there is no graph; `forward` is a pass through a model of which nothing tells more, `iteration` a turn
of a loop of which nothing tells more. (`empty` iterations compute nothing and are no steps.)"""

LEADS: Final = "leads"
LEADS_VERIFIED: Final = "leads where drafts are verified"
FOLLOWS: Final = "follows"

OPENS: Final = "opens"
LATE: Final = "late"
CLOSES: Final = "closes"

LIKELY: Final = 0.8
"""How sure marks are that only have a likely word in them."""


@dataclass(frozen=True)
class Work:
    """What a mark tells of its step.

    Attributes:
        phase: one of `PHASES`, `EMPTY`, or "" where the mark does not say.
        sequences: that it computes for, MISSING if unknown.
        gained: tokens that these sequences are longer by afterwards, MISSING if unknown (drafts may be refused).
        part: whether it is a step of its own (""), or one with the mark behind it (`LEADS`; `LEADS_VERIFIED`: on
            threads that have a step of phase `SPECULATIVE`), or with the one before it (`FOLLOWS`).
    """

    phase: str = ""
    sequences: int = MISSING
    gained: int = MISSING
    part: str = ""


@dataclass(frozen=True)
class Mark:
    """Marks of one kind.

    Attributes:
        text: found in the mark's text.
        work: what a match tells.
        lies: where in its step: it opens it (`OPENS`), some of the step's work is launched before it (`LATE`), or it
            closes it (`CLOSES`).
        label: whether it names the phase of marks inside or around it, and is a step only where there are none.
        own: whether it tells that this engine made the recording; others set such marks, too.
    """

    text: re.Pattern[str]
    work: Callable[[re.Match[str]], Work] = field(default=lambda _: Work())
    lies: str = OPENS
    label: bool = False
    own: bool = True


@dataclass(frozen=True)
class Engine:
    """An engine.

    Attributes:
        name: as its users write it.
        marks: of its steps; the first one that matches a text tells of it.
        kernels: names of kernels that nobody else launches; None if there are none.
        whole_graphs_decode: whether it replays a whole pass as one CUDA graph for nothing but decoding.
        one_sequence_graphs: whether it replays graphs for one sequence alone.
        plain: what the texts of its marks are where that is sure; others are steps at no more than `LIKELY`.
        sure: how sure it is that its marks are steps, 0..1.
    """

    name: str
    marks: tuple[Mark, ...] = ()
    kernels: re.Pattern[str] | None = None
    whole_graphs_decode: bool = False
    one_sequence_graphs: bool = False
    plain: re.Pattern[str] = re.compile("")
    sure: float = 0.99

    def sure_of(self, texts: Iterable[str]) -> float:
        """How sure it is that marks with these texts are steps."""
        plain = all(self.plain.search(text) or not text for text in texts)
        return self.sure if plain else min(self.sure, LIKELY)


def batch(prompts: int, decodes: int, decode_tokens: int) -> Work:
    """The work of a step that computes so many sequences' prompts, and goes on with so many others by so many tokens.

    Example:
        >>> batch(0, 8, 8)
        Work(phase='decode', sequences=8, gained=8, part='')
        >>> batch(1, 7, 7).phase, batch(0, 4, 12).phase, batch(0, 0, 0).phase
        ('mixed', 'speculative', 'empty')
    """
    if not prompts and not decodes:
        return Work(EMPTY, 0, 0)
    if prompts:  # the chunk of a prompt that is not its last gains no token; which it is, is not told
        return Work(MIXED if decodes else PREFILL, prompts + decodes)
    if decode_tokens > decodes:
        return Work(SPECULATIVE, decodes)
    return Work(DECODE, decodes, decodes)
