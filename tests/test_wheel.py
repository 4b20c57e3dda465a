"""What `pip install .` would bring: the embedded model, the font and the command are in the wheel."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_holds_the_model_the_font_and_the_command(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    shutil.copytree(ROOT / "tinyinfer", source / "tinyinfer", ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        str(tmp_path),
        ".",
    ]
    built = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        entry_points = next(name for name in names if name.endswith("entry_points.txt"))
        assert "tinyinfer = tinyinfer.cli:main" in wheel.read(entry_points).decode()
    for model in ("tang", "toy"):
        for name in ("config.json", "model.safetensors", "tokenizer.json", "README.md"):
            assert f"tinyinfer/models/{model}/{name}" in names
    assert "tinyinfer/figures/TinyHanzi.otf" in names
    assert {"tinyinfer/figures/web/widgets.js", "tinyinfer/figures/web/widgets.css"} <= names
