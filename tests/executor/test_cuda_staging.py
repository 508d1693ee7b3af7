"""Which copies are known to be done: that is when a pinned slot may be taken again."""

from executor.backends.cuda.backend import CopyCount


def counts(*issued):
    made = [CopyCount() for _ in issued]
    for count, number in zip(made, issued, strict=True):
        count.issued = number
    return made


def test_whoever_waits_for_the_last_gpu_of_a_pipeline_knows_of_those_before_it():
    first, second, third = counts(4, 2, 1)
    second.wait_for(first)
    first.issued = 7  # later than what the second one waited for
    third.wait_for(second)
    third.done_to(third.issued)
    assert [first.done, second.done, third.done] == [4, 3, 2]


def test_an_event_says_nothing_of_waits_behind_it():
    first, second = counts(4, 2)
    event = second.issued
    second.wait_for(first)
    second.done_to(event)
    assert (first.done, second.done) == (0, 2)
    second.done_to(second.issued)
    assert first.done == 4
