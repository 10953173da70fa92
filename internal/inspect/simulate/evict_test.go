// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// TestTaintsEvictPodsAsInACluster compares evictions from random nodes and devices with those of a
// core that sends requests, like the live controller.
func TestTaintsEvictPodsAsInACluster(t *testing.T) {
	evicted, byDevice := 0, 0
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 3))
		set := taintedSet(r)
		w, err := simulate.Open(set, simulate.Options{Now: taintedAt})
		if err != nil {
			t.Fatal(err)
		}
		live := listLive(set, w)
		for range 6 {
			// Half seconds, because changes coincide with no deadline then.
			at := w.Elapsed().Truncate(time.Second) + time.Duration(1+r.IntN(300))*time.Second + time.Second/2
			w.Advance(at)
			live.advance(at)
			changeTaints(t, r, w, live)
		}
		w.Advance(time.Hour)
		live.advance(time.Hour)

		got := map[string]string{}
		for _, d := range w.Departures() {
			got[d.Name] = leaves(d.After.Duration(), d.Detail)
			if strings.Contains(d.Detail, " of device ") {
				byDevice++
			}
		}
		if !maps.Equal(got, live.evicted) {
			t.Fatalf("seed %d: evicted %v, live %v", seed, got, live.evicted)
		}
		evicted += len(got)
	}
	if byDevice < 100 || evicted-byDevice < 100 {
		t.Errorf("%d evictions, %d of them for devices: too few", evicted, byDevice)
	}
}

// leaves describes an eviction. The cause of an eviction at the start is omitted, because it
// depends on the order in which a core lists the objects.
func leaves(after time.Duration, cause string) string {
	if after == 0 {
		return "at the start"
	}
	return after.String() + " " + cause
}

// taintedAt is the start of the worlds of taintedSet.
var taintedAt = time.Date(2026, 1, 1, 10, 0, 0, 0, time.UTC)

// sometime returns a time in the ten minutes before taintedAt.
func sometime(r *rand.Rand) *metav1.Time {
	return &metav1.Time{Time: taintedAt.Add(-time.Duration(r.IntN(600)) * time.Second)}
}

// seconds returns tolerationSeconds, often nil.
func seconds(r *rand.Rand) *int64 {
	if r.IntN(4) == 0 {
		return nil
	}
	n := int64(r.IntN(400))
	return &n
}

var taintKeys = []string{"a", "b", v1.TaintNodeNotReady, v1.TaintNodeUnreachable}

// taintedSet returns three nodes with two devices each, and ten pods, eight of them with a claim.
func taintedSet(r *rand.Rand) *manifest.Set {
	set := &manifest.Set{}
	for i := range 3 {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), CreationTimestamp: *sometime(r)}}
		for _, key := range taintKeys {
			if r.IntN(6) == 0 {
				node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key, Effect: v1.TaintEffectNoExecute})
				if r.IntN(3) > 0 {
					node.Spec.Taints[len(node.Spec.Taints)-1].TimeAdded = sometime(r)
				}
			}
		}
		fields := metav1.NewFieldsV1(`{"f:spec":{"f:taints":{}}}`)
		node.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsType: "FieldsV1", Time: sometime(r), FieldsV1: fields}}
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node.Name}}
		slice.Spec.Driver, slice.Spec.Pool, slice.Spec.NodeName = "d", resourcev1.ResourcePool{Name: node.Name, ResourceSliceCount: 1}, &node.Name
		for j := range 2 {
			device := resourcev1.Device{Name: fmt.Sprint("dev", j)}
			if r.IntN(4) == 0 {
				device.Taints = []resourcev1.DeviceTaint{{Key: "a", Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: sometime(r)}}
			}
			slice.Spec.Devices = append(slice.Spec.Devices, device)
		}
		set.Nodes, set.ResourceSlices = append(set.Nodes, node), append(set.ResourceSlices, slice)
	}
	for i := range 10 {
		name, node := fmt.Sprint("p", i), fmt.Sprint("n", r.IntN(3))
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: *sometime(r)}}
		pod.Spec.NodeName, pod.Spec.Containers = node, []v1.Container{{Name: "c", Image: "i"}}
		pod.Status.Phase = v1.PodRunning
		for _, key := range taintKeys {
			if r.IntN(3) > 0 {
				pod.Spec.Tolerations = append(pod.Spec.Tolerations, v1.Toleration{
					Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: seconds(r),
				})
			}
		}
		if i < 8 {
			pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "c", ResourceClaimName: &name}}
			claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)}}
			claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: pod.UID}}
			result := resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "d", Pool: node, Device: fmt.Sprint("dev", r.IntN(2))}
			if r.IntN(2) == 0 {
				result.Tolerations = []resourcev1.DeviceToleration{{
					Operator: resourcev1.DeviceTolerationOpExists, Effect: resourcev1.DeviceTaintEffectNoExecute, TolerationSeconds: seconds(r),
				}}
			}
			claim.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{result},
			}}
			set.ResourceClaims = append(set.ResourceClaims, claim)
		}
		set.Pods = append(set.Pods, pod)
	}
	return set
}

