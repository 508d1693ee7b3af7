"""What the marks of a trace repeat is sent once."""

from hypothesis import given
from hypothesis import strategies as st

from dashboard.figures import hover

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


def test_a_text_that_a_template_would_fill_in_stays_in_the_texts():
    texts = ["%{x} 1", "%{x} 2"]
    assert hover(texts, TEMPLATE) == {"hovertext": texts, "hovertemplate": TEMPLATE}
    assert hover(texts[:1], TEMPLATE) == {"hovertext": texts[:1], "hovertemplate": TEMPLATE}
