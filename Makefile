# Everyday commands; the build itself is CMakeLists.txt. `make help` lists them.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := release
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SOAK_SEEDS ?= 50000
GPT_MINUTES ?= 5
GPT_STEPS ?= 20000
TENON = build/release/tenon

.PHONY: help release debug demo demo-gpt check check-all check-python fuzz bench soak install format clean

help:
	@echo "make          release build: $(TENON), build/release/libtenon.so, build/release/examples/"
	@echo "make demo     set up, build, train the digits network, run it in all five modes, measure, explain"
	@echo "make demo-gpt train a GPT on the King James Bible for GPT_MINUTES=$(GPT_MINUTES) (again: goes on), write text with it"
	@echo "make check    set up, then the rules, all tests but rules/test_add_op, long ones with short campaigns, most under ASan + UBSan, too: 15 minutes on two cores"
	@echo "make check-all  everything that a merge must pass: whole campaigns, every code generator, every sanitizer: three times as long"
	@echo "make check-python  the Python package in a fresh virtual environment, beside PyTorch and ONNX Runtime where pip finds them"
	@echo "make debug    debug build with tests in build/debug"
	@echo "make fuzz     each fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS) under the sanitizers"
	@echo "make soak     the random-graph tests over SOAK_SEEDS=$(SOAK_SEEDS) fresh seeds; the functions over all 2^32 arguments"
	@echo "make bench    all measured tables (docs/bench.md), beside other programs where bench/rivals/setup has installed them"
	@echo "make install  into PREFIX=$(PREFIX) (DESTDIR is respected)"
	@echo "make format   clang-format over all C files"
	@echo "make clean    remove build/"

release debug:
	@cmake --preset $@ >/dev/null
	@cmake --build --preset $@

demo:
	scripts/setup demo
	@$(MAKE) release
	scripts/fetch-data
	build/release/examples/digits
	$(TENON) bench modes --depths 8 --sizes 16,64
	$(TENON) explain @digits

demo-gpt:
	scripts/setup demo
	@$(MAKE) release
	scripts/fetch-data kjv
	$(TENON) train-lm data/kjv.txt -o build/kjv --resume --steps $(GPT_STEPS) --minutes $(GPT_MINUTES) --svg build/kjv.svg
	$(TENON) generate build/kjv --prompt 'Ge1:1 In the beginning' --tokens 400

check:
	scripts/setup
	scripts/check

check-all:
	scripts/setup
	scripts/check all

check-python:
	scripts/check-python

fuzz:
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

soak:
	@cmake --preset check >/dev/null
	@cmake --build --preset check
	@TENON_FUZZ_SEEDS=$(SOAK_SEEDS) TENON_FUZZ_FIRST=$$(date +%s)000000 ctest --test-dir build/check -L random --timeout 86400 --output-on-failure
	build/check/tenon bench ulp --all

# With RIVALS empty (make bench RIVALS=) without the other programs; absent ones are named in the output. Single layers are
# measured beside libraries of kernels: a compiler of whole networks takes up to a minute for each of the hundred shapes.
RIVALS ?= --rivals
KERNEL_LIBRARIES = onednn,openblas,ort,openvino
KERNEL_RIVALS ?= $(if $(RIVALS),$(RIVALS) --rivals-only $(KERNEL_LIBRARIES))
BENCH_OUT = build/bench
BENCH = $(TENON) bench
bench: release
	@mkdir -p $(BENCH_OUT)
	$(BENCH) machine
	$(BENCH) modes --sizes 16,64,256,1024 --modes graph,compiled,loop --cache on --fusion 1,2,3 --threads 1 $(RIVALS) --csv $(BENCH_OUT)/modes1.csv --svg $(BENCH_OUT)/modes1.svg
	$(BENCH) modes --sizes 16,64,256,1024 --modes graph,compiled,loop --cache on --fusion 1,2,3 --batch 1 --threads 1 $(RIVALS) --csv $(BENCH_OUT)/batch1.csv --svg $(BENCH_OUT)/batch1.svg
	$(BENCH) modes --sizes 16,64,256,1024 --modes graph,compiled,loop --cache on --fusion 1,2,3 $(RIVALS) --csv $(BENCH_OUT)/modes.csv --svg $(BENCH_OUT)/modes.svg
	$(BENCH) modes --sizes 16,64,256,1024 --modes graph,compiled,loop --cache on --fusion 1,2,3 --batch 1 $(RIVALS) --csv $(BENCH_OUT)/batch.csv --svg $(BENCH_OUT)/batch.svg
	$(BENCH) modes --sizes 16,256 --csv $(BENCH_OUT)/naive.csv
	for k in gemm conv rows; do $(BENCH) $$k $(KERNEL_RIVALS) --csv $(BENCH_OUT)/$$k.csv --svg $(BENCH_OUT)/$$k.svg || exit 1; done
	for t in bf16 i8; do $(BENCH) gemm --dtype $$t --csv $(BENCH_OUT)/gemm_$$t.csv --svg $(BENCH_OUT)/gemm_$$t.svg || exit 1; done
	for k in train compile contention; do $(BENCH) $$k $(RIVALS) --csv $(BENCH_OUT)/$$k.csv --svg $(BENCH_OUT)/$$k.svg || exit 1; done
	for k in matmul relu softmax fused; do $(BENCH) ladder $$k --csv $(BENCH_OUT)/ladder_$$k.csv --svg $(BENCH_OUT)/ladder_$$k.svg || exit 1; done
	for k in write-vs-move dot-sum-dot; do $(BENCH) exp $$k --csv $(BENCH_OUT)/$$k.csv --svg $(BENCH_OUT)/$$k.svg || exit 1; done
	$(BENCH) ulp --csv $(BENCH_OUT)/ulp.csv
	$(BENCH) memory --csv $(BENCH_OUT)/memory.csv --svg $(BENCH_OUT)/memory.svg

install:
	@cmake --preset release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build --preset release
	cmake --install build/release

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build
