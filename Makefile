# make demo: trains a model-parallel network on real text.   make test: sets up and passes the tests.
# Everything lives in .venv; nothing outside this folder is changed.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = $(shell find csrc kernels/cpu mpgluon -name '*.[ch]' -o -name '*.def' -o -name '*.py' 2>/dev/null) setup.py pyproject.toml
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test slow-test bench asan tsan check-sanitized wheel-check clean

demo: $(VENV)/.demo
	$(BIN)/python examples/model_parallel_lm.py $(ARGS)

test: $(VENV)/.test
	$(BIN)/pytest tests -m "not slow"

slow-test: $(VENV)/.test
	$(BIN)/pytest tests -m slow

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install -q '.[viz]'
	touch $@

$(VENV)/.test: $(BIN)/python $(SOURCES)
	$(BIN)/python -m pip install -q '.[viz,test]'
	touch $@ $(VENV)/.demo

clean:
	rm -rf build dist *.egg-info .venv .venv-asan .venv-tsan mpgluon/_core*.so

# Benchmarks against PyTorch (and MXNet, given MXNET_PYTHON), in an environment that has it.
bench: $(VENV)/.test
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python benchmarks/bench.py $(if $(MXNET_PYTHON),--mxnet-python $(MXNET_PYTHON)) $(ARGS)
