"""The interface of an engine's file: the marks of its steps, the information in their texts, and its kernels' names.

A mark is an NVTX range, or an annotation of PyTorch's profiler, that the engine sets around one step. Only marks on
threads that launch work count. If an engine nests several marks, the outermost is the step and the inner ones add
detail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from tracer.model.schema import MISSING

DECODE: Final = "decode"
PREFILL: Final = "prefill"
MIXED: Final = "mixed"
SPECULATIVE: Final = "speculative"
TRAINING: Final = "training"
DIFFUSION: Final = "diffusion"
FORWARD: Final = "forward"
ITERATION: Final = "iteration"
EAGER: Final = "eager"
WARM_UP: Final = "warm-up"
EMPTY: Final = "empty"

TOKEN_PHASES: Final = (DECODE, SPECULATIVE, MIXED, PREFILL)
"""The phases of a step that generates text. Those that add a token to every sequence come first."""
PHASES: Final = (*TOKEN_PHASES, EAGER, WARM_UP, TRAINING, DIFFUSION, FORWARD, ITERATION)
"""The phases of any step. `eager` is a pass without a graph among steps that replay one: a short prompt, a warm-up or
a batch size without a graph. `warm-up` is any step of the short requests before the first long one. `forward` is a pass
through a model and `iteration` one iteration of a loop, where the recording shows no more than that. (`empty`
iterations compute nothing and are not steps.)"""

LEADS: Final = "leads"
LEADS_VERIFIED: Final = "leads where drafts are verified"
FOLLOWS: Final = "follows"

OPENS: Final = "opens"
LATE: Final = "late"
CLOSES: Final = "closes"

LIKELY: Final = 0.8
"""The confidence in marks whose text only contains a likely word."""


@dataclass(frozen=True)
class Work:
    """The information that a mark gives about its step.

    Attributes:
        phase: one of `PHASES`, `EMPTY`, or "" if the mark does not say.
        sequences: the sequences in the batch, MISSING if unknown.
        gained: the tokens added to these sequences, MISSING if unknown (drafts may be rejected).
        part: "" if the mark is a complete step; `LEADS` if it forms a step with the next mark (`LEADS_VERIFIED`: only
            on threads that have a step of phase `SPECULATIVE`); `FOLLOWS` if it forms one with the previous mark.
    """

    phase: str = ""
    sequences: int = MISSING
    gained: int = MISSING
    part: str = ""


class Pattern:
    """A regular expression that is compiled when it is first searched for: most commands search for few of them."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    @cached_property
    def _compiled(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def search(self, text: str) -> re.Match[str] | None:
        """The first match in a text."""
        return self._compiled.search(text)


@dataclass(frozen=True)
class Mark:
    """Marks of one kind.

    Attributes:
        text: a pattern to search for in the mark's text.
        work: what a match says about the step.
        position: the mark's position in its step: it opens the step (`OPENS`), opens after some of the step's work was
            launched (`LATE`), or closes the step (`CLOSES`).
        label: whether it names the phase of marks inside or around it, and is a step only if there are none.
        own: whether it identifies this engine; False for marks that other engines set, too.
    """

    text: re.Pattern[str] | Pattern
    work: Callable[[re.Match[str]], Work] = field(default=lambda _: Work())
    position: str = OPENS
    label: bool = False
    own: bool = True


COPIES: Final = "how inputs are copied"
RUN_AHEAD: Final = "launching the next step before the result of this one is read"
GRAPH: Final = "one graph launch per step"


@dataclass(frozen=True)
class Setting:
    """A setting of an engine for a change that `intertoken advise` proposes (`COPIES`, `RUN_AHEAD` or `GRAPH`): the
    option, environment variable or function, as users of the engine write it, and the version in which it was seen."""

    change: str
    name: str
    seen: str


@dataclass(frozen=True)
class Engine:
    """An engine.

    Attributes:
        name: as its users write it.
        marks: the marks of its steps; the first one that matches a text describes it.
        kernels: names of kernels that only this engine, or one of less generality, launches; None if there are none.
        processes: names and titles of its processes and threads, which Linux cuts after 15 characters; None if they
            have none of their own.
        libraries: files that only it loads; None if there are none.
        whole_graphs_decode: whether it replays a whole pass as one CUDA graph only for decoding.
        captures_first: whether it captures its graphs before it serves, so that what precedes them is no step, and a
            pass without a graph is a prompt, or a batch larger than any graph's.
        one_sequence_graphs: whether it replays graphs only for a single sequence.
        plain: texts that unambiguously name a step; the confidence in other texts is at most `LIKELY`.
        sure: the confidence that its marks are steps, 0..1.
        settings: what it calls the changes that `intertoken advise` proposes.
        generality: 0 if no other engine writes its marks or launches its kernels; engines with a higher value are tried
            after those with a lower one.
    """

    name: str
    marks: tuple[Mark, ...] = ()
    kernels: re.Pattern[str] | None = None
    processes: re.Pattern[str] | None = None
    libraries: re.Pattern[str] | None = None
    whole_graphs_decode: bool = False
    captures_first: bool = False
    one_sequence_graphs: bool = False
    plain: re.Pattern[str] | Pattern = re.compile("")
    sure: float = 0.99
    settings: tuple[Setting, ...] = ()
    generality: int = 0

    def sure_of(self, texts: Iterable[str]) -> float:
        """The confidence that marks with these texts are steps."""
        plain = all(self.plain.search(text) or not text for text in texts)
        return self.sure if plain else min(self.sure, LIKELY)


def batch(prompts: int, decodes: int, decode_tokens: int) -> Work:
    """The work of a step from the numbers of sequences in prefill and in decode, and the tokens that decode computes.

    Example:
        >>> batch(0, 8, 8)
        Work(phase='decode', sequences=8, gained=8, part='')
        >>> batch(1, 7, 7).phase, batch(0, 4, 12).phase, batch(0, 0, 0).phase
        ('mixed', 'speculative', 'empty')
    """
    if not prompts and not decodes:
        return Work(EMPTY, 0, 0)
    if prompts:  # only the last chunk of a prompt gains a token, and the mark does not say which chunk it is
        return Work(MIXED if decodes else PREFILL, prompts + decodes)
    if decode_tokens > decodes:
        return Work(SPECULATIVE, decodes)
    return Work(DECODE, decodes, decodes)
