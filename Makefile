# Every way to build, try and prove packgate. `make` lists them.
.DEFAULT_GOAL := help
SHELL := /usr/bin/env bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules

CARGO ?= cargo
# CI keeps going after a failure to report all of them; at the desk the first one is enough.
NEXTEST_PROFILE := $(if $(CI),ci,default)
FUZZ_SECONDS ?= 60
export PATH := $(CURDIR)/.tools/bin:$(PATH):/usr/sbin:/sbin

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## a sample repository, served and gated, with the commands to try (unoptimised: it is there sooner)
	@tools/install build
	$(CARGO) run --locked --quiet -- demo

.PHONY: build
build: ## the optimised binary: target/release/packgate
	@tools/install build
	$(CARGO) build --release --locked

.PHONY: check
check: ## the quick inner loop: format, clippy, unit tests
	@tools/install build
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(call run-tests,-p packgate-classifier -p packgate-policy -p packgate)

.PHONY: test
test: ## everything: lint, unit tests, examples, real git against real servers
	@tools/install test
	$(MAKE) --no-print-directory lint
	$(CARGO) build --workspace --all-targets --locked
	$(CARGO) test --workspace --doc --locked --quiet
	$(MAKE) --no-print-directory image-root
	$(call run-tests,--workspace)

# An optimised build takes longer than one test may, so it is a step of its own; the test then finds it done.
.PHONY: image-root
image-root: ## what the Dockerfile puts into the image, made without an engine
	@tools/install build
	$(CARGO) run --locked --quiet -p packgate-integration-tests --example image_root

.PHONY: lint
lint: ## format, clippy, documentation, dependencies
	@tools/install lint
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --locked --document-private-items --quiet
	cargo-deny --log-level error check bans licenses sources

.PHONY: bench
bench: ## the figures: classifier, policy, telemetry, and packgate against a direct connection and nginx
	@tools/install test
	$(CARGO) bench --locked -p packgate-classifier -p packgate-policy
	$(CARGO) bench --locked -p packgate --bench metrics --bench simulate
	$(CARGO) build --release --locked
	PACKGATE_BIN=$(TARGET)/release/packgate $(CARGO) bench --locked -p packgate-integration-tests

# The pinned compiler has all that libFuzzer needs behind a switch, so no second toolchain is installed. Our crates forbid unsafe
# code, so there is nothing for an address sanitizer to watch.
.PHONY: fuzz
fuzz: ## each fuzz target for FUZZ_SECONDS, from the recorded requests on
	@tools/install fuzz
	$(CARGO) run --locked --quiet -p packgate-classifier --example fuzz_seeds -- classifier/fuzz/corpus proxy/fuzz/corpus
	@export RUSTC_BOOTSTRAP=1; for crate in classifier proxy; do cd "$(CURDIR)/$$crate"; \
	targets=$$($(CARGO) fuzz list); \
	for target in $$targets; do \
		echo "== $$crate: $$target"; \
		$(CARGO) fuzz run --sanitizer none "$$target" -- -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1; \
	done; done

.PHONY: docs
docs: ## the API documentation: target/doc/packgate/index.html
	@tools/install build
	$(CARGO) doc --workspace --no-deps --locked --document-private-items

TARGET = $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)

# cargo-nextest runs each test in a process of its own and reports better; plain cargo test runs the same tests.
define run-tests
if $(CARGO) nextest --version >/dev/null 2>&1; then \
	$(CARGO) nextest run --locked --profile $(NEXTEST_PROFILE) $(1); \
else \
	$(CARGO) test --locked $(if $(CI),--no-fail-fast) --all-targets $(1); \
fi
endef
