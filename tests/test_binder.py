"""What a hosted Jupyter does once the project has a public address."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_kernel_of_a_hosted_jupyter_is_the_environment_of_make_setup(tmp_path):
    script = ROOT / ".binder/postBuild"
    *_, setup, kernel = script.read_text().splitlines()
    assert os.access(script, os.X_OK) and setup == "make setup" and kernel.startswith(".venv/bin/python ")
    command = [sys.executable, *kernel.replace('"Python 3"', "Python-3").split()[1:]]
    subprocess.run(command, env=os.environ | {"JUPYTER_DATA_DIR": str(tmp_path)}, check=True, capture_output=True)
    found = json.loads((tmp_path / "kernels/python3/kernel.json").read_text())
    assert found["argv"][0] == sys.executable
