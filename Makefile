# Shortcuts for the usual commands. CMake, CTest and the scripts in scripts/ do the work.
SHELL := /bin/bash
PRESET ?= release
BUILD := build/$(PRESET)
JOBS ?= $(shell source jobs/common.sh; trireme_nproc)
PYTHON ?= python3
PREFIX ?= /usr/local
# A plain `make -jN` must not run the steps of a target out of order; Ninja has its own parallelism.
.NOTPARALLEL:
.PHONY: help deps configure build demo test test-mpich test-long test-asan test-cuda test-slurm bench-cuda gpu-bundle fuzz planted-bugs lint format docs bench bench-layouts reproduce-nanogpt install package clean

help:
	@echo 'make demo [CORPUS=file.txt]   build, prepare text, train on 2 ranks, evaluate, resume, generate'
	@echo 'make test                     build and run every test'
	@echo 'make build                    release binary in build/release/trireme (PRESET=release|debug|mpich)'
	@echo 'make install [PREFIX=/usr/local] [DESTDIR=stage]'
	@echo 'make package                  a Debian package (build/package/trireme_*.deb), for CPUs'
	@echo
	@echo 'make deps                     install the Debian packages that are missing, or print the command'
	@echo 'make test-mpich               a run under MPICH has the bits of one under Open MPI; part of make test where MPICH is'
	@echo 'make test-long                the tests and the slow sweeps'
	@echo 'make test-asan                the tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make test-slurm               job scripts and scaling studies under a Slurm of four nodes on this machine; needs root'
	@echo 'make test-cuda                operations, device, models and layouts, on a machine with a GPU'
	@echo 'make fuzz [SECONDS=60]        run each fuzz target for that long (clang, libFuzzer)'
	@echo 'make planted-bugs             plant each known bug in a copy and see its test fail'
	@echo 'make lint, make format        clang-format and clang-tidy; clang-format in place'
	@echo 'make docs                     docs/configuration.md from the program, the API reference in build/docs'
	@echo 'make bench                    operations and whole steps, beside what bounds them, the peak and PyTorch'
	@echo 'make bench-cuda               steps of GPT-2 and Llama models on a GPU beside its measured ceilings, and PyTorch'
	@echo 'make gpu-bundle               pack tests and benchmarks for a machine that has a GPU and little else'
	@echo 'make bench-layouts            speed, memory and messages of one model in each kind of layout'
	@echo 'make reproduce-nanogpt CORPUS=tinyshakespeare.txt'
	@echo '                              a published validation loss, measured again'
	@echo 'make clean                    remove build/'

deps:
	@scripts/deps.sh build $(filter mpich,$(PRESET))
	@scripts/deps.sh report || echo 'going on without gnuplot: trireme report --html will miss it'

configure: deps
	@cmake --preset $(PRESET) $(CMAKE_ARGS)

build: configure
	@cmake --build $(BUILD) --parallel $(JOBS) --target trireme

demo: build
	@$(if $(CORPUS),,scripts/deps.sh demo || true)
	@CORPUS='$(CORPUS)' scripts/demo.sh $(BUILD)/trireme

# One test more at a time than there are cores: many mostly wait.
TESTS_AT_ONCE = $$(($(JOBS) + 1))

test:
	@scripts/deps.sh build $(filter mpich,$(PRESET))
	@scripts/deps.sh format || echo 'going on without clang-format'
	@bash tests/structure/format_test.sh
	@cmake --preset $(PRESET) $(CMAKE_ARGS)
	@cmake --build $(BUILD) --parallel $(JOBS)
	@if command -v mpicc.mpich mpiexec.mpich >/dev/null; then $(MAKE) --no-print-directory test-mpich; \
	  else echo 'MPICH is not installed (scripts/deps.sh mpich): make test-mpich is left out'; fi
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -j $(TESTS_AT_ONCE)

test-mpich: build
	@scripts/deps.sh mpich
	@cmake --preset mpich $(CMAKE_ARGS)
	@cmake --build build/mpich --parallel $(JOBS) --target trireme
	@bash tests/train/mpich.sh $(BUILD)/trireme build/mpich/trireme

# Slow sweeps belong to CTest's configuration "long" and run beside all others.
test-long: configure
	@cmake --build $(BUILD) --parallel $(JOBS)
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error -C long -j $(TESTS_AT_ONCE)

