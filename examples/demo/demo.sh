#!/usr/bin/env bash
# A walk through Berth on a cluster of its own: `make demo`. Everything is real but the nodes; it takes about a minute, and cleans up
# behind itself.
set -euo pipefail
cd "$(dirname "$0")/../.."

data=$(mktemp -d)
export BERTH_DATA_DIR=$data/cluster
bin/berth up --data-dir "$BERTH_DATA_DIR" >"$data/up.log" 2>&1 &
up=$!
trap 'kill -INT "$up" 2>/dev/null || true; wait "$up" 2>/dev/null || true; rm -rf "$data"' EXIT

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
kubectl() { bin/berth kubectl "$@"; }
# node prints where a pod is; empty while it waits.
node() { kubectl get pod "$1" -o jsonpath='{.spec.nodeName}'; }
until_true() { for _ in $(seq 150); do if "$@" >/dev/null 2>&1; then return; fi; sleep 0.2; done; echo "gave up waiting for: $*" >&2; exit 1; }

say "A cluster: API server, etcd, workload controllers, Berth's scheduler and controllers, three simulated nodes"
until_true grep -q "Berth is up" "$data/up.log"
run kubectl get nodes -L topology.kubernetes.io/zone

say "Taints. node-1 is for machine learning; a pod that does not tolerate that goes elsewhere"
run kubectl taint nodes node-1 dedicated=ml:NoSchedule
run kubectl apply -f examples/demo/taints.yaml
run kubectl wait --for=condition=Ready pod/anyone pod/learner --timeout=30s
run kubectl get pods -o custom-columns=POD:.metadata.name,NODE:.spec.nodeName

say "Eviction. NoExecute sends those away who do not tolerate it, now or after the seconds that they do"
home=$(node anyone)
run kubectl taint nodes "$home" maintenance=now:NoExecute
run kubectl wait --for=delete pod/anyone --timeout=30s
kubectl get events --field-selector reason=TaintManagerEviction -o custom-columns=REASON:.reason,MESSAGE:.message --no-headers
run kubectl taint nodes "$home" maintenance-

say "Overhead. A sandbox costs 250m CPU and 120Mi beside its containers, and they count wherever requests count"
run kubectl apply -f examples/demo/overhead.yaml
run kubectl wait --for=condition=Ready pod/test-pod --timeout=30s
run kubectl get pod test-pod -o 'jsonpath={.spec.overhead}'
echo
kubectl describe node "$(node test-pod)" | grep -B2 test-pod

say "Priorities. The cluster is full of pods that may be disturbed; one that matters takes the place of as few as possible"
run kubectl apply -f examples/demo/priorities.yaml
run kubectl rollout status deployment/filler --timeout=60s
run kubectl apply -f examples/demo/important.yaml
run kubectl wait --for=condition=Ready pod/important --timeout=60s
kubectl get events --field-selector reason=Preempted -o custom-columns=REASON:.reason,VICTIM:.involvedObject.name --no-headers
run kubectl get pod important -o wide

say "And why does the pod that lost its place wait?"
kubectl get pods -l app=filler --field-selector status.phase=Pending \
  -o 'jsonpath={range .items[*]}{.status.conditions[?(@.type=="PodScheduled")].message}{"\n"}{end}'

say "The tour is over, and the cluster stops now."
