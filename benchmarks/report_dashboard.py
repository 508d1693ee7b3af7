"""Tables of what a reader of the page waits for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from report_tables import table


def gestures(found: dict[str, Any]) -> Iterator[str]:
    first = " All of it ran before the other work on the machine." if found["before_other_work"] else ""
    most = max(max(result["ours"]["requests"]) for result in _of_traces(found))
    yield (
        "The wheel over the timeline in a Chromium without a window or a GPU: from the event to the end of the frame "
        f"that it changed, ms, p50 / p95 / worst of {found['gestures']} gestures of 2 s. *floor*: a plain rectangle "
        "with the same wheel events. *relayout*: the same timeline moved by Plotly. *refined*: from the last event "
        f"to the new drawing; a gesture makes {most} requests at most. "
        f"*before*: the page at {found['before']}, from a button to the server's drawing; nsys-ai: its timeline-web."
        f"{first} Load when it began: {found['load_before']}."
    )
    rows = [["floor", *_frames(found["results"]["floor"]), "–"]]
    for result in _of_traces(found):
        name = f"{result['events']:,} events"
        rows.append([name, *_frames(result["ours"]), _quantiles(result["ours"]["refined_ms"])])
        rows.append([f"{name}, relayout", *_frames(result["relayout"]), "–"])
        rows += [[f"{name}, nsys-ai", *_frames(result["nsys_ai"]), "–"]] if "nsys_ai" in result else []
        if "before" in result:
            rows.append([f"{name}, before", _quantiles(result["before"]["zoom_ms"]), "–", "–"])
    yield table(["", "painted, ms", "frames/s", "refined, ms"], rows)
    yield "The first view, from a cache of the recording: ms until the timeline is drawn, p50 / p95 / worst."
    yield table(
        ["", "now", "kB", "before", "kB"],
        [
            [f"{result['events']:,} events", _quantiles(result["first_view"]["first_view_ms"]),
             str(result["first_view"]["kb"]), _quantiles(result["before"]["first_view"]["first_view_ms"]),
             str(result["before"]["first_view"]["kb"])]
            for result in _of_traces(found) if "before" in result
        ],
    )  # fmt: skip


def _of_traces(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [result for name, result in found["results"].items() if name != "floor"]


def _frames(measured: dict[str, Any]) -> list[str]:
    return [_quantiles(measured["painted_ms"]), str(measured["frames_per_s"])]


def _quantiles(ms: dict[str, float]) -> str:
    return " / ".join(f"{ms[name]:g}" for name in ("p50", "p95", "worst"))


def folders(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"A folder of {found['count']} recordings, opened with a link to two of them in a new browser: seconds until "
        "these two are drawn, and until the last recording is read in the background, for each repeat."
    )
    yield table(
        ["cache", "the two, s", "all, s"],
        [
            [kind, *(", ".join(f"{each[key]:.1f}" for each in repeats) for key in ("pair_s", "all_s"))]
            for kind, repeats in found["seconds"].items()
        ],
    )


def walked(found: dict[str, Any]) -> Iterator[str]:
    clicks = sum(step["clicks"] for step in found["steps"])
    yield (
        f"Four questions, answered on the page with {clicks} clicks of the mouse in {found['seconds']:.0f} s: seconds "
        "from the click to the answer, of which most is spent drawing."
    )
    yield table(
        ["question", "clicks", "s"],
        [[step["question"], str(step["clicks"]), f"{step['seconds']:.1f}"] for step in found["steps"]],
    )


def components(found: dict[str, Any]) -> Iterator[str]:
    turns = max(row["turn"] for row in found["rows"])
    yield (
        f"Two recordings of llama.cpp, {turns} turns of each action, and with a component of Dash for each element: "
        "seconds of tasks of the browser's main thread, and until the page rests; ratios of each pair, the median with "
        "the smallest and the largest."
    )
    yield table(
        ["action", "work, s", "Dash's, s", "ratio", "until rest, s", "Dash's, s", "ratio"],
        [
            [line["action"], *(text for value in ("work_s", "rest_s") for text in _against_dash(line, value))]
            for line in found["summary"]
        ],
    )


def _against_dash(line: dict[str, Any], value: str) -> list[str]:
    ratio, low, high = line[f"ratio_{value}"]
    return [f"{line[f'markup_{value}']:.2f}", f"{line[f'dash_{value}']:.2f}", f"{ratio:.2f} ({low:.2f} to {high:.2f})"]
