# SPDX-License-Identifier: Apache-2.0
# `make demo` and `make test` set up what they need and are quick the second time.
.PHONY: demo test build build-tests setup cpp-test neon-test run-neon-test aarch64-test macos-build kill-test compile-test compile-matrix gpu-test emulate-test python-test serving-test test-hip test-vllm wheel-test matrix lint format golden fuzz sanitize clean
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
JOBS   ?= $(shell nproc)
# pip's NVRTC, which no loader searches; the shell finds it when a recipe runs. Tests that need it
# skip without it, and one of them fails where LADDER_NEEDS_NVRTC is set.
NVRTC  := LADDER_NEEDS_NVRTC=1 LD_LIBRARY_PATH="$$(echo $(VENV)/lib/python3*/site-packages/nvidia/cu13/lib):$$LD_LIBRARY_PATH"
# clang-19 for AMD's GPUs, likewise: `make cpp-test LADDER_NEEDS_CLANG=` skips what it compiles.
export LADDER_NEEDS_CLANG ?= 1
export PYTHONPATH := $(CURDIR)
# For ccache: objects that a precompiled header went into may be kept, and a wheel, built in another
# folder, finds the checkout's.
export CCACHE_SLOPPINESS := pch_defines,time_macros
export CCACHE_BASEDIR    := $(CURDIR)
export CCACHE_NOHASHDIR  := 1
export CCACHE_ABSSTDERR  := 1
# Several processes test at once, each with a thread for each processor. Threads of OpenMP that spin
# while they wait keep those that work from the processors: a minute becomes five.
export OMP_WAIT_POLICY := passive

demo: build
	$(PY) examples/demo.py

test: lint cpp-test neon-test compile-test emulate-test python-test serving-test wheel-test

# --- set-up ---------------------------------------------------------------------------------------

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.txt .ci/setup
	PYTHON=$(PYTHON) VENV=$(VENV) bash .ci/setup
	@touch $@

CMAKE_TOOLS = -DCMAKE_MAKE_PROGRAM=$(CURDIR)/$(VENV)/bin/ninja \
  $(shell command -v ccache >/dev/null && echo -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
# $(call configure,OPTIONS): a build folder keeps the options that it was given before.
configure = cmake -S . -B build -G Ninja -DPython3_EXECUTABLE=$(CURDIR)/$(PY) $(1) $(CMAKE_TOOLS) \
  > build.log || { cat build.log; exit 1; }; rm -f build.log

# The libraries in ladder/ and no test.
build: setup
	@$(call configure)
	cmake --build build --target library --parallel $(JOBS)

build-tests: setup
	@$(call configure,-DLADDER_TESTS=ON)
	cmake --build build --parallel $(JOBS)

# --- tests ----------------------------------------------------------------------------------------

# $(call shards,PROGRAM ARGUMENTS): on as many processes as processors, which take the next of
# eight times as many parts of the tests when they are done with theirs.
SHARDS := $(shell expr 8 \* $(JOBS))
shards  = seq 0 $$(($(SHARDS) - 1)) | $(NVRTC) GTEST_TOTAL_SHARDS=$(SHARDS) xargs -P $(JOBS) -I{} \
  env GTEST_SHARD_INDEX={} $(1) --gtest_brief=1

cpp-test: build-tests
	$(call shards,build/tests/core/core_tests)
	$(call shards,build/tests/core/cpu_tests)
	build/tests/runtime/runtime_tests --gtest_brief=1
	for tests in driver hip_driver hip_bare hip_old hip_none; do \
	  build/tests/driver/$${tests}_tests --gtest_brief=1 || exit 1; done

# ladder_core and cpu_tests for 64-bit ARM, run by qemu: the NEON kernels, and that the rest compiles.
NEON_MISSING = $(shell command -v aarch64-linux-gnu-g++ >/dev/null || echo aarch64-linux-gnu-g++) \
  $(shell command -v qemu-aarch64-static >/dev/null || echo qemu-aarch64-static)
neon-test: setup
	@if [ "$$(uname -m)" = aarch64 ]; then \
	  echo "neon-test: nothing to do, cpu_tests are native on aarch64"; \
	elif [ -n "$(strip $(NEON_MISSING))" ]; then \
	  echo "neon-test: SKIPPED, no NEON kernel is tested: $(strip $(NEON_MISSING)) not found"; \
	else $(MAKE) --no-print-directory run-neon-test; fi

QEMU := qemu-aarch64-static -L /usr/aarch64-linux-gnu
run-neon-test:
	@cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
	  -DLADDER_PYTHON=OFF -DLADDER_TESTS=ON "-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG" $(CMAKE_TOOLS) \
	  > build-aarch64.log 2>&1 || { cat build-aarch64.log; exit 1; }; rm -f build-aarch64.log
	cmake --build build/aarch64 --target cpu_tests --parallel $(JOBS)
	$(call shards,$(QEMU) build/aarch64/tests/core/cpu_tests)
	for cpu in cortex-a72 neoverse-n1; do $(QEMU) -cpu $$cpu build/aarch64/tests/core/cpu_tests \
	  --gtest_brief=1 --gtest_filter='CpuIsas*:*whole_tables*' || exit 1; done

# The wheel for 64-bit ARM, cross-compiled and used under qemu with PyPI's torch. No part of
# `make test`: the first time takes a quarter of an hour and 500 MB of packages. `TESTS=...` are
# arguments of pytest, which runs then, too.
aarch64-test: setup
	PYTHON=$(PY) bash .ci/aarch64_test

# The wheel for macOS on Apple silicon, cross-compiled; nothing of it can be run. No part of `make
# test`: the first time takes half an hour of one processor and 200 MB of packages.
macos-build: setup
	MAX_JOBS=$(JOBS) PYTHON=$(PY) bash .ci/macos_build

# Processes that tune and store, killed 200 times at any moment; runtime_tests has a sample.
kill-test: build-tests
	LADDER_KILLS=200 build/tests/runtime/runtime_tests --gtest_filter='*killed*'

# Kernels for every architecture. Fails on spills. Of the compile matrix a sample that the commit
# chooses; `make compile-test SEED=...` compiles that of another run.
SEED ?= $(shell printf %d 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0))
compile-test: build-tests
	@echo "compile-test: a sample of the compile matrix, SEED=$(SEED)"
	export LADDER_COMPILE_SEED=$(SEED); $(call shards,build/tests/compile/compile_tests)
	export LADDER_NVRTC_12="$$(echo $(CURDIR)/$(VENV)/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib)"; \
	  $(call shards,build/tests/compile/volta_tests)

