# Berth. `make help` lists what there is; `make up` and `make test` are all that a newcomer needs.

SHELL      := /bin/bash
BIN        := $(CURDIR)/bin
VERSION    ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
# The version that Kubernetes' own libraries report. go.mod is its one place.
KUBERNETES := v1$(shell sed -n 's|^\tk8s.io/client-go v0||p' go.mod)
K8SVERSION := k8s.io/component-base/version
LDFLAGS    := -s -w -X main.version=$(VERSION) -X $(K8SVERSION).gitVersion=$(KUBERNETES) -X $(K8SVERSION).gitMajor=1 -X $(K8SVERSION).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES)))
# Modules are taken as they are: a missing line in go.mod is an error, not a download.
# Nothing that is compiled depends on where the tree is: a second clone need not compile it again.
# Compilers and linkers are short programs: they collect garbage only from a gigabyte on, and write
# nothing for debuggers, which no binary here keeps. A first build takes a fifth less of the processor.
export GOFLAGS := -mod=readonly -buildvcs=false -trimpath -gcflags=all=-dwarf=false '-toolexec=env GOGC=off GOMEMLIMIT=1GiB'
# Static binaries, which run in an image with nothing else; and what tests compile, binaries need not compile again.
export CGO_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help api up demo build-node test test-long test-root test-fuzz race test-upstream golangci nightly nightly-tenants mutants lint english vulncheck bench bench-places bench-live bench-scale integration bench-upstream bench-eviction bench-moves bench-guard bench-karpenter bench-kueue soak specs node-conformance versions upgrade image deploy undeploy real-nodes release pictures build clean

help: ## list these targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

up: build ## a whole cluster in the foreground; Ctrl-C ends it
	$(BIN)/berth up

demo: build ## a walk through taints, eviction, overhead and priorities on a cluster of its own
	@examples/demo/demo.sh

build: ## bin/berth, bin/berth-scheduler and bin/berth-controlplane (the first time: about ten minutes on two cores, Kubernetes is compiled once)
	@echo "==> building berth, and the scheduler alone"
	@hack/compile.sh -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/berth ./cmd/berth-scheduler
	@echo "==> building berth-controlplane: the API server, etcd and the workload controllers"
	@cd controlplane && ../hack/compile.sh -ldflags '$(LDFLAGS)' -o $(BIN)/berth-controlplane ./cmd/berth-controlplane

build-node: ## bin/kubelet: upstream's, for `berth up --agent` and `berth agent` (Linux)
	@echo "==> building the kubelet"
	@cd controlplane && ../hack/compile.sh -ldflags '$(LDFLAGS)' -o $(BIN)/kubelet k8s.io/kubernetes/cmd/kubelet

# Live tests wait more than they compute: they run beside each other, and the cores beside them.
ALLTESTS := cd test && go run ./cmd/alltests -root .. -fuzztime

test: ## the tests of all modules without the slowest live ones; at the end the slowest and how long each part took (BERTH_INSTALL=no: nothing is installed with apt-get)
	@hack/announce.sh
	@$(ALLTESTS) $(FUZZTIME)

test-root: ## the cores, the shells and the commands alone: no cluster is started
	@$(ALLTESTS) $(FUZZTIME) cores

test-long: ## the live tests, with the slowest ones, which make test leaves out
	@hack/announce.sh
	@$(ALLTESTS) 1x -long build live

# Every fuzzer for a moment, on top of its corpus, which test-root has run.
FUZZTIME ?= 1000x
test-fuzz: ## the fuzzers
	@$(ALLTESTS) $(FUZZTIME) fuzz

test-upstream: ## upstream's code and live clusters
	@$(ALLTESTS) $(FUZZTIME) build controlplane live

race: ## the cores, the shells and what packs under the race detector (needs a C compiler)
	@echo "==> the race detector"
	@CGO_ENABLED=1 go test -race -short -timeout 1h $$(go list ./... | grep -v -e /internal/containerd -e /internal/layout)
	@cd deploy/pack && CGO_ENABLED=1 go test -race -short ./...

golangci: ## golangci-lint by .golangci.yaml, in all modules (the first time: it is compiled, about a minute)
	@found=0; for module in . controlplane integrations test test/specs test/karpenter deploy/pack; do echo "==> golangci-lint: $$module"; \
		(cd $$module && go tool -modfile=$(CURDIR)/hack/golangci/go.mod golangci-lint run -c $(CURDIR)/.golangci.yaml ./...) || found=1; done; exit $$found

