"""The README's code runs, and its commands are those that exist."""

import re
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def backend():
    """One is enough: nothing here depends on it."""
    return ("numpy", None)


ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_eight_lines_check_themselves():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert code is not None
    lines = [line for line in code[1].splitlines() if line and not line.startswith("import")]
    assert len(lines) <= 8 and lines[-1].startswith("assert")
    exec(compile(code[1], "README.md", "exec"), {})


def test_the_generate_command_says_what_the_readme_says(tang):
    said = re.search(r"It prints (\S+) as it is made", README)
    assert said is not None
    assert tang.generate("白日依山", max_new_tokens=20).text == said[1]


def test_the_tree_names_files_that_exist():
    tree = README.split("## Architecture")[1].split("```")[1]
    for name in re.findall(r"^\s+(\w+\.py)", tree, re.MULTILINE):
        assert (ROOT / "tinyinfer" / name).exists() or (ROOT / "tinyinfer/model" / name).exists(), name


def test_make_targets_named_in_the_documents_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    documents = README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for target in set(re.findall(r"^(?:make|.*`make) (\w+)", documents, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