# All of the compile matrix: half an hour of two processors.
compile-matrix: build-tests
	$(call shards,build/tests/compile/compile_tests --gtest_also_run_disabled_tests \
	  --gtest_filter='DISABLED_Whole*')

# Kernels of older devices on this machine's GPU, by PTX that its driver compiles. Skips without one.
gpu-test: build-tests
	$(NVRTC) build/tests/gpu/gpu_tests

# The text of kernels on this processor.
emulate-test: build-tests
	$(call shards,build/tests/emulate/emulate_tests)

# After a change of the compiler: the golden texts and the blocks of docs/compiler.md. Look at the
# difference before you keep it.
golden: build-tests
	LADDER_RENEW_GOLDEN=1 build/tests/core/core_tests --gtest_brief=1 --gtest_filter='Golden*'
	LADDER_RENEW_GOLDEN=1 $(PY) -m pytest -q tests/cli/test_explain.py

# On a machine with an AMD GPU and a ROCm build of torch: correctness and times, as hip_report.md.
test-hip: build
	$(PY) benchmarks/hip_report.py

python-test: build
	$(PY) -m pytest tests -n $(JOBS) --maxprocesses 4 --dist worksteal \
	  --ignore=tests/serving --ignore=tests/engines --durations 12 --durations-min 10

# The plugins for vLLM and SGLang under those packages' own layer classes, without compiled code. Of
# vLLM's releases the one that the commit chooses. Where the packages cannot be fetched the tests
# fail; `make test LADDER_NEEDS_SERVING=` leaves them out, and says so.
export LADDER_NEEDS_SERVING ?= 1
VLLM := 0.26.0 0.32.0 0.33.0
serving-test: build
	PYTHON=$(PY) bash .ci/serving_test \
	  vllm==$(word $(shell expr $(SEED) % $(words $(VLLM)) + 1),$(VLLM)) -n $(JOBS) --maxprocesses 4

# All those releases, SGLang, and engines of vLLM on this processor: eight minutes, besides 2 GB of
# packages in an environment of its own the first time.
test-vllm: build
	for release in $(VLLM:%=vllm==%) sglang==0.5.23; do \
	  PYTHON=$(PY) bash .ci/serving_test $$release -n $(JOBS) --maxprocesses 4 || exit 1; done
	PYTHON=$(PY) bash .ci/engines_test

# The sdist, a wheel of it, installed where nothing else is, run from another folder.
wheel-test: setup
	PYTHON=$(PY) bash .ci/wheel_test

# That wheel with every Python and torch of the job matrix that this machine has or can install.
matrix: setup
	PYTHON=$(PY) bash .ci/matrix

PYTHON_CODE := ladder tests benchmarks examples setup.py
lint: setup
	$(PY) -m ruff check $(PYTHON_CODE)
	$(PY) -m ruff format --check $(PYTHON_CODE)
	$(PY) -m mypy

format: setup
	$(PY) -m ruff check --fix $(PYTHON_CODE)
	$(PY) -m ruff format $(PYTHON_CODE)
	find csrc tests -name '*.h' -o -name '*.cpp' | xargs clang-format -i

sanitize: setup
	cmake -S . -B build/sanitize -G Ninja -DLADDER_SANITIZE=ON -DLADDER_PYTHON=OFF \
	  -DLADDER_TESTS=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON
	cmake --build build/sanitize --parallel $(JOBS)
	build/sanitize/tests/core/core_tests --gtest_brief=1
	build/sanitize/tests/core/cpu_tests --gtest_brief=1

# Coverage-guided fuzzing of the bit stream and the spellings of types, for a minute.
fuzz: setup  # needs clang-14 and libclang-rt-14-dev
	cmake -S . -B build/fuzz -G Ninja -DLADDER_FUZZ=ON -DLADDER_PYTHON=OFF \
	  -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_BUILD_TYPE=RelWithDebInfo
	cmake --build build/fuzz --target bitstream_fuzz --parallel $(JOBS)
	mkdir -p build/fuzz/corpus
	build/fuzz/tests/fuzz/bitstream_fuzz -dict=tests/fuzz/ttype.dict -max_len=512 \
	  -max_total_time=60 -artifact_prefix=build/fuzz/ build/fuzz/corpus

clean:
	rm -rf build dist *.egg-info ladder/*.so
