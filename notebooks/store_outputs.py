"""Execute notebooks and store their outputs, byte for byte the same at every run.

python notebooks/store_outputs.py notebooks/*.ipynb
"""

import sys

import nbformat
from nbclient import NotebookClient


def store(path: str) -> None:
    notebook = nbformat.read(path, 4)
    NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        kernel_name="python3",
        resources={"metadata": {"path": "notebooks"}},
    ).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    # No patch version of Python, which would differ from one machine to the next.
    notebook.metadata = {
        "kernelspec": {
            "display_name": "Python 3",
            "language": "python",
            "name": "python3",
        },
        "language_info": {"name": "python"},
    }
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        store(argument)
        print(f"stored {argument}")
