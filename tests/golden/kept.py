"""The files of the data: how each is found anew, read and written."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.golden import answers, pages
from tests.golden.form import reduced, written
from tests.golden.simulated import simulated

HERE: Final = Path(__file__).parent


def files() -> dict[str, Callable[[], Any]]:
    """Name of each file, and what finds its content anew."""
    found = {f"recordings/{name}": partial(answers.answers, answers.commands_of(name)) for name in answers.recordings()}
    found |= {"comparisons": partial(answers.answers, answers.comparisons())}
    found |= {f"pages/{name}": partial(pages.payloads, (name,)) for name in answers.recordings()}
    for names in map(tuple, answers.ASKED["together"]["shown"]):
        found[f"reports/{names[0]}"] = partial(pages.report, names)
        if len(names) > 1:
            found[f"pages/{names[0]}-together"] = partial(pages.payloads, names)
    return found | {
        f"simulated/{name}": partial(simulated, options) for name, options in answers.ASKED["simulated"].items()
    }


def of(found: Any) -> Any:
    """An answer as it is kept."""
    return json.loads(json.dumps(reduced(found)))


def read(name: str) -> Any:
    """The kept answers of a file; empty if there are none yet."""
    path = HERE / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def write(name: str, found: Any) -> None:
    """Keep the answers of a file."""
    path = HERE / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"{written(found)}\n", encoding="utf-8")
