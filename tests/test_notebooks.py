"""What strict nbval cannot see by itself: a cell without a count is run but not compared; a red cell must be red."""

import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_code_cell_was_executed_and_is_compared(path):
    cells = [cell for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"]
    assert cells and all(cell.execution_count is not None for cell in cells)
    tags = [tag for cell in cells for tag in cell.metadata.get("tags", [])]
    assert tags.count("nbval-ignore-output") <= 2
    source = "".join(cell.source for cell in cells)
    assert "nbval-skip" not in tags and "NBVAL_SKIP" not in source and "NBVAL_IGNORE_OUTPUT" not in source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_figure_has_alt_text(path):
    for cell in nbformat.read(path, 4).cells:
        if any("image/png" in output.get("data", {}) for output in cell.get("outputs", [])):
            assert cell.metadata.get("mystnb", {}).get("image", {}).get("alt"), cell.source


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_printed_lines_fit_the_column_of_a_chapter(path):
    """Printed source code included; wide characters take two columns. A longer line would have to be scrolled."""
    for cell in nbformat.read(path, 4).cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            plain = "" if {"text/html", "image/png"} & set(data) else data.get("text/plain", "")
            for line in (output.get("text", "") + plain).splitlines():
                width = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in line)
                assert width <= 88, line


@pytest.mark.parametrize("path", [each for each in NOTEBOOKS if each.stem[:2].isdigit()], ids=lambda path: path.stem)
def test_a_chapter_has_times_a_quiz_a_fault_to_find_and_three_exercises_that_cells_check(path):
    cells = nbformat.read(path, 4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    assert re.search(r"minutes to read, .* to run", text)
    labs = [place for place, cell in enumerate(cells) if cell.source.startswith("## Break it")]
    assert len(labs) == 1 and any("faults." in cell.source for cell in cells[labs[0] :] if cell.cell_type == "code")
    assert "\n## Quick quiz" in "\n" + text and "```{dropdown} Answers" in text
    exercises = [place for place, cell in enumerate(cells) if "```{exercise}" in cell.source]
    assert len(exercises) >= 3
    for place in exercises:
        label = re.search(r":label: (\S+)", cells[place].source)[1]
        assert re.search(rf"```{{solution}} {label}\n:class: dropdown\n", cells[place].source)
        assert cells[place + 1].cell_type == "code" and "hide-cell" in cells[place + 1].metadata.tags


def run_nbval(folder: Path, source: str, stored: str) -> subprocess.CompletedProcess:
    output = nbformat.v4.new_output("stream", name="stdout", text=stored)
    cell = nbformat.v4.new_code_cell(source, execution_count=1, outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), folder / "page.ipynb")
    command = [
        "-m",
        "pytest",
        "--nbval",
        "--nbval-current-env",
        "-p",
        "no:cacheprovider",
        "-c",
        "/dev/null",
        "page.ipynb",
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("source", "stored", "exit_code"),
    [("print(2 + 2)", "4\n", 0), ("print(2 + 2)", "5\n", 1), ("print(1 / 0)", "4\n", 1)],
    ids=["true", "drifted", "failing"],
)
def test_a_drifted_output_and_a_failing_cell_turn_the_run_red(tmp_path, source, stored, exit_code):
    assert run_nbval(tmp_path, source, stored).returncode == exit_code
