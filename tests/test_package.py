"""How the package hangs together: what it imports, which way, and that everything public says what it is for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import tinyinfer

ROOT = Path(tinyinfer.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# Which parts a part may import, besides itself. `__init__` stands for the package's own face.
BELOW = {
    "errors": set(),
    "model": {"errors"},
    "loading": {"model", "errors"},
    "performance": {"model", "errors"},
    "serving": {"performance", "loading", "model", "errors"},
    "figures": {"serving", "performance", "loading", "model", "errors"},
    "__init__": {"serving", "performance", "loading", "model", "errors"},
    "faults": {"__init__", "figures", "serving", "performance", "loading", "model", "errors"},
    "cli": {"__init__", "faults", "figures", "serving", "performance", "loading", "model", "errors"},
}


def part_of(module: str) -> str:
    """`tinyinfer.model.cache` -> `model`, `tinyinfer` -> `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(source: str) -> set[str]:
    """Every module that is imported anywhere in it, also inside functions."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            assert node.module is not None
            whole = node.module == "tinyinfer"  # from tinyinfer import model
            found |= {f"tinyinfer.{alias.name}" if whole else node.module for alias in node.names}
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def own_part(path: Path) -> str:
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def test_every_part_has_its_place_in_the_order():
    assert {own_part(path) for path in FILES} == set(BELOW)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_point_one_way(path):
    allowed = BELOW[own_part(path)] | {own_part(path)}
    for module in imports(path.read_text(encoding="utf-8")):
        if module.split(".")[0] == "tinyinfer":
            assert part_of(module) in allowed, f"{name(path)} imports {module}"


def test_an_import_that_points_up_would_be_noticed():
    assert imports("def f():\n    from tinyinfer.serving.session import Session") == {"tinyinfer.serving.session"}
    assert imports("from tinyinfer import faults\nimport tinyinfer.cli") == {"tinyinfer.faults", "tinyinfer.cli"}
    assert part_of("tinyinfer.serving.session") == "serving" and part_of("tinyinfer") == "__init__"


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("matplotlib", ("figures/",)),
        ("torch", ("model/torch_", "performance/")),
        ("transformers", ()),
        ("typer", ("cli.py",)),
        ("safetensors", ("loading/safetensors.py",)),
        ("gguf", ("loading/gguf.py",)),
        ("jinja2", ("loading/tokenizer.py",)),
        ("ray", ("serving/cluster.py", "serving/disaggregate.py")),
        ("pickle", ()),
    ],
)
def test_a_library_is_imported_only_where_it_belongs(library, homes):
    for path in FILES:
        libraries = {module.split(".")[0] for module in imports(path.read_text(encoding="utf-8"))}
        assert library not in libraries or name(path).startswith(homes), name(path)


def test_the_naive_model_imports_only_numpy_and_the_config():
    assert imports((ROOT / "model" / "naive.py").read_text()) == {"numpy", "tinyinfer.model.config"}


def test_the_wiring_imports_neither_kind_of_operations():
    wiring = imports((ROOT / "model" / "llama.py").read_text())
    assert not {module for module in wiring if module.endswith("_ops")}


def test_importing_the_package_brings_no_heavy_library():
    heavy = ("torch", "matplotlib", "transformers", "gguf", "huggingface_hub", "typer", "jinja2", "ray")
    script = f"import sys, tinyinfer; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_generating_brings_no_heavy_library_either():
    script = (
        "import sys, tinyinfer; tinyinfer.load('tang').generate('白日依山', 2);"
        "print([name for name in ('torch', 'matplotlib', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", script], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def public_definitions(tree: ast.Module):
    """The module, its public functions and classes, and the public methods of those classes."""
    yield "the module", tree
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node
            protocol = isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
            if isinstance(node, ast.ClassDef) and not protocol:  # a protocol explains its methods in one place
                for method in node.body:
                    overload = isinstance(method, ast.FunctionDef) and "overload" in map(
                        ast.unparse, method.decorator_list
                    )
                    if isinstance(method, ast.FunctionDef) and not (overload or method.name.startswith("_")):
                        yield f"{node.name}.{method.name}", method


@pytest.mark.parametrize("path", [path for path in FILES if path.read_text().strip()], ids=name)
def test_everything_public_says_what_it_is_for(path):
    for defined, node in public_definitions(ast.parse(path.read_text(encoding="utf-8"))):
        assert ast.get_docstring(node), f"{name(path)}: {defined} has no docstring"


@pytest.mark.parametrize("path", FILES, ids=name)
def test_nothing_is_left_to_do(path):
    text = path.read_text(encoding="utf-8")
    assert "TODO" not in text and "FIXME" not in text and "XXX" not in text


def test_the_public_face_is_what_it_promises():
    assert set(tinyinfer.__all__) == {"BadInput", "LanguageModel", "ModelConfig", "available_models", "load"}
    assert all(hasattr(tinyinfer, promised) for promised in tinyinfer.__all__)
    from importlib.metadata import version

    assert tinyinfer.__version__ == version("tinyinfer")
