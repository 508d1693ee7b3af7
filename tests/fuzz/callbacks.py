"""Fuzzes all callbacks of all pages with hostile values, through Flask's test client.

    python tests/fuzz/callbacks.py 60    # minutes, and the first seed if it is not 0

What holds for every request is in `Fuzzed.check`; the suite runs some of them (tests/dashboard/test_serving.py).
"""

from __future__ import annotations

import json
import logging
import re
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning

sys.path.insert(0, str(Path(__file__).parents[2]))
from dashboard.app import PAGES, create_app
from tests.fuzz.hostile import Requests, asked

LONGEST, PATIENCE = 5.0, 30.0
"""Seconds of computing that a request may take, and seconds by the clock: others may keep the machine busy."""
MOST_MEMORY = 2 * 2**30
"""Bytes that the process may take."""
PLACES = tuple(page.address for page in PAGES)


def callbacks_of(client: Any, page: str) -> list[dict[str, Any]]:
    """The callbacks of a page that the server answers, as the page lists them to the browser."""
    listed = client.get(f"/{page}_dash-dependencies").get_json()
    return [one for one in listed if one["clientside_function"] is None]


def post(client: Any, page: str, body: Any) -> Any:
    """The answer to a request; a text is sent as it is."""
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    return client.post(f"/{page}_dash-update-component", data=data, content_type="application/json")


class Fuzzed:
    """A dashboard of recordings, and what was seen of it.

    Attributes:
        callbacks: of all pages, each with its page.
        bodies: strategy for a page and the body of a request to it.
        requests: how many were sent, by status.
        slowest: seconds of computing and by the clock, page and output.
    """

    def __init__(self, runs: Path) -> None:
        self.client = create_app([runs]).server.test_client()
        self.requests: dict[int, int] = {}
        self.slowest: tuple[float, float, str, str] = (0.0, 0.0, "", "")
        self._log: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = self._log.append  # type: ignore[method-assign]
        logging.getLogger().addHandler(handler)
        self.callbacks = [(page, one) for page in PLACES for one in callbacks_of(self.client, page)]
        self.bodies = Requests.drawn(Requests(self.callbacks, self._read(), self._nodes()))

    def _read(self) -> list[str]:
        """The keys of the runs, once they are read."""
        table = next(one for page, one in self.callbacks if not page and "runs.rowData" in one["output"])
        while True:
            answer = post(self.client, "", asked(table, {})).get_json()["response"]
            if answer["reading"]["disabled"]:
                return [row["key"] for row in answer["runs"]["rowData"]]

    def _nodes(self) -> list[str]:
        reduce = next(one for page, one in self.callbacks if page == "graph/" and "node.options" in one["output"])
        answer = post(self.client, "graph/", asked(reduce, {})).get_json()["response"]
        return [option["value"] for option in answer["node"]["options"]] or ["none"]

    def check(self, page: str, body: Any) -> None:
        """Send a request: it is answered soon, without a failure, and refused with one short line."""
        self._log.clear()
        start, begun = time.perf_counter(), time.thread_time()
        answer = post(self.client, page, body)
        took, computed = time.perf_counter() - start, time.thread_time() - begun
        name = str(body.get("output"))[:60] if isinstance(body, dict) else ""
        self.requests[answer.status_code] = self.requests.get(answer.status_code, 0) + 1
        self.slowest = max(self.slowest, (computed, took, page, name))
        said = [record.getMessage() for record in self._log if record.levelno >= logging.INFO]
        assert answer.status_code in (200, 204, 400, 413, 415), (answer.status_code, said)
        assert len(said) == (answer.status_code >= 400), said
        assert all(len(line) < 200 and line.isprintable() for line in said), said
        assert not re.search("Traceback|The server failed|an error of ours", answer.text), answer.text[:2_000]
        assert computed < LONGEST, (computed, page, name)
        assert took < PATIENCE, (took, page, name)
        assert peak() < MOST_MEMORY, peak()


def peak() -> int:
    """The most memory that this process has taken, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(minutes: float = 1.0, number: int = 0) -> None:
    """Send 500 requests of each seed in turn, until these minutes are over."""
    from tests.dashboard.filled import write_filled

    warnings.simplefilter("error")
    warnings.simplefilter("default", HypothesisWarning)  # of how it prints an example, not of what we do
    with tempfile.TemporaryDirectory(prefix="intertoken-fuzz-") as folder:
        (runs := Path(folder) / "runs").mkdir()
        fuzzed = Fuzzed(write_filled(runs))
        requests = settings(max_examples=500, deadline=None, database=None, suppress_health_check=[*HealthCheck],
                            phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False)(
            given(fuzzed.bodies)(lambda request: fuzzed.check(*request))
        )  # fmt: skip
        end = time.monotonic() + 60 * minutes
        while time.monotonic() < end:
            seed(number)(requests)()
            computed, took, page, output = fuzzed.slowest
            print(f"seed {number}: requests {fuzzed.requests}, slowest {computed:.2f} s of computing in {took:.2f} s "
                  f"(/{page} {output}), peak {peak() / 2**20:,.0f} MiB", flush=True)  # fmt: skip
            number += 1


if __name__ == "__main__":
    main(*map(float, sys.argv[1:2]), *map(int, sys.argv[2:3]))