test-asan: deps
	@cmake --preset asan $(CMAKE_ARGS)
	@cmake --build build/asan --parallel $(JOBS)
	@ctest --test-dir build/asan --output-on-failure --no-tests=error -j $(TESTS_AT_ONCE)

test-slurm: build
	@if [ "$$(id -u)" -eq 0 ]; then scripts/deps.sh slurm; fi
	@tests/slurm/run.sh $(BUILD)/trireme $(CASES)

test-cuda: deps
	@cmake --preset cuda $(CMAKE_ARGS)
	@cmake --build build/cuda --parallel $(JOBS) --target trireme_test_cuda nccl_cuda layouts_cuda
	@build/cuda/tests/trireme_test_cuda --gtest_filter=none  # ends here without a GPU
	@ctest --test-dir build/cuda --output-on-failure --no-tests=error -L gpu

# SECONDS counts only where the user sets it: bash has a variable of that name.
FUZZ_SECONDS = $(if $(filter command line environment,$(origin SECONDS)),$(SECONDS),60)
fuzz: deps
	@scripts/deps.sh fuzz
	@cmake --preset fuzz $(CMAKE_ARGS)
	@cmake --build build/fuzz --parallel $(JOBS) --target fuzz_targets
	@scripts/fuzz.sh build/fuzz $(FUZZ_SECONDS) $(JOBS) $(TARGETS)

planted-bugs: deps
	@scripts/planted-bugs.sh

# Each source has a command of its own there.
lint: deps
	@scripts/deps.sh lint
	@cmake --preset $(PRESET) -B build/lint -DTRIREME_UNITY=OFF $(CMAKE_ARGS)
	@python3 scripts/lint.py build/lint

format:
	@scripts/deps.sh format
	@find include src tests bench examples -name '*.[ch]pp' -print0 | xargs -0 -r clang-format -i

docs: configure
	@scripts/deps.sh docs
	@cmake --build $(BUILD) --parallel $(JOBS) --target write_manual
	@$(BUILD)/write_manual configuration > $(BUILD)/configuration.md && mv $(BUILD)/configuration.md docs/
	@doxygen
	@echo 'API reference: build/docs/html/index.html'

bench: configure
	@cmake --build $(BUILD) --parallel $(JOBS)
	@PYTHON=$(PYTHON) scripts/bench.sh $(BUILD)

bench-layouts: build
	@bench/layouts.sh $(BUILD)/trireme $(JOBS)

bench-cuda: deps
	@cmake --preset cuda $(CMAKE_ARGS)
	@cmake --build build/cuda --parallel $(JOBS) --target trireme_bench_steps
	@rm -f build/cuda/bench/results.json
	@build/cuda/bench/trireme_bench_steps --results build/cuda/bench/results.json cuda; code=$$?; \
	  $(PYTHON) bench/peers/torch_steps.py build/cuda/bench/results.json && exit $$code

# MPI_ARCHIVE: a tar file of an Open MPI that reads GPU memory, to be packed too.
BUNDLE ?= .gpu
gpu-bundle: deps
	@cmake --preset cuda $(CMAKE_ARGS)
	@cmake --build build/cuda --parallel $(JOBS) --target trireme trireme_test_cuda nccl_cuda layouts_cuda trireme_bench_steps
	@MPI_ARCHIVE='$(MPI_ARCHIVE)' scripts/gpu-bundle.sh '$(BUNDLE)' build/cuda/trireme \
	  $$(ls build/cuda/tests/{trireme_test_cuda,nccl_cuda,layouts_cuda} 2>/dev/null) build/cuda/bench/trireme_bench_steps

reproduce-nanogpt: build
	@CORPUS='$(CORPUS)' scripts/reproduce-nanogpt.sh $(BUILD)/trireme

install: build
	@cmake --build $(BUILD) --parallel $(JOBS) --target trireme_manual
	@cmake --install $(BUILD) --prefix $(PREFIX)

# A Debian package, for CPUs.
package: deps
	@scripts/deps.sh package
	@cmake --preset package $(CMAKE_ARGS)
	@cmake --build build/package --parallel $(JOBS) --target trireme trireme_manual
	@scripts/package.sh

clean:
	rm -rf build
