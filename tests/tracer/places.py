"""Places where nothing can be written, and disks that are full."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager

import pytest


@contextmanager
def mounted(folder, *arguments):
    """A mount at a new folder; skips the test where that is not allowed."""
    folder.mkdir()
    done = subprocess.run(["mount", *arguments, folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("mounts are not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small_disk(tmp_path):
    """The root of a file system of 64 KiB."""
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=64k", "none") as folder:
        yield folder


@pytest.fixture
def read_only(tmp_path):
    """A folder that nobody can write to, root neither."""
    folder = tmp_path / "read-only"
    if os.geteuid():
        folder.mkdir(mode=0o555)
        yield folder
        return
    with mounted(folder, "-t", "tmpfs", "-o", "size=64k,ro", "none"):
        yield folder
