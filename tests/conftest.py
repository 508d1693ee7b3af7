"""Tests marked `gpu` run where there is a GPU, and are skipped elsewhere unless INTERTOKEN_REQUIRE_GPU=1.

Those marked `gpu(2)` need as many, and are skipped where there are fewer. What takes long to import is imported where
a test needs it: every call of pytest would wait for it.
"""

import fcntl
import gc
import os
import shutil
import signal
import sys
import tempfile
from functools import cache, partialmethod
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.tracer.compiled_once import FOLDER

# Whoever runs the tests in the background may ignore these, and the programs that the tests start would inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # all cores are busy: threads that wait hold those that others need
os.environ["INTERTOKEN_CACHE"] = "off"  # nothing that was kept before, and nothing of ours with the user's
os.environ["HYPOTHESIS_NO_PLUGINS"] = "1"  # which would import trio

if version("click").startswith("8.1."):  # its output has both and its stdout, too
    from click.testing import CliRunner, Result

    CliRunner.__init__ = partialmethod(CliRunner.__init__, mix_stderr=False)
    Result.output = property(lambda result: result.stdout + result.stderr)


@cache
def load_profile():
    """Properties are about results, and CI is slow."""
    import hypothesis

    hypothesis.settings.register_profile("intertoken", deadline=None, max_examples=12)
    hypothesis.settings.load_profile("intertoken")


def pytest_pycollect_makemodule(module_path):
    """Properties have their settings before their module is imported."""
    if "hypothesis" in module_path.read_text(encoding="utf-8"):
        load_profile()


@cache
def few_resamples():
    """Make intervals from a fifth of the resamples; returns how many commands take."""
    from tracer.analysis import estimates

    every = estimates.RESAMPLES
    estimates.RESAMPLES //= 5
    return every


@pytest.fixture(scope="module")
def all_resamples():
    """As many resamples as commands take, for a module that compares with what is published."""
    every = few_resamples()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tracer.analysis.estimates.RESAMPLES", every)
        yield


@pytest.fixture
def reads(monkeypatch):
    """Which recordings are read."""
    from tracer import formats

    paths, read = [], formats.read
    monkeypatch.setattr(formats, "read", lambda path, **options: paths.append(path) or read(path, **options))
    return paths


def pytest_configure(config):
    """The folder of what the tests compile, for all workers."""
    if not hasattr(config, "workerinput"):
        os.environ[FOLDER] = tempfile.mkdtemp(prefix="intertoken-builds-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(FOLDER)))


def pytest_xdist_auto_num_workers():
    """One more than there are cores: a browser, a server or a program under a recorder is waited for."""
    return len(os.sched_getaffinity(0)) + 1


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """One worker, then the others: they read what the first has compiled and rewritten."""
    if not hasattr(session.config, "workerinput"):
        return (yield)
    gc.disable()  # until all is collected: nearly all of it stays
    with Path(os.environ[FOLDER], "collected").open("a") as collected:
        fcntl.flock(collected, fcntl.LOCK_EX)
        if collected.seek(0, os.SEEK_END):
            fcntl.flock(collected, fcntl.LOCK_UN)
        result = yield
        collected.write("by a worker\n")
    return result


def pytest_collection_finish(session):
    """What has been imported and collected stays: the collector need not go through it a thousand times."""
    if "hypothesis" not in sys.modules:  # which its plugin would import to find that there is nothing to say
        session.config.pluginmanager.unregister(name="hypothesispytest")
    if "pandas" in sys.modules:
        from tracer.stored import set_options

        set_options()  # as commands do
    if "tracer.analysis.estimates" in sys.modules:
        few_resamples()
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(50_000, 20, 100)


@cache
def why_no_gpu():
    from executor.backends.cuda.library import load_cuda
    from tracer.errors import ExecutionError

    try:
        load_cuda()
    except ExecutionError as error:
        return str(error)
    return None


@cache
def gpus():
    from executor.backends.cuda.library import load_cuda

    return load_cuda().runtime.getDeviceCount()


def pytest_runtest_setup(item):
    marker = item.get_closest_marker("gpu")
    if marker and why_no_gpu():
        if os.environ.get("INTERTOKEN_REQUIRE_GPU") == "1":
            pytest.fail(why_no_gpu())
        pytest.skip(why_no_gpu())
    if marker and marker.args and gpus() < marker.args[0]:
        pytest.skip(f"needs {marker.args[0]} GPUs, here are {gpus()}")