// changeTaints taints a node or a device, or removes a node's taint, in both clusters.
func changeTaints(t *testing.T, r *rand.Rand, w *simulate.World, live *liveEvictions) {
	node, key := simulate.Nodes{Node: fmt.Sprint("n", r.IntN(3))}, taintKeys[r.IntN(len(taintKeys))]
	var err error
	switch r.IntN(3) {
	case 0:
		_, err = w.Do(&simulate.Operation{Taint: &simulate.Tainting{Nodes: node, Taints: []string{key + ":NoExecute"}}})
		live.showNode(w.Node(node.Node))
	case 1:
		_, err = w.Do(&simulate.Operation{Untaint: &simulate.Tainting{Nodes: node, Taints: []string{key + ":NoExecute"}}})
		live.showNode(w.Node(node.Node))
	case 2:
		rule := &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("rule", r.IntN(2))}}
		driver, device := "d", fmt.Sprint("dev", r.IntN(2))
		rule.Spec.DeviceSelector = &resourcev1.DeviceTaintSelector{Driver: &driver, Pool: &node.Node, Device: &device}
		rule.Spec.Taint = resourcev1.DeviceTaint{Key: key, Effect: resourcev1.DeviceTaintEffectNoExecute, TimeAdded: &metav1.Time{Time: w.Now()}}
		_, err = w.Apply(manifest.Assemble("rule", []metav1.Object{rule}))
		live.rules[rule.Name] = eviction.RuleOf(rule)
		live.step(eviction.RuleSeen{Rule: eviction.RuleOf(rule)})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// liveEvictions is a core whose requests an API server answers immediately.
type liveEvictions struct {
	core    *eviction.Core
	now     time.Time
	version int
	nodes   map[string]eviction.Node
	pods    map[types.NamespacedName]eviction.Pod
	claims  map[types.NamespacedName]eviction.Claim
	slices  []eviction.Slice
	rules   map[string]eviction.Rule
	evicted map[string]string
}

// listLive lists the objects of a set for a core. Pods are in the form stored by the world.
func listLive(set *manifest.Set, w *simulate.World) *liveEvictions {
	l := &liveEvictions{
		core: eviction.New(eviction.Options{}), now: taintedAt, nodes: map[string]eviction.Node{},
		pods: map[types.NamespacedName]eviction.Pod{}, claims: map[types.NamespacedName]eviction.Claim{},
		rules: map[string]eviction.Rule{}, evicted: map[string]string{},
	}
	// Nothing is evicted before all kinds are listed, as in the live controller.
	var events []eviction.Event
	for _, slice := range set.ResourceSlices {
		l.slices = append(l.slices, eviction.SliceOf(slice))
		events = append(events, eviction.SliceSeen{Slice: eviction.SliceOf(slice)})
	}
	for _, claim := range set.ResourceClaims {
		of := eviction.ClaimOf(claim)
		l.claims[of.Name] = of
		events = append(events, eviction.ClaimSeen{Claim: of})
	}
	for _, p := range w.Each() {
		of := eviction.PodOf(p.Object)
		l.pods[of.Name] = of
		events = append(events, eviction.PodSeen{Pod: of})
	}
	for _, kind := range []eviction.Kind{eviction.Claims, eviction.Slices, eviction.Rules} {
		l.step(eviction.Listing{Kind: kind})
	}
	l.step(eviction.PodsListing{})
	for _, node := range set.Nodes {
		l.writeNode(eviction.NodeOf(w.Node(node.Name)))
	}
	for _, event := range events {
		l.step(event)
	}
	l.step(eviction.PodsListed{})
	for _, kind := range []eviction.Kind{eviction.Claims, eviction.Slices, eviction.Rules} {
		l.step(eviction.Listed{Kind: kind})
	}
	return l
}

// showNode shows the core a node whose taints were just written.
func (l *liveEvictions) showNode(node *v1.Node) {
	of := eviction.NodeOf(node)
	of.Witness, of.Note = l.now, l.nodes[of.Name].Note
	l.writeNode(of)
}

// writeNode gives a node another version, and shows it to the core.
func (l *liveEvictions) writeNode(node eviction.Node) {
	l.version++
	node.ResourceVersion = fmt.Sprint(l.version)
	l.nodes[node.Name] = node
	l.step(eviction.NodeSeen{Node: node})
}

// advance lets time pass.
func (l *liveEvictions) advance(to time.Duration) {
	for end := taintedAt.Add(to); ; l.step(eviction.Tick{}) {
		at, ok := l.core.Wake()
		if !ok || at.After(end) {
			l.now = end
			return
		}
		if at.After(l.now) {
			l.now = at
		}
	}
}

// step applies an event, and answers the requests.
func (l *liveEvictions) step(event eviction.Event) {
	for _, action := range l.core.Step(l.now, event) {
		switch a := action.(type) {
		case eviction.ReadNode:
			node := l.nodes[a.Node]
			l.step(eviction.Answered{Ticket: a.Ticket, Node: &node})
		case eviction.ReadPod:
			pod := l.pods[a.Name]
			l.step(eviction.Answered{Ticket: a.Ticket, Pod: &pod})
		case eviction.ReadDevices:
			read := eviction.Devices{Slices: l.slices}
			for _, name := range a.Claims {
				read.Claims = append(read.Claims, l.claims[name])
			}
			for _, name := range a.Rules {
				read.Rules = append(read.Rules, l.rules[name])
			}
			l.step(eviction.Answered{Ticket: a.Ticket, Devices: &read})
		case eviction.Mark:
			pod := l.pods[a.Name]
			l.step(eviction.Answered{Ticket: a.Ticket, Pod: &pod})
		case eviction.Delete:
			l.evicted[a.Name.Name] = leaves(l.now.Sub(taintedAt), a.Due.Cause())
			l.step(eviction.Answered{Ticket: a.Ticket})
			l.step(eviction.PodGone{Name: a.Name, UID: a.UID})
		case eviction.Annotate:
			l.step(eviction.Answered{Ticket: a.Ticket})
			node := l.nodes[a.Node]
			node.Note = a.Note
			l.writeNode(node)
		case eviction.WriteStatus:
			l.step(eviction.Answered{Ticket: a.Ticket})
		}
	}
}
