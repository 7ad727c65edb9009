"""A machine without a C compiler: skips that say how to get one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from serving import c_client


@pytest.mark.slow
def test_the_skip_says_what_to_install(tmp_path):
    environment = {**os.environ, "PATH": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider"]
    tests = Path(__file__).with_name("test_serving.py")
    done = subprocess.run(
        [*command, str(tests)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tests.parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "apt-get install gcc libc6-dev" in done.stdout.replace("\n", "")
    assert "passed" not in done.stdout


def test_a_client_without_a_compiler_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    c_client.client.cache_clear()
    with pytest.raises(FileNotFoundError, match="No C compiler"):
        c_client.client()
