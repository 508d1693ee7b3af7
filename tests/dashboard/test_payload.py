"""What the marks of a trace repeat is sent once."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures import hover, width_of_bars

TEMPLATE = "<b>%{hovertext}</b><extra></extra>"


def shown(of):
    """The hovers as Plotly fills them in, which it does from a list only."""
    if "hovertext" not in of:
        return [of["hovertemplate"]]
    assert isinstance(of["hovertext"], list)
    return [of["hovertemplate"].replace("%{hovertext}", text, 1) for text in of["hovertext"]]


@given(st.lists(st.text("ab <>%{}…", max_size=12), min_size=1))
def test_hovers_read_as_if_each_were_sent_whole(texts):
    whole = [TEMPLATE.replace("%{hovertext}", text) for text in texts]
    found = shown(hover(texts, TEMPLATE))
    assert found in (whole, whole[:1])
    assert len(set(whole)) == len(set(found))


def test_what_all_texts_share_is_sent_once():
    texts = [f"<b>idle: {n} µs</b><br>until rms_norm_f32" for n in (2, 31, 7)]
    assert hover(texts, "%{hovertext}") == {
        "hovertext": ["2", "31", "7"], "hovertemplate": "<b>idle: %{hovertext} µs</b><br>until rms_norm_f32",
    }  # fmt: skip
    assert hover(["gemm"] * 3, TEMPLATE) == {"hovertemplate": "<b>gemm</b><extra></extra>"}
    assert hover([], TEMPLATE) == {"hovertext": [], "hovertemplate": TEMPLATE}


def test_a_text_that_a_template_would_fill_in_stays_in_the_texts():
    texts = ["%{x} 1", "%{x} 2"]
    assert hover(texts, TEMPLATE) == {"hovertext": texts, "hovertemplate": TEMPLATE}
    assert hover(texts[:1], TEMPLATE) == {"hovertext": texts[:1], "hovertemplate": TEMPLATE}


def test_bars_of_one_width_send_it_once():
    assert width_of_bars(np.array([18.0, 18.0])) == 18.0
    assert width_of_bars(np.array([18.0, 24.0])).tolist() == [18.0, 24.0]
