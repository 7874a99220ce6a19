# The tasks of the project; `make help` lists them. Each installs what it needs first.
.DEFAULT_GOAL := help
.NOTPARALLEL:
SHELL := /bin/bash

JOBS ?= $(shell nproc)
CTEST_FLAGS ?= --output-on-failure
CXX_FILES = git ls-files --cached --others --exclude-standard -- '*.cc' '*.h' '*.cu' '*.cuh'
VENV_PYTHON := .cache/tandem/venv/bin/python

.PHONY: help deps build test demo format tidy bench bench-attention bench-host bench-neo reproduce asan tsan aarch64 e2e docs soak fuzz fuzz-api gpu clean

help: ## list the tasks
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

deps: ## install the Debian and Python packages that are missing
	@scripts/install_dependencies.sh

# $(call build_preset,PRESET): configures and builds build-PRESET (release: build).
define build_preset
	cmake --preset $(1) $(if $(VERBOSE),,--log-level=WARNING)
	cmake --build --preset $(1) --parallel $(JOBS)
endef

build: deps ## release build; the programs land in build/bin
	$(call build_preset,release)

test: build ## build and run every test that needs no GPU
	@scripts/get_demo_model.sh >/dev/null || echo "no demo model: the test of it will be skipped"
	ctest --preset release --parallel $(JOBS) $(CTEST_FLAGS)

e2e: build ## only the tests over the real three processes
	ctest --preset e2e $(CTEST_FLAGS)

asan: deps ## unit and component tests under AddressSanitizer and UndefinedBehaviorSanitizer
	$(call build_preset,asan)
	ctest --preset asan --parallel $(JOBS) $(CTEST_FLAGS)

tsan: deps ## unit and component tests under ThreadSanitizer
	$(call build_preset,tsan)
	ctest --preset tsan --parallel $(JOBS) $(CTEST_FLAGS)

soak: build ## random lives of the scheduler in simulated time, SOAK_RUNS of them (default 200000)
	TANDEM_RUNS=$(or $(SOAK_RUNS),200000) build/tests/engine_test --gtest_filter='EngineSoakTest.*'

aarch64: deps ## cross-build the attention kernels for 64-bit ARM and test them under qemu
	scripts/check_aarch64.sh $(JOBS)

fuzz: deps ## the fuzz targets with libFuzzer (clang), FUZZ_SECONDS each (default 60)
	scripts/run_fuzzers.sh $(or $(FUZZ_SECONDS),60)

fuzz-api: build ## schemathesis against a running router, from its /openapi.json (installs it; ARGS="--examples 200 --seed 1")
	python3 scripts/fuzz_api.py $(ARGS)

demo: build ## stream answers of a small model with its KV cache in both tiers
	@python3 scripts/demo.py --bin build/bin --model "$$(scripts/get_demo_model.sh)"

bench: build ## CPU attention, exchange and serving benchmarks, as tables
	build/bin/tandem bench attention --table
	build/bin/tandem bench exchange --table
	python3 scripts/bench.py --bin build/bin --model "$$(scripts/get_demo_model.sh)"

reproduce: build ## the NEO paper's figures by the simulator, tables and pages in build/reproduce
	python3 scripts/reproduce.py --bin build/bin --out build/reproduce

bench-neo: build ## what the CPU tier is worth beside an emulated T4, under NEO's workload (20 minutes, 13 GiB)
	python3 scripts/bench_neo.py --bin build/bin

bench-attention: build ## CPU attention over common shapes against the read limit (ARGS="--shapes ... --kv-dtypes ...")
	python3 scripts/bench_attention.py --bin build/bin $(ARGS)

bench-host: build ## serving on the CPU alone beside llama.cpp's server, and vLLM's CPU build where it is installed (ARGS="--generator aiperf ...")
	@test -x .cache/tandem/peers/llama/build/bin/llama-server || python3 scripts/bench_host.py --install llama --jobs $(JOBS)
	python3 scripts/bench_host.py --bin build/bin --model "$$(scripts/get_demo_model.sh)" $(ARGS)

gpu: build ## on a machine with an NVIDIA GPU: device and golden tests on it, compute-sanitizer, serving figures (10 minutes)
	tests/gpu/run

format: deps ## clang-format every C++ file in place
	$(CXX_FILES) | xargs clang-format -i

tidy: build ## the style and dependency rules, then clang-tidy (slow)
	ctest --preset tidy $(CTEST_FLAGS)
	scripts/run_clang_tidy.sh build $(JOBS)

docs: deps ## check that every link and path in the documentation resolves
	python3 tests/tidy/tidy.py --only docs

clean: ## remove all build folders
	rm -rf build build-*
