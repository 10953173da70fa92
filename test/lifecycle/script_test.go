// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
)

// script is the life of a cluster: the actions of its nodes and users, with their times.
type script struct {
	seed    uint64
	options options
	nodes   []birth
	deeds   []deed
	ends    time.Duration
}

// options are the values of flags that both sides get.
type options struct {
	period, grace, startup time.Duration
	rate, secondary        float64
	unhealthy              float64
	large                  int
}

// pause returns the maximum pause between the taints of two nodes of a zone.
func (o options) pause() time.Duration {
	return time.Duration(float64(time.Second) / min(o.rate, o.secondary))
}

// birth is a node that joins the cluster.
type birth struct {
	at           time.Duration
	name, zone   string
	beats        time.Duration // time from joining to the kubelet's first report
	excluded     bool          // not counted in the state of its zone
	neverReports bool
}

func (s *script) zoneOfFirst(b birth) string {
	if len(s.nodes) == 0 {
		return b.zone
	}
	return s.nodes[0].zone
}

// deed is an event of nodes or pods.
type deed struct {
	at   time.Duration
	kind string
	node string
	for_ time.Duration
	// Parameters of some kinds of deeds.
	condition v1.NodeConditionType
	taint     v1.Taint
	pod       *v1.Pod
}

func (d deed) String() string {
	switch d.kind {
	case "pod":
		return fmt.Sprintf("%v pod %s on %s tolerates %v", d.at, d.pod.Name, d.pod.Spec.NodeName, d.pod.Spec.Tolerations)
	case "taint":
		return fmt.Sprintf("%v taint %s %s for %v", d.at, d.node, d.taint.ToString(), d.for_)
	case "condition":
		return fmt.Sprintf("%v condition %s %s for %v", d.at, d.node, d.condition, d.for_)
	}
	return fmt.Sprintf("%v %s %s for %v", d.at, d.kind, d.node, d.for_)
}

var zones = []string{"a", "b", "c"}

// write returns the script of a seed.
func write(seed uint64) *script {
	r := rand.New(rand.NewPCG(seed, 1))
	one := func(list ...time.Duration) time.Duration { return list[r.IntN(len(list))] }
	s := &script{seed: seed, ends: 15 * time.Minute, options: options{
		period: 5 * time.Second, grace: one(40*time.Second, 50*time.Second), startup: one(60*time.Second, 90*time.Second),
		rate: []float64{0.1, 20, 20}[r.IntN(3)], secondary: []float64{0.1, 0.5}[r.IntN(2)], unhealthy: 0.55, large: []int{50, 4}[r.IntN(2)],
	}}

	count := 1 + r.IntN(9)
	zonesUsed := 1 + r.IntN(len(zones))
	for i := range count {
		b := birth{name: fmt.Sprintf("n%d", i), zone: zones[r.IntN(zonesUsed)], beats: time.Duration(3000+r.IntN(200)) * time.Millisecond,
			excluded: r.IntN(15) == 0, neverReports: r.IntN(20) == 0}
		if r.IntN(6) == 0 {
			// The node must not be the first of its zone: while all zones are down, a new zone
			// prevents upstream from tainting nodes in the other zones until each of these has
			// changed.
			b.at, b.zone = time.Duration(r.IntN(600))*time.Second, s.zoneOfFirst(b)
		}
		s.nodes = append(s.nodes, b)
	}

	// A zone needs a node that counts for its state: otherwise upstream's behaviour there depends
	// on map order.
	s.nodes[0].at, s.nodes[0].excluded = 0, false
	for i := range s.nodes {
		s.nodes[i].excluded = s.nodes[i].excluded && s.nodes[i].zone == s.nodes[0].zone
	}

	anyNode := func() string { return s.nodes[r.IntN(count)].name }
	moment := func() time.Duration {
		return 30*time.Second + time.Duration(r.Int64N(int64(s.ends-3*time.Minute)))/1e6*1e6
	}
	lasts := func() time.Duration {
		return one(5*time.Second, 20*time.Second, 90*time.Second, 3*time.Minute, 6*time.Minute, time.Hour) +
			time.Duration(r.IntN(5000))*time.Millisecond
	}
	for range 1 + r.IntN(8) {
		at, lasts := moment(), lasts()
		switch r.IntN(9) {
		case 0, 1:
			s.deeds = append(s.deeds, deed{at: at, kind: "silence", node: anyNode(), for_: lasts})
		case 2: // the nodes of a zone, within a few seconds of each other
			zone := zones[r.IntN(zonesUsed)]
			for _, b := range s.nodes {
				if b.zone == zone && r.IntN(5) > 0 {
					s.deeds = append(s.deeds, deed{at: at, kind: "silence", node: b.name, for_: lasts})
				}
			}
		case 3: // all
			if r.IntN(2) == 0 {
				for _, b := range s.nodes {
					s.deeds = append(s.deeds, deed{at: at, kind: "silence", node: b.name, for_: lasts})
				}
			}
		case 4:
			s.deeds = append(s.deeds, deed{at: at, kind: "notready", node: anyNode(), for_: lasts})
		case 5:
			kinds := []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure, v1.NodeNetworkUnavailable}
			s.deeds = append(s.deeds, deed{at: at, kind: "condition", node: anyNode(), condition: kinds[r.IntN(4)], for_: lasts})
		case 6:
			s.deeds = append(s.deeds, deed{at: at, kind: "cordon", node: anyNode(), for_: lasts})
		case 7:
			effect := []v1.TaintEffect{v1.TaintEffectNoExecute, v1.TaintEffectNoExecute, v1.TaintEffectNoSchedule}[r.IntN(3)]
			s.deeds = append(s.deeds, deed{at: at, kind: "taint", node: anyNode(), for_: lasts,
				taint: v1.Taint{Key: fmt.Sprintf("user%d", r.IntN(2)), Value: "x", Effect: effect}})
		case 8:
			s.deeds = append(s.deeds, deed{at: at, kind: "delete", node: s.nodes[min(count-1, 1+r.IntN(count))].name, for_: lasts})
		}
	}

	for i := range r.IntN(20) {
		at := time.Duration(0)
		if r.IntN(2) == 0 {
			at = moment()
		}
		pod := &v1.Pod{}
		pod.Namespace, pod.Name = "default", fmt.Sprintf("p%d", i)
		pod.Spec.NodeName = anyNode()
		pod.Spec.Containers = []v1.Container{{Name: "c", Image: "i"}}
		if r.IntN(4) > 0 {
			for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, tolerate(r, key))
			}
		}
		if r.IntN(3) == 0 {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, tolerate(r, fmt.Sprintf("user%d", r.IntN(2))))
		}
		if r.IntN(12) == 0 {
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, tolerate(r, ""))
		}
		s.deeds = append(s.deeds, deed{at: at, kind: "pod", pod: pod})
	}

	slices.SortStableFunc(s.deeds, func(a, b deed) int { return int(a.at - b.at) })
	return s
}

func tolerate(r *rand.Rand, key string) v1.Toleration {
	t := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: []v1.TaintEffect{v1.TaintEffectNoExecute, ""}[r.IntN(2)]}
	if n := r.IntN(6); n > 0 && t.Effect != "" {
		seconds := []int64{0, 1, 33, 62, 303}[n-1]
		t.TolerationSeconds = &seconds
	}
	return t
}
