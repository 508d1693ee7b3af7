# make demo   open the dashboard on the sample recordings and on every strategy, recorded on the CPU backend
# make test   lint, type checks and tests
# make docs   the documentation, in site/
# make bench  the benchmarks that need no GPU; `make bench-gpu` the others
# make test-lowest  the tracer's tests but those of Dask with the lowest versions that pyproject.toml allows, in .venv-lowest;
#             `make test-lowest-core` those of reading, steps, syncs, gaps and the Python interface
# make release-check  builds and checks the sdist and the wheel, and tries both in .venv-release
# All create .venv on first use, the demo without what only tests need. PYTHON=python3.12 selects another interpreter
# (3.10 or later).

PYTHON ?= $(firstword $(foreach name,python3.11 python3.12 python3.13 python3.14,$(if $(shell $(name) --version 2>/dev/null),$(name))) python3)
BIN := .venv/bin
RUNS ?= runs
PORT ?= 8050

LOWEST_CORE := model estimates steps marks formats_nsys formats_roundtrip gaps syncs

# The lowest versions have wheels for these Pythons.
LOWEST_PYTHON ?= $(firstword $(foreach name,python3.10 python3.11 python3.12,$(if $(shell $(name) --version 2>/dev/null),$(name))) $(PYTHON))

.PHONY: demo test tests test-lowest test-lowest-core check docs bench bench-gpu release-check clean

# Without compiling all that is installed: Python does so with what is imported, which is a tenth of it.
.venv/.installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[test]'
	touch $@

.venv/.runs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt -e .
	touch $@

demo: .venv/.runs
	mkdir -p $(RUNS)
	$(BIN)/intertoken run --backend cpu --model tiny --sync sccc,saaas,aaas,aaag,aga,ggg --concurrency sequential,branches \
	  --force -o $(RUNS) > .venv/demo.log 2>&1 &
	@echo 'Try first: choose llama1b-sccc-graph and llama1b-saaas-graph, then Gap: what the idle time between two tokens is'
	@echo 'made of, and what 5 syncs a token instead of 14 change. Runs of the CPU backend appear as they end (.venv/demo.log).'
	$(BIN)/intertoken dashboard sample_traces $(RUNS) --port $(PORT)

check: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Lint and type checks run beside the tests.
test: .venv/.installed
	$(MAKE) --no-print-directory -j2 check tests

# Compiled and rewritten once, not in every process that the tests start.
tests: export PYTHONDONTWRITEBYTECODE =
tests: .venv/.installed
	$(BIN)/python -m pytest -n auto --dist loadscope --no-loadscope-reorder

.venv-lowest/.installed: pyproject.toml constraints-lowest.txt
	$(LOWEST_PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-lowest.txt \
	  -e '.[perfetto]' hypothesis networkx packaging pytest pytest-xdist
	touch $@

test-lowest: .venv-lowest/.installed
	.venv-lowest/bin/python -m pytest -n auto -m "not browser and not gpu" --ignore tests/tracer/test_reports.py tests/tracer

test-lowest-core: .venv-lowest/.installed
	.venv-lowest/bin/python -m pytest -n auto $(LOWEST_CORE:%=tests/tracer/test_%.py)

release-check:
	.ci/release-check $(PYTHON)

docs: .venv/.installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

bench: .venv/.installed
	for name in read_nsys_sqlite write_nsys_sqlite read_chrome write_exports cupti_parse many_reports million_calls host_products; do $(BIN)/python benchmarks/$$name.py || exit 1; done

bench-gpu: .venv/.installed
	for name in gpu_decode gpu_gaps cupti_truth cupti_overhead pass_overhead gpu_concurrency gpu_hybrid gpu_kv_streams; do $(BIN)/python benchmarks/$$name.py || exit 1; done

clean:
	rm -rf .venv .venv-lowest .venv-release dist .mypy_cache .ruff_cache .pytest_cache .hypothesis site $(RUNS)
