# The everyday commands. CMake does the work (CMakePresets.json); this file installs what is
# missing, configures once and calls ninja, so that each command works on a fresh clone and costs
# nothing extra on a built one.

BUILD ?= build
ARGS ?=
CLANG_FORMAT ?= clang-format-14
# One compiler per core, and at least 1.5 GiB of free memory for each.
JOBS ?= $(shell awk -v cores=$$(nproc) '/^MemAvailable/ { n = int($$2 / 1572864); if (n > cores) n = cores; print (n < 1 ? 1 : n) }' /proc/meminfo)

# ThreadSanitizer of g++ 12 needs less address space randomisation than recent kernels use.
NO_ASLR = $(shell setarch $$(uname -m) -R true 2>/dev/null && echo setarch $$(uname -m) -R)

empty :=
space := $(empty) $(empty)
NINJA = ninja -j$(JOBS) -C
# Finished, total, and elapsed seconds: on a terminal one line that is updated in place.
export NINJA_STATUS = [%f/%t, %e s]$(space)

.PHONY: help deps run build cuda gpu-build gpu-check gpu-sanitize test bench asan tsan mutants chaos speculation gpu-speculation planner-follows clients loadgen-speed fuzz bundle container-check docs format tidy check layers text format-check ci clean

help:
	@echo 'make run         build and start router, prefill and decode worker with the built-in model'
	@echo 'make test        build everything and run all tests'
	@echo 'make cuda        build the server for GPUs, in build-cuda/; wants nvcc, and no GPU'
	@echo 'make bench       build and run the benchmarks'
	@echo 'make asan        all tests under AddressSanitizer and UndefinedBehaviorSanitizer'
	@echo 'make tsan        the tests without gRPC under ThreadSanitizer'
	@echo 'make sim-10000   ten thousand seeds of the cluster simulation; or any number'
	@echo 'make mutants     promises broken one at a time: the simulation must notice each'
	@echo 'make chaos       thousands of requests while workers are killed and stopped, and beside hostile clients'
	@echo '                 CHAOS=ChaosHostile.* runs a part of it'
	@echo 'make speculation 500 random requests with each way to propose tokens: the same answers as without'
	@echo 'make clients     every client of docs/clients.md; GuideLLM brings 6 GB of packages'
	@echo 'make loadgen-speed  what the load client itself can do, against its replay server'
	@echo 'make planner-follows  the planner on a real cluster whose load changes; wants a quiet machine'
	@echo 'make fuzz        every fuzzer, or NAMES=..., for SECONDS=600 under AddressSanitizer'
	@echo 'make gpu-check   on a GPU: its tests, the sanitizers, the benchmarks'
	@echo 'make gpu-sanitize  on a GPU: compute-sanitizer over the kernels (ARGS=...)'
	@echo 'make gpu-speculation  on a GPU: as make speculation, in f32'
	@echo 'make bundle      a tarball that runs elsewhere: build/aisp-bundle.tar.gz'
	@echo 'make docs        write the pages that are made from the program (docs/config.md, parts of deploy/)'
	@echo 'make container-check  runs that tarball as its container image would, in a fresh Debian root'
	@echo 'make format      format all sources          make tidy   lint all sources'
	@echo 'make check       layers, sizes and formatting make ci     what CI runs'

deps:
	@tools/install_deps.sh

$(BUILD)/build.ninja:
	@tools/install_deps.sh
	@cmake --preset cpu -B $(BUILD)

# The built-in model drafts with the small model beside it, unless ARGS name another model or way.
DRAFTS = $(if $(filter --model% --config% --speculative-config%,$(ARGS)),,--speculative-config \
  '{"method": "draft_model", "model": "story-draft-1m"}')
run: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) aisp
	@exec $(BUILD)/bin/aisp up --demo $(DRAFTS) $(ARGS)

build: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD)

test: build
	@ctest --test-dir $(BUILD) --output-on-failure -j$(JOBS)

asan: deps
	@test -e build-asan/build.ninja || cmake --preset asan
	@$(NINJA) build-asan
	@ctest --test-dir build-asan --output-on-failure -j$(JOBS)

tsan: deps
	@test -e build-tsan/build.ninja || cmake --preset tsan
	@$(NINJA) build-tsan
	@$(NO_ASLR) ctest --test-dir build-tsan --output-on-failure -j$(JOBS)

docs: $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp_settings_page
	@$(BUILD)/bin/aisp_settings_page > docs/config.md
	@tools/render_deploy.py
	@tools/dashboards.py

