# Everyday commands; the build itself is CMakeLists.txt. `make help` lists them.
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := release
PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60
SOAK_SEEDS ?= 50000
TENON = build/release/tenon

.PHONY: help release debug demo check fuzz bench soak install format clean

help:
	@echo "make          release build: $(TENON), build/release/libtenon.so, build/release/examples/"
	@echo "make demo     set up, build, train the digits network, run it in all five modes, measure, explain"
	@echo "make check    set up, then every test, sanitizer and rule of the repository"
	@echo "make debug    debug build with tests in build/debug"
	@echo "make fuzz     each fuzz target for FUZZ_SECONDS=$(FUZZ_SECONDS) under the sanitizers"
	@echo "make soak     the random-graph tests over SOAK_SEEDS=$(SOAK_SEEDS) fresh seeds"
	@echo "make bench    the measured tables: five modes, and the ladders of matmul, relu, softmax and the fused layer"
	@echo "make install  into PREFIX=$(PREFIX) (DESTDIR is respected)"
	@echo "make format   clang-format over all C files"
	@echo "make clean    remove build/"

release debug:
	@cmake --preset $@ >/dev/null
	@cmake --build --preset $@

demo:
	scripts/setup
	@$(MAKE) release
	scripts/fetch-data
	build/release/examples/digits
	$(TENON) bench modes --depths 8 --sizes 16,64
	$(TENON) explain @digits

check:
	scripts/setup
	scripts/check

fuzz:
	@cmake --preset fuzz >/dev/null
	@cmake --build --preset fuzz
	@FUZZ_SECONDS=$(FUZZ_SECONDS) scripts/fuzz

soak:
	@cmake --preset check >/dev/null
	@cmake --build --preset check
	@TENON_FUZZ_SEEDS=$(SOAK_SEEDS) TENON_FUZZ_FIRST=$$(date +%s)000000 ctest --test-dir build/check -L random --timeout 86400 --output-on-failure

bench: release
	$(TENON) bench modes
	$(TENON) bench ladder matmul
	$(TENON) bench ladder relu
	$(TENON) bench ladder softmax
	$(TENON) bench ladder fused

install:
	@cmake --preset release -DCMAKE_INSTALL_PREFIX=$(PREFIX) >/dev/null
	@cmake --build --preset release
	cmake --install build/release

format:
	git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build
