# Two commands matter: `make serve` and `make test`.

BIN := bin/bulkhead
GO ?= go

.PHONY: serve build test check race fuzz lint setup bench prove clean
.DEFAULT_GOAL := build

# Build, then serve two tenants from separate prefill and decode workers. MODEL=smollm2:135m serves a real model.
serve: build
	@exec $(BIN) serve $(MODEL)

build:
	@mkdir -p bin
	$(GO) build -o $(BIN) ./cmd/bulkhead

# Everything that the tests need, then all of them.
test: setup
	@scripts/test all

# The tests that need nothing but Go.
check:
	@scripts/test go

race:
	@scripts/test race

fuzz:
	@scripts/test fuzz

lint:
	@scripts/test lint

setup:
	@scripts/setup

bench: setup build
	@scripts/bench

# The proof of the transfer, by Coq, z3 and cvc5, which it installs; then every state of the nightly worlds, in half an hour.
prove: build
	@scripts/setup proof
	@formal/check --full
	@$(BIN) check --nightly

clean:
	rm -rf bin .cache
