"""The table of calls: every name once, whatever its version; what is in none of its lists is said."""

import json
import string

from hypothesis import given
from hypothesis import strategies as st

from tests.tracer.handmade import Script
from tests.tracer.kineto import event, read, write
from tests.tracer.nsys_exports import DATA
from tracer import formats
from tracer.model.calls import _NAMES, LETTERS, is_setup, is_unknown, letter, plain

NAMES = json.loads((DATA / "names.json").read_text(encoding="utf-8"))
VERSIONS = st.lists(
    st.one_of(st.sampled_from(["_ptsz", "_ptds", "_spt"]), st.integers(1, 99999).map("_v{}".format)), max_size=3
).map("".join)


def test_every_name_has_exactly_one_letter() -> None:
    names = [name for names in _NAMES.values() for name in names.split()]
    assert len(names) == len(set(names)) == len(LETTERS)
    assert all(plain(name) == name and letter(name) == LETTERS[name] for name in names)


@given(st.sampled_from(sorted(LETTERS)), VERSIONS)
def test_suffixes_change_nothing(name: str, versions: str) -> None:
    assert plain(name + versions) == name
    assert letter(name + versions) == LETTERS[name]
    assert not is_unknown(name + versions)


def test_real_names() -> None:
    for expected, names in NAMES["calls by letter"].items():
        assert {name: letter(name) for name in names} == dict.fromkeys(names, expected)
        assert not any(map(is_unknown, names))


@given(
    st.text(string.ascii_letters, max_size=8),
    st.sampled_from(["Launch", "launch", "Memcpy", "memcpy", "Synchronize", "synchronize"]),
    st.text(string.ascii_letters, max_size=8),
)
def test_a_name_in_no_list_that_tells_what_it_does_is_unknown(before: str, word: str, behind: str) -> None:
    name = f"new{before}{word}{behind}"
    assert is_unknown(name)
    assert letter(name) == ""


def test_unknown_calls_are_counted() -> None:
    script = Script()
    for name in ("hipLaunchKernelTwice", "hipLaunchKernelTwice", "cudaLaunchKernel_v7000", "cuMemcpyFar", "cudaMalloc"):
        script.call(name, 0, 1)
    assert script.trace.api.unknown_calls() == {"hipLaunchKernelTwice": 2, "cuMemcpyFar": 1}


def test_a_recording_with_unknown_calls_says_so_once(tmp_path) -> None:
    calls = [event("cuda_runtime", f"hipLaunchKernel{i % 7}", i * 10, 5, correlation=i) for i in range(20)]
    note = read(tmp_path, calls).notes
    assert note == [
        "20 calls seem to launch, copy or synchronise, but are unknown and not counted as such: "
        "hipLaunchKernel0 (3), hipLaunchKernel1 (3), hipLaunchKernel2 (3), hipLaunchKernel3 (3), hipLaunchKernel4 (3) "
        "and 2 other names"
    ]
    source = write(tmp_path / "again.json", calls)
    formats.write(formats.read(source), tmp_path / "copy.sqlite")
    assert formats.read(tmp_path / "copy.sqlite").notes == note


def test_what_builds_a_graph_is_known_whichever_the_suffix() -> None:
    assert is_setup("hipStreamBeginCapture_spt")
    assert is_setup("cudaGraphInstantiate_v12000")
    assert not is_setup("hipGraphLaunch_spt")
