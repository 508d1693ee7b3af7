"""The default domain of the package `nvtx`, which CUPTI does not see, under a name that it sees."""

import nvtx
import pytest
from nvtx import nvtx as package

from tracer.recorders.cupti import NamedDefault
from tracer.recorders.cupti_records import STAND_IN


@pytest.fixture
def asked(monkeypatch):
    """The names under which the package looks domains up; it finds them all disabled."""
    if not hasattr(package, "_get_domain_cached"):
        pytest.skip("this version of the package looks domains up in another way")
    names, original = [], package._get_domain_cached
    monkeypatch.setattr(package, "_get_domain_cached", lambda name: names.append(name) or original(name))
    return names


def test_only_the_default_domain_is_renamed_and_only_in_between(asked):
    def use():
        nvtx.push_range("x")
        nvtx.pop_range()
        nvtx.mark("y", domain="mine")
        with nvtx.annotate("z"):
            pass

    use()
    named = NamedDefault()
    named.install()
    named.install()
    use()
    named.remove()
    named.remove()
    use()
    plain = [None, None, "mine", None]
    assert asked == [*plain, STAND_IN, STAND_IN, "mine", STAND_IN, *plain]


def test_a_package_without_that_lookup_is_left_alone(monkeypatch):
    monkeypatch.delattr(package, "_get_domain_cached", raising=False)
    named = NamedDefault()
    named.install()
    named.remove()
    assert not hasattr(package, "_get_domain_cached")
