# Every target works on a fresh clone; .venv is made and filled as needed.
PYTHON ?= python3
PIP_FLAGS ?=
PIECE_SECONDS ?= 480
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install quickstart test test-hard mutants check docs compare-small compare-ffn compare-virtual-width compare-growth evidence evidence-gpu bench bench-gpu clean

install: .venv/installed

# torch first and alone: resolved together with the rest, pip would look at newer and much larger builds.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q $(PIP_FLAGS) -c constraints.txt torch numpy
	$(BIN)/python -m pip install -q $(PIP_FLAGS) -c constraints.txt -e .
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/python -m pip install -q $(PIP_FLAGS) -c constraints.txt -e '.[dev,prep,remote,hf,eval,sweep,tensorboard,wandb,bench,docs]'
	touch $@

.venv/installed-bench: .venv/installed
	$(BIN)/python -m pip install -q $(PIP_FLAGS) -c constraints.txt -e '.[hf,bench]'
	touch $@

quickstart: install
	$(BIN)/widthwise compare configs/quickstart.yaml

# What protects a commit, and what takes longer. SHUFFLE=7 runs either in a drawn order.
test test-hard: .venv/installed-dev
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder \
		-m '$(if $(filter test,$@),not )hard' $(if $(SHUFFLE),--shuffle $(SHUFFLE))

# Which test catches each of the wrong lines of tests/mutants.yaml.
mutants: .venv/installed-dev
	$(BIN)/python tests/mutants.py

check: .venv/installed-dev
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/pyright
	$(BIN)/lint-imports

docs: .venv/installed-dev
	$(BIN)/python -m sphinx --fail-on-warning --keep-going -q docs build/docs
	@echo "documentation: build/docs/index.html"

compare-small: install
	$(BIN)/widthwise compare configs/compare_small.yaml

compare-ffn: install
	$(BIN)/widthwise compare configs/compare_ffn.yaml

compare-virtual-width: install
	$(BIN)/widthwise compare configs/compare_virtual_width.yaml

compare-growth: install
	$(BIN)/widthwise compare configs/compare_growth_2x.yaml
	$(BIN)/widthwise compare configs/evidence/grow_no_spike.yaml

evidence: install
	$(BIN)/widthwise compare configs/evidence/evidence.yaml
	$(BIN)/widthwise analyze runs/evidence/runs/uniform-seed1 runs/evidence/runs/x-seed1 --out runs/evidence/analysis

# A piece of less than nine minutes. It fails, and says so, until all is trained: `until make evidence-gpu; do :; done` does the whole. The first piece prepares the
# corpus too, which cannot be divided: on a slow machine give it more, as PIECE_SECONDS=1200.
evidence-gpu:
	PYTHONPATH=src timeout $(PIECE_SECONDS) $(PYTHON) -m widthwise compare configs/evidence/evidence_gpu.yaml
	PYTHONPATH=src $(PYTHON) -m widthwise analyze runs/evidence_gpu/runs/uniform-seed1 runs/evidence_gpu/runs/x-seed1 --out runs/evidence_gpu/analysis

bench: .venv/installed-bench
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/training.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/quickstart.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/dynamic_width.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/virtual_width.py
	$(BIN)/python benchmarks/growth.py
	$(BIN)/python benchmarks/preparation.py
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/memory.py

bench-gpu:
	PYTHONPATH=src $(PYTHON) benchmarks/gpu.py

clean:
	rm -rf .venv