# How much of what a nightly run plays, in per cent: SCALE=1 shows that every line works.
SCALE ?= 100
nightly: golangci ## what is too slow for every change: golangci-lint in all modules, the race detector, long random tests (SCALE=1: a hundredth)
	@echo "==> random sequences, chaos and clusters: $(SCALE) %"
	@go test ./internal/engine/decide -run 'TestFastWay' -sequences=$(SCALE)000 -timeout 2h
	@go test ./internal/engine/cycle -run 'TestChaos|TestChurn|TestNoVictim' -chaos $(SCALE)000 -gang-chaos $$((60 * $(SCALE))) \
		-tree-chaos $$((60 * $(SCALE))) -churn $(SCALE)000 -device-runs $(SCALE) -timeout 2h
	@go test ./internal/engine/cycle -run 'TestARestart' -restarts $$((200 * $(SCALE))) -timeout 2h
	@go test ./internal/engine/cycle -run 'TestSmallWorlds|TestVictimsOfA|TestAShadowOfItself|TestLongSelectors' \
		-small-worlds $$((40 + 20 * $(SCALE))) -shadowseeds $$((10 * $(SCALE))) -long-selectors 50 -timeout 2h
	@go test ./cmd/berth -run 'TestCommandsEnd' -tenants $$((3 + $(SCALE) / 10)) -every-command -timeout 2h
	@go test ./internal/scheduler/runner -run 'TestNoPodSleeps|TestChaos' -wake $$((50 * $(SCALE))) -chaos $$((15 + 2 * $(SCALE))) -timeout 2h
	@go test ./internal/inspect/provision -run 'TestSpotKeeps|TestRepacked|TestReplacedNodes' -spot-worlds 40 -clusters $$((4 + $(SCALE) / 5)) -timeout 2h
	@go test ./internal/inspect/provision/packing -problems $$((30 + 5 * $(SCALE))) -timeout 2h
	@go test ./internal/controller/eviction -eviction.seeds $(SCALE)000 -timeout 2h
	@go test ./internal/controller/rebalance -run 'Random|Chaos|TestGuardedLives' -worlds $(SCALE)000 -guard-lives $(SCALE)00 -timeout 2h
	@cd test && go test ./conformance -clusters=$$((200 * $(SCALE))) -gangs=$$((40 + 4 * $(SCALE))) -timeout 2h
	@cd test && go test ./nodeparity -worlds=$(SCALE)0000 -timeout 2h
	@cd test && go test ./lifecycle -lives=$$((50 * $(SCALE))) -timeout 2h
	@cd test && go test ./pluginparity -run 'TestPluginsFareTheSame' -worlds=$$((50 + 10 * $(SCALE))) -timeout 2h
	@cd test && go test ./advice -towns=$$((50 + 10 * $(SCALE))) -timeout 2h
	@cd test && go test ./e2e_explain -run 'ComeTrue|TestAdviceHelpsInRandomClusters' -drains=$$((10 + 2 * $(SCALE))) \
		-operations=$$((10 + $(SCALE))) -advised=$$((1 + $(SCALE) / 10)) -timeout 2h
	@cd controlplane && go test ./cmd/berth-controlplane -run 'TestKilled' -kills=$$((10 + $(SCALE) / 2)) -timeout 1h
	@cd test/karpenter && go test ./...
	@cd test && go test ./e2e_module -build -timeout 1h
	@$(ALLTESTS) $$((200 * $(SCALE)))x -wide fuzz
	@$(MAKE) race
	@$(MAKE) --no-print-directory mutants

mutants: ## which faults the tests of the pure cores detect: mutations, one at a time (about half an hour)
	@echo "==> mutations of the pure cores"
	@cd test && go run ./cmd/mutants -root ..

nightly-tenants: ## what hostile tenants store, for hours (SCALE=1: a hundredth)
	@go test ./internal/engine/cycle -run 'TestWhateverATenantStores' -tenants $(SCALE)000 -timeout 6h

lint: ## gofmt, go vet, staticcheck, actionlint over the workflows, and make english
	@echo "==> checking format"
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not formatted (gofmt -w):"; echo "$$out"; exit 1; fi
	@echo "==> go vet"
	@go vet ./...
	@cd controlplane && go vet ./...
	@cd integrations && go vet ./...
	@cd test && go vet ./...
	@cd deploy/pack && go vet ./...
	@echo "==> staticcheck"
	@go tool -modfile=hack/tools/go.mod staticcheck ./...
	@echo "==> actionlint"
	@go tool -modfile=hack/tools/go.mod actionlint
	@$(MAKE) --no-print-directory english

