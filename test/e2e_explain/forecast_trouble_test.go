// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/whatif"
)

// slow is a workload whose pods take their whole grace period to end, so that deletions, drains and
// evictions are still in progress when the next operation is forecast.
const slow = `
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: slow, namespace: forecast}
spec:
  replicas: 6
  selector: {matchLabels: {app: slow}}
  template:
    metadata: {labels: {app: slow}, annotations: {berth.dev/terminate-after: 6s}}
    spec:
      terminationGracePeriodSeconds: 6
      priorityClassName: fourth
      containers: [{name: c, image: nginx, resources: {requests: {cpu: "2"}}}]
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: fourth}
value: 50
preemptionPolicy: Never
`

// trouble is activity in the cluster besides the forecast operations.
type trouble struct {
	silent string // node without heartbeats, if any
	left   int    // remaining number of operations for which the node stays silent
	counts map[string]int
}

// disturb starts, in about half of the calls, an activity that continues during the next forecast.
func (f *fortune) disturb() {
	if f.trouble == nil {
		return
	}
	if f.trouble.counts == nil {
		f.trouble.counts = map[string]int{}
	}
	if f.trouble.silent != "" {
		if f.trouble.left--; f.trouble.left <= 0 {
			_, err := berth(f, "", "nodes", "recover", "--node", f.trouble.silent)
			if err != nil {
				f.Fatal(err)
			}
			silent := f.trouble.silent
			f.trouble.silent = ""
			within(f, f.stretch(patience), silent+" is ready", func() bool { return f.ready(silent) })
		}
	}
	kind := ""
	switch f.random.IntN(8) {
	case 0:
		if f.trouble.silent != "" {
			break
		}
		kind = "node falls silent"
		f.trouble.silent, f.trouble.left = fmt.Sprintf("node-%d", 1+f.random.IntN(6)), 12
		if _, err := berth(f, "", "nodes", "fail", "--node", f.trouble.silent); err != nil {
			f.Fatal(err)
		}
		// Wait until the node's Lease has expired, because until then the node looks healthy.
		within(f, f.stretch(patience), "the lease has run out", func() bool { return f.leaseAge(f.trouble.silent) > 41*time.Second })
	case 1, 2:
		kind = "pods terminating"
		sh(f.T, "kubectl delete pod -n forecast -l app=slow --wait=false")
	case 3:
		kind = "drain under way"
		node := fmt.Sprintf("node-%d", 1+f.random.IntN(6))
		sh(f.T, "kubectl drain "+node+" --force --ignore-daemonsets --timeout=1s >/dev/null 2>&1 || true") // pods still terminate
	}
	if kind != "" {
		f.trouble.counts[kind]++
	}
	f.quiet()
}

func (f *fortune) leaseAge(node string) time.Duration {
	lease, err := client.CoordinationV1().Leases(v1.NamespaceNodeLease).Get(f.Context(), node, metav1.GetOptions{})
	if err != nil || lease.Spec.RenewTime == nil {
		return 0
	}
	return time.Since(lease.Spec.RenewTime.Time)
}

func (f *fortune) ready(name string) bool {
	n, err := client.CoreV1().Nodes().Get(f.Context(), name, metav1.GetOptions{})
	if err != nil {
		return false
	}
	tainted := slices.ContainsFunc(n.Spec.Taints, func(t v1.Taint) bool {
		return t.Key == v1.TaintNodeUnreachable || t.Key == v1.TaintNodeNotReady
	})
	return !tainted && slices.ContainsFunc(n.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// horizon returns the duration of a forecast during trouble: 0, which means until nothing more
// happens, unless a silent node would make that too long. Otherwise the end of the forecast keeps a
// distance from all predicted events, so that a small delay does not move an event across it.
func horizon(whole *whatif.Forecast) time.Duration {
	const shortest, margin, patience = 8 * time.Second, 3 * time.Second, 25 * time.Second
	if whole.Settled && time.Duration(whole.For) < patience {
		return 0 // forecast to the end
	}
	times := []time.Duration{}
	for _, list := range [][]whatif.Leaving{whole.Leaving, whole.Anyway, whole.Spared} {
		for i := range list {
			times = append(times, time.Duration(list[i].After))
		}
	}
	slices.SortFunc(times, cmp.Compare)
	at := shortest
	for _, t := range times {
		if t > at-margin && t < at+margin {
			at = t + margin
		}
	}
	return at
}

// String lists the numbers of activities by kind.
func (t *trouble) String() string {
	var words []string
	for kind, n := range t.counts {
		words = append(words, fmt.Sprintf("%d × %s", n, kind))
	}
	slices.Sort(words)
	return strings.Join(words, ", ")
}
