"""The `tinyinfer` command for tests: in a process of its own, as a person starts it."""

import os
import subprocess
import sys


def run_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    """Start it and wait for its end; a warning counts as an error."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "tinyinfer.cli", *arguments],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | environment,
        timeout=600,
    )