english: ## the English of comments, docs and help texts, by Vale (the first time: it is compiled, about a minute; VALEFLAGS=--minAlertLevel=suggestion lists more)
	@echo "==> vale"
	@hack/vale/lint.sh $(VALEFLAGS)

vulncheck: ## known vulnerabilities in code that the programs reach, by govulncheck (reads vuln.go.dev)
	@found=0; for module in . controlplane integrations deploy/pack; do echo "==> govulncheck: $$module"; \
		(cd $$module && go tool -modfile=$(CURDIR)/hack/tools/go.mod govulncheck ./...) || found=1; done; exit $$found

api: ## the Go code and the OpenAPI document of the protobuf definitions; needs no protoc
	@cd hack/proto && go run . ../../api berth/v1alpha1/query.proto
	@cd hack/proto && go run . ../../integrations grpcplugin/expander.proto

bench: ## upstream's scheduling core and Berth's side by side
	@cd test && go run ./cmd/bench

bench-places: $(if $(LIVE),build) ## how much work a GPU cluster takes, by policy (TRACE=DIR, OUT=DIR to keep the placements, BENCHFLAGS='-mixes default'; LIVE=1: with claims on berth up)
	@cd test && go run ./cmd/benchplaces $(if $(LIVE),-live "$(BIN)") $(if $(TRACE),-trace "$(abspath $(TRACE))") $(if $(OUT),-out "$(abspath $(OUT))") $(BENCHFLAGS)

bench-live: build ## kube-scheduler and Berth against a real API server and etcd, in turn: about 15 minutes
	@echo "==> building etcd, kube-apiserver and kube-scheduler"
	@cd test && go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/benchlive ./cmd/benchlive/etcd k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kube-scheduler
	@$(BIN)/benchlive -bin $(BIN) $(BENCHFLAGS)

NODES ?= 10000
PODS  ?= 20000
bench-scale: build ## berth scheduler with up to a million nodes, against a stub API server (NODES=1000000 PODS=100000: about 10 minutes and 5 GB)
	@cd test && go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/benchscale ./cmd/stubapi
	@$(BIN)/benchscale -bin $(BIN) -nodes $(NODES) -pods $(PODS) $(BENCHFLAGS)

integration: ## upstream's own integration tests of scheduling with Berth in place: about half an hour (INTEGRATIONFLAGS='-packages node -upstream')
	@cd test && go run ./cmd/integration $(INTEGRATIONFLAGS)

bench-upstream: ## upstream's scheduler_perf, its workloads as they are, with kube-scheduler and with Berth: about an hour (BENCHFLAGS='-times 1')
	@cd test && go run ./cmd/benchupstream $(BENCHFLAGS)

bench-eviction: ## kube-controller-manager's taint eviction and Berth's on the same cluster, in turn: about 8 minutes
	@cd test && go run ./cmd/evictions $(BENCHFLAGS)

bench-moves: ## plans of berth rebalance on 5,000 nodes, and drains and rolls by kubectl and by Berth (BENCHFLAGS='-parts drain -short')
	@cd test && go run ./cmd/moves $(BENCHFLAGS)

bench-guard: build ## nodes emptied by kubectl drain, Karpenter and the descheduler, with and without the eviction guard: builds them, then about an hour (BENCHFLAGS='-nodes 20 -pods 600')
	@echo "==> building kube-scheduler, Karpenter, kwok and the descheduler"
	@cd test && go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/guardbench k8s.io/kubernetes/cmd/kube-scheduler
	@hack/peers.sh $(BIN)
	@$(BIN)/guardbench -bin $(BIN) $(BENCHFLAGS)

bench-karpenter: build ## what berth and Karpenter's own scheduler launch for the pods of Karpenter's benchmark, in one run: cost, nodes, seconds (BENCHFLAGS='-pods 20000 -times 1')
	@cd test/karpenter && go run . -pods 1000,5000,20000 -beside $(BIN)/berth $(BENCHFLAGS)

bench-kueue: build ## jobs of an unmodified Kueue without and with berth-kueue: builds both, then about 15 minutes, as root (BENCHFLAGS='-nodes 20 -jobs 30 -most 16')
	@echo "==> building Kueue and berth-kueue"
	@cd test && go build -ldflags '$(LDFLAGS)' -o $(BIN)/ ./cmd/kueuebench
	@hack/kueue.sh $(BIN)
	@$(BIN)/kueuebench -bin $(BIN) $(BENCHFLAGS)

