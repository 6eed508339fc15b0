# penstock: the commands of a contributor. They need Go and make; what else a
# target needs it installs into the module cache or bin/, or says what is
# missing. Everything runs offline once the modules are downloaded.

GO      ?= go
RACE    ?= true
FOR     ?= 15s
CRASHES ?= 5
KILLS   ?= 400
SEEDS   ?= 20
FUZZ    ?= 10s
BENCH   ?= # --quick shows whether bench-docs runs
MODEL   ?= 10m

TOOL := GOWORK=off GOFLAGS=-buildvcs=false $(GO) -C tools run

.DEFAULT_GOAL := help
.PHONY: help build check test fuzz model prove planted slowgroup crash bench bench-docs clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## build bin/penstock
	$(GO) -C cmd/penstock build -trimpath -o ../../bin/ .

check: ## formatting, vet, staticcheck: a minute or two, less for what has not changed
	$(TOOL) ./cmd/check format vet lint

test: ## everything that must be green: check, all platforms, every test of every module with the race detector
	$(TOOL) ./cmd/check
	$(TOOL) ./cmd/gotest -race=$(RACE)

fuzz: ## every fuzz target for FUZZ=10s each
	$(TOOL) ./cmd/fuzz -time $(FUZZ)

model: ## the models of a topic against random operations, MODEL=10m for each kind of storage
	PENSTOCK_MODEL=$(MODEL) $(GO) test -count=1 -timeout 0 -run FollowsTheModel -v ./queue -rapid.steps=60

prove: ## every attack on a claim, one line of JSON each
	$(TOOL) ./cmd/prove

planted: ## every planted fault must turn a named test red, one line of JSON each
	$(TOOL) ./cmd/planted

slowgroup: ## 1,000,000 paced events, 8 groups, one of them 100 times slower: latency of the others and memory, one line of JSON
	$(TOOL) ./cmd/slowgroup

crash: build ## a process that appends to a log, killed KILLS=400 times for each of three ways to write; then the demo under kill -9, SEEDS=20 times, FOR=15s each with CRASHES=5
	PENSTOCK_KILLS=$(KILLS) $(GO) test -count=1 -timeout 0 -run Kill9 -v ./segfile
	$(TOOL) ./cmd/crash -binary ../bin/penstock -for $(FOR) -crashes $(CRASHES) -seeds $(SEEDS)

BENCHED = queue stage log stream

bench: build ## the benchmark rows of all parts; bench-docs writes docs/bench.md
	bin/penstock bench $(BENCHED) --json

bench-docs: build ## measure all parts and their peers on an idle machine (10 minutes), and write docs/bench.md
	for part in $(BENCHED); do bin/penstock bench $$part --json $(BENCH) >bin/$$part.json || exit 1; done
	GOFLAGS=-buildvcs=false $(GO) -C bench run -tags jetstream . --json $(BENCH) >bin/peers.json
	mkdir -p docs/bench
	cp $(BENCHED:%=bin/%.json) bin/peers.json docs/bench/
	$(TOOL) ./cmd/benchdoc

clean: ## remove bin/
	rm -rf bin