# Each benchmark prints its own lines; docs/performance.md describes machine and method.
bench: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) bench

loadgen-speed: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp-loadgen
	@tools/loadgen_speed.sh $(BUILD)/bin/aisp-loadgen

sim-%: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp_sim
	@$(BUILD)/bin/aisp_sim --seeds=1..$* --jobs=$(JOBS)

mutants: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp_sim
	@tests/sim/mutants.py --build $(BUILD) --jobs $(JOBS) $(NAMES)

CHAOS ?= *
chaos: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp_chaos
	@$(BUILD)/bin/aisp_chaos --gtest_filter='$(CHAOS)'

speculation: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp_lossless
	@AISP_SPECULATION_REQUESTS=500 $(BUILD)/bin/aisp_lossless

clients: deps $(BUILD)/build.ninja
	@$(NINJA) $(BUILD) --quiet aisp
	@cd $(BUILD) && ctest -L clients --output-on-failure
	@AISP_INSTALL_LIMIT_S=900 python3 tests/e2e/python_test.py guidellm_client_test.py $(abspath $(BUILD))/bin/aisp \
	  $(abspath $(BUILD))/tests/venv-guidellm requirements-guidellm.txt

# build-cuda/bin/aisp with the CUDA backend (lib/libaisp_cuda.so) and the module of `aisp bench
# kernels`; needs nvcc, but no GPU.
cuda: deps
	@test -e build-cuda/build.ninja || cmake --preset cuda
	@$(NINJA) build-cuda cuda aisp

gpu-build: deps
	@test -e build-cuda/build.ninja || cmake --preset cuda
	@$(NINJA) build-cuda --quiet aisp cuda kernels_cuda_test kernels_cuda_linear_test kernels_cuda_attention_test kvcache_transport_test

# A process for each of the nine methods, four at a time.
gpu-speculation: deps
	@test -e build-cuda/build.ninja || cmake --preset cuda
	@$(NINJA) build-cuda --quiet aisp aisp_cuda aisp_lossless
	@seq 0 8 | GTEST_TOTAL_SHARDS=9 AISP_SPECULATION_REQUESTS=500 xargs -P 4 -I{} \
	  env GTEST_SHARD_INDEX={} build-cuda/bin/aisp_lossless --gtest_brief=1 --gtest_filter='GpuSpeculation/*'

gpu-check: gpu-build
	@tools/gpu_check.sh $(ARGS)

gpu-sanitize: gpu-build
	@tools/gpu_sanitize.sh $(ARGS)

# CUDA=1: with the CUDA backend and the GPU tests; needs nvcc, but no GPU.
bundle: deps
ifeq ($(CUDA),1)
	@test -e build-cuda/build.ninja || cmake --preset cuda
	@$(NINJA) build-cuda --quiet all cuda
	@tools/bundle.sh build-cuda build/aisp-bundle-cuda.tar.gz --tests
else
	@test -e $(BUILD)/build.ninja || cmake --preset cpu -B $(BUILD)
	@$(NINJA) $(BUILD) --quiet bundled
	@tools/bundle.sh $(BUILD) build/aisp-bundle.tar.gz
endif

planner-follows: build
	@build/tests/e2e_test --gtest_also_run_disabled_tests --gtest_filter='Planner.*Follows*'

# Needs root, and mmdebstrap for the root file system; CI runs the same in a minimal root.
container-check: bundle
	@tools/install_deps.sh --container
	@tools/container_check.py build/aisp-bundle.tar.gz --debian

SECONDS ?= 600
fuzz:
	@tools/install_deps.sh --fuzz
	@test -e build-fuzz/build.ninja || cmake --preset fuzz
	@$(NINJA) build-fuzz --quiet fuzz
	@tools/fuzz.sh build-fuzz $(SECONDS) $(JOBS) $(NAMES)

format:
	@git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 $(CLANG_FORMAT) -i

format-check:
	@git ls-files -z '*.h' '*.cc' '*.cu' '*.cuh' | xargs -0 $(CLANG_FORMAT) --dry-run -Werror

layers:
	@tools/check_layers.py

text:
	@tools/check_text.py

check: layers text format-check

tidy: build
	@git ls-files '*.cc' | tools/tidy.sh $(BUILD) $(JOBS)

ci:
	@.ci/run

clean:
	@rm -rf build build-ci build-asan build-tsan build-cuda build-fuzz