soak: build ## an hour of everything that can go wrong, on a cluster of its own (SOAKFLAGS='--for 10m --seed 7')
	@cd test && go build -o $(BIN)/soak ./cmd/soak
	@$(BIN)/soak --bin $(BIN) $(SOAKFLAGS)

specs: build ## upstream's own end-to-end specs on a cluster of their own: about an hour
	@cd test/specs && go test -c -o $(BIN)/specs.test .
	@$(BIN)/specs.test -berth-bin $(BIN) $(SPECFLAGS)

node-conformance: build build-node ## upstream's NodeConformance specs on the node of berth up --agent, as root with containerd (SPECFLAGS='-berth-procs 8')
	@echo "==> building the programs of upstream's images, ginkgo and the specs"
	@cd test/specs && go build -ldflags '-s -w' -o $(BIN)/ k8s.io/kubernetes/test/images/agnhost k8s.io/kubernetes/test/images/nonewprivs github.com/onsi/ginkgo/v2/ginkgo
	@cd test/specs && go test -c -o $(BIN)/specs.test .
	@$(BIN)/specs.test -berth-agent -berth-bin $(BIN) $(SPECFLAGS)

real-nodes: build build-node ## Berth on four real nodes in namespaces of this machine, as root: installed as documented, then nodes fail (REALFLAGS='-times 3 -table FILE')
	@echo "==> building kube-scheduler, kube-controller-manager, kube-proxy, a registry and a DRA driver"
	@cd test && go build -ldflags '-s -w' -o $(BIN)/ k8s.io/kubernetes/cmd/kube-scheduler k8s.io/kubernetes/cmd/kube-controller-manager
	@cd test/specs && go build -ldflags '-s -w' -o $(BIN)/ k8s.io/kubernetes/cmd/kube-proxy
	@cd deploy/pack && go build -ldflags '-s -w' -o $(BIN)/ github.com/google/go-containerregistry/cmd/registry helm.sh/helm/v4/cmd/helm
	@go build -modfile=hack/dradriver/go.mod -ldflags '-s -w' -o $(BIN)/ sigs.k8s.io/dra-example-driver/cmd/dra-example-kubeletplugin
	@cd test && BERTH_BIN=$(BIN) go test ./e2e_real -count=1 -timeout 3h -v -real $(REALFLAGS)

versions: build ## Berth on unmodified API servers of the last three minors: compiles them (the first time: about half an hour)
	@cd test && BERTH_BIN=$(BIN) go test ./versions -run 'TestVersions|TestShadow' -count=1 -timeout 2h -v -versions 1.35,1.36,1.37 $(VERSIONSFLAGS)

upgrade: build ## another version replaced by this one under load, and back: builds it, then about 10 minutes (OLD=REVISION, or a folder of its programs)
	@test -n '$(OLD)' || { echo "make upgrade: name the other version: OLD=REVISION, or a folder of its programs"; exit 2; }
	@cd test && BERTH_BIN=$(BIN) go test ./upgrade -count=1 -timeout 2h -v -old '$(OLD)'
	@cd test && BERTH_BIN=$(BIN) go test ./soak -run 'TestUpgrade' -count=1 -timeout 2h -v -old '$(OLD)' $(UPGRADEFLAGS)

image: ## the image as an OCI tar file, without Docker; make image IMG=REGISTRY/berth:v1 also pushes it (IMAGEFLAGS='-arch amd64,arm64')
	@cd deploy/pack && go run ./cmd/image -root ../.. -o ../../berth-image.tar $(if $(IMG),-image '$(IMG)' -push) $(IMAGEFLAGS)

deploy: ## Berth into the cluster of the kubeconfig, from your image: make deploy IMG=REGISTRY/berth:v1 (OVERLAY=replace-default COMPONENTS='webhook ui')
	@IMG='$(IMG)' OVERLAY='$(OVERLAY)' COMPONENTS='$(COMPONENTS)' hack/deploy.sh apply

undeploy: ## remove what make deploy installed
	@hack/deploy.sh delete

release: ## what a release has, into dist/VERSION (make release VERSION=v0.1.0 RELEASEFLAGS='-repository REGISTRY/berth -key key.pem')
	@cd deploy/pack && go run ./cmd/release -root ../.. -version '$(VERSION)' -o ../../dist/$(VERSION) $(RELEASEFLAGS)

pictures: build ## the pictures of the dashboard in README and docs, from a real run
	@cd test && go run ./cmd/pictures -bin $(BIN) -out $(CURDIR)/docs/pictures

clean: ## remove what was built and the data of `make up`
	rm -rf $(BIN) dist .berth
