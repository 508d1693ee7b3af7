"""`tracer`, `executor` and `dashboard` are names of other distributions, too: what happens when both are installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import intertoken
from intertoken import PACKAGES

OURS = "from_us = True\n"
THEIRS = "raise ImportError('another tracer')\n"


def install(site, name, files):
    """As pip does: the files, and a record of them."""
    meta = site / f"{name}-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (meta / "RECORD").write_text("".join(f"{path},,{len(text)}\n" for path, text in files.items()))


def uninstall(site, name):
    meta = site / f"{name}-1.0.dist-info"
    for line in (meta / "RECORD").read_text().splitlines():
        (site / line.split(",")[0]).unlink()
    shutil.rmtree(meta)


@pytest.fixture
def site(tmp_path):
    """Packages of our names of which the first has a command line; and the launcher as it is."""
    modules = {f"{name}/__init__.py": OURS for name in PACKAGES}
    install(tmp_path, "intertoken", modules | {"tracer/cli.py": "def main():\n    print('the command line')\n"})
    shutil.copytree(Path(intertoken.__file__).parent, tmp_path / "intertoken")
    return tmp_path


def started(*places):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places)), "PYTHONDONTWRITEBYTECODE": "1"}
    command = (sys.executable, "-m", "intertoken")
    return subprocess.run(command, cwd="/", env=environment, capture_output=True, text=True, check=False)


def refused(*places):
    done = started(*places)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_the_command_line_starts_whatever_users_edit_and_others_leave_beside_it(site):
    install(site, "tracer", {"tracer/__init__.py": OURS, "tracer/extra.py": THEIRS})
    (site / "dashboard" / "__init__.py").write_text("edited = 'by hand'\n")
    done = started(site)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the command line\n", "")


def test_what_another_distribution_has_overwritten_is_said(site):
    for name in PACKAGES:
        own = site / name / "__init__.py"
        install(site, f"the-{name}", {f"{name}/__init__.py": THEIRS})
        assert refused(site) == (
            f"intertoken: {own} was overwritten by the-{name} 1.0, which has a package of the same "
            f"name: pip uninstall the-{name}, then install intertoken again (pip install --force-reinstall --no-deps)\n"
        )
        uninstall(site, f"the-{name}")
        own.write_text(OURS)
    install(site, "other", {"tracer/cli.py": THEIRS})  # not the package itself
    assert f"{site}/tracer/cli.py was overwritten by other 1.0" in refused(site)


def test_what_the_other_one_took_away_when_it_went_is_said(site):
    install(site, "tracer", {"tracer/__init__.py": THEIRS, "executor/kept.py": ""})
    uninstall(site, "tracer")
    assert "its package tracer is incomplete; another package of that name may have been uninstalled" in refused(site)
    (site / "tracer" / "__init__.py").write_text(OURS)
    (site / "tracer" / "cli.py").unlink()
    assert f"{site}/tracer/cli.py is missing; another package" in refused(site)


def test_a_package_that_is_found_before_ours_is_said(site, tmp_path_factory):
    first = tmp_path_factory.mktemp("first")
    (first / "executor").mkdir()
    (first / "executor" / "__init__.py").write_text("")
    assert refused(first, site).startswith(
        f"intertoken: {first}/executor/__init__.py, of no distribution, hides its own package executor; remove it"
    )
    install(first, "executor", {"executor/__init__.py": ""})
    assert ", of executor 1.0, hides" in refused(first, site)
