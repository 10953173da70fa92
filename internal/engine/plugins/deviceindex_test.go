// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	config "k8s.io/kube-scheduler/config/v1"
	"pgregory.net/rapid"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// TestDevicesAreFollowed requires a plugin that has followed all changes of slices, claims, classes
// and nodes to give the same verdicts as a new one.
func TestDevicesAreFollowed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &deviceWorld{T: t, c: cluster.New()}
		w.d, _ = NewDynamicResources(nil)
		w.d.filterTimeout = 0 // results must not depend on the load of the machine
		w.setClass()
		for i := range 4 {
			w.setNode(i)
		}
		for range rapid.IntRange(5, 25).Draw(t, "steps") {
			w.step()
			w.compare()
		}
	})
}

// TestContradictingSlicesMakeADeviceExclusive verifies that a device is exclusive if it is
// exclusive in one of several slices of the same generation, regardless of their order.
func TestContradictingSlicesMakeADeviceExclusive(t *testing.T) {
	slice := func(generation int64, shared bool) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
			Pool:    resourcev1.ResourcePool{Generation: generation},
			Devices: []resourcev1.Device{{Name: "device", AllowMultipleAllocations: new(shared)}},
		}}
	}
	for range 50 { // orders of a map
		pool := &devicePool{slices: map[string]*resourcev1.ResourceSlice{
			"old": slice(0, false), "a": slice(1, true), "b": slice(1, false), "c": slice(1, true),
		}}
		use := newDeviceUse(map[poolID]*devicePool{{"driver", "pool"}: pool})
		device := structured.MakeDeviceID("driver", "pool", "device")
		if !use.isExclusive(device) {
			t.Fatal("two claims may hold the device as a whole")
		}
		delete(pool.slices, "b")
		if use.isExclusive(device) {
			t.Fatal("an outdated slice makes the device exclusive")
		}
	}
}

// deviceWorld is a small cluster under random changes.
type deviceWorld struct {
	*rapid.T
	c     *cluster.Cluster
	d     *DynamicResources
	stock deviceStock
	undo  []func()
}

func (w *deviceWorld) pick(what string, n int) int { return rapid.IntRange(0, n-1).Draw(w.T, what) }

func (w *deviceWorld) chance(what string) bool { return w.pick(what, 2) == 0 }

func (w *deviceWorld) step() {
	switch w.pick("what", 10) {
	case 0, 1:
		w.setSlice()
	case 2:
		w.c.ResourceSlices.Delete("", fmt.Sprintf("slice-%d", w.pick("slice", 6)))
	case 3:
		w.setNode(w.pick("node", 4))
	case 4:
		w.setClass()
	case 5:
		w.c.ResourceClaims.Set(w.claim(fmt.Sprintf("claim-%d", w.pick("claim", 5))))
	case 6:
		w.c.ResourceClaims.Delete("default", fmt.Sprintf("claim-%d", w.pick("claim", 5)))
	case 7: // a watch delivers an unchanged claim
		if claim, ok := w.c.ResourceClaims.Get("default", fmt.Sprintf("claim-%d", w.pick("claim", 5))); ok {
			w.c.ResourceClaims.Set(claim.DeepCopy())
		}
	case 8:
		if n := len(w.undo); n > 0 {
			w.undo[n-1]()
			w.undo = w.undo[:n-1]
		}
	case 9:
		w.c.ResourceClaims.Set(w.claim(fmt.Sprintf("claim-%d", w.pick("claim", 5))))
		for range 1 + w.pick("others", 2)*5000 { // sometimes more changes than the tables keep
			w.c.ResourceClaims.Set(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "busy"}})
		}
	}
	p := w.pod()
	for _, n := range w.c.SortedNodes() {
		if judge := w.d.Filter(w.c, p); judge.Node == nil || judge.Node(n) != nil || w.chance("not there") {
			continue
		}
		undo, err := w.d.Reserve(w.c, p, n)
		if err != nil {
			w.Fatal(err)
		}
		w.undo = append(w.undo, undo)
		break
	}
}

func (w *deviceWorld) setNode(i int) {
	name := fmt.Sprintf("n%d", i)
	labels := map[string]string{"zone": fmt.Sprint(w.pick("zone", 2))}
	if host := w.pick("host", 5); host > 0 { // sometimes absent, sometimes another name than the node's
		labels[v1.LabelHostname] = fmt.Sprintf("n%d", host-1)
	}
	w.c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}})
}

func (w *deviceWorld) setClass() {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	class.Spec.ExtendedResourceName = new("example.com/gpu")
	if w.chance("selective") {
		class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.attributes["d"].i > 0`}}}
	}
	w.c.DeviceClasses.Set(class)
}

func (w *deviceWorld) setSlice() {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("slice-%d", w.pick("slice", 6))}}
	slice.Spec.Driver = "d"
	slice.Spec.Pool = resourcev1.ResourcePool{
		Name: fmt.Sprintf("pool-%d", w.pick("pool", 4)), ResourceSliceCount: 1 + int64(w.pick("count", 2)), Generation: int64(w.pick("generation", 2)),
	}
	switch w.pick("reach", 6+6*w.pick("mostly local", 2)) {
	case 0:
		slice.Spec.AllNodes = new(true)
	case 1:
		slice.Spec.NodeSelector = nodesWith("zone", "0")
	case 2:
		slice.Spec.NodeSelector = nodesWith(v1.LabelHostname, "n0")
	case 3:
		slice.Spec.PerDeviceNodeSelection = new(true)
	default:
		slice.Spec.NodeName = new(fmt.Sprintf("n%d", w.pick("node", 4)))
	}
	prefix := slice.Name
	if w.chance("alike") { // devices equal to the devices of other nodes
		prefix = "device"
	}
	for i := range 1 + w.pick("devices", 3) {
		device := resourcev1.Device{
			Name:       fmt.Sprintf("%s-%d", prefix, i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"i": {IntValue: new(int64(i))}},
		}
		if w.pick("divisible", 4) == 0 {
			device.AllowMultipleAllocations = new(true)
			device.Capacity = map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("4")}}
		}
		if slice.Spec.PerDeviceNodeSelection != nil {
			device.NodeSelector = nodesWith(v1.LabelHostname, fmt.Sprintf("n%d", w.pick("node", 4)))
		}
		slice.Spec.Devices = append(slice.Spec.Devices, device)
	}
	w.c.ResourceSlices.Set(slice)
}

func nodesWith(key, value string) *v1.NodeSelector {
	return &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
		{Key: key, Operator: v1.NodeSelectorOpIn, Values: []string{value}}}}}}
}

func (w *deviceWorld) claim(name string) *resourcev1.ResourceClaim {
	claim := claimOfOne(name)
	claim.UID = types.UID(name)
	request := claim.Spec.Devices.Requests[0].Exactly
	switch w.pick("kind of claim", 4) {
	case 0:
		request.Count = 2
	case 1:
		request.AllocationMode, request.Count = resourcev1.DeviceAllocationModeAll, 0
	case 2:
		request.AdminAccess = new(true)
	}
	return claim
}

func (w *deviceWorld) pod() *cluster.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: types.UID(fmt.Sprint(w.pick("pod", 1000)))}}
	for i := range 1 + w.pick("claims", 2) {
		name := fmt.Sprintf("claim-%d", w.pick("claim", 5))
		pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: fmt.Sprint(i), ResourceClaimName: &name})
	}
	return w.c.Pending(pod)
}

// compare compares the verdicts of both plugins for a few pods on all nodes.
func (w *deviceWorld) compare() {
	anew, _ := NewDynamicResources(nil)
	anew.filterTimeout = 0
	anew.sets.known, anew.sets.size = w.d.sets.known, w.d.sets.size // reuse compiled expressions
	specs, wanted := resourceSpecs{{Name: "example.com/gpu", Weight: 1}}, []int64{1}
	known, fresh := w.stock.countsFor(w.c, specs, wanted), new(deviceStock).countsFor(w.c, specs, wanted)
	for _, n := range w.c.SortedNodes() {
		if got, want := known.countOn(n, "example.com/gpu"), fresh.countOn(n, "example.com/gpu"); got != want {
			w.Fatalf("node %s: counted %v, want %v", n.Name, got, want)
		}
	}
	for range 3 {
		p := w.pod()
		a, b := w.d.attemptFor(w.c, p), anew.attemptFor(w.c, p)
		if (a.err == nil) != (b.err == nil) || (a.rejection == nil) != (b.rejection == nil) {
			w.Fatalf("got %v, %v; want %v, %v", a.err, a.rejection, b.err, b.rejection)
		}
		if a.err != nil || a.rejection != nil {
			continue
		}
		for _, n := range w.c.SortedNodes() {
			anew.last, anew.index, anew.shapes = nil, deviceIndex{}, deviceShapes{} // makes the result independent of other nodes
			got, want := a.offerAt(n), anew.attemptFor(w.c, p).offerAt(n)
			if told(got) != told(want) || !apiequality.Semantic.DeepEqual(unshared(got.results), unshared(want.results)) {
				w.Fatalf("node %s: got %s %v\nwant %s %v", n.Name, told(got), got.results, told(want), want.results)
			}
		}
	}
}

func told(o offer) string {
	switch {
	case o.rejection == nil:
		return "ok"
	case o.rejection.Err != nil:
		return o.rejection.Err.Error()
	}
	return o.rejection.Reasons[0]
}

// unshared drops the random names of shares.
func unshared(results []resourcev1.AllocationResult) []resourcev1.AllocationResult {
	var list []resourcev1.AllocationResult
	for i := range results {
		r := results[i].DeepCopy()
		for j := range r.Devices.Results {
			if r.Devices.Results[j].ShareID != nil {
				r.Devices.Results[j].ShareID = new(types.UID)
			}
		}
		list = append(list, *r)
	}
	return list
}

// hardSearch returns a cluster, a plugin, and a pod with a claim for which the search is slow on
// every node. Groups of three nodes have equal likeness.
func hardSearch(t *testing.T, nodes, devices int, limit time.Duration) (*cluster.Cluster, *DynamicResources, *cluster.Pod) {
	c, d := cluster.New(), newDynamicResources(t)
	d.filterTimeout = limit
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	for i := range nodes {
		name := fmt.Sprint("node-", i)
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
		slice := sliceOfUnlike(name, devices)
		for k := range slice.Spec.Devices {
			slice.Spec.Devices[k].Attributes["of"] = resourcev1.DeviceAttribute{IntValue: new(int64(i / 3))} // equal on three nodes
		}
		c.ResourceSlices.Set(slice)
	}
	claim := claimOfOne("c")
	claim.Spec.Devices.Requests[0].Exactly.Count = int64(devices/2 + 1)
	claim.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{MatchAttribute: new(resourcev1.FullyQualifiedName("gpu.example.com/half"))}}
	c.ResourceClaims.Set(claim)
	return c, d, waiting(t, c, "kind: Pod\nmetadata: {name: p}\nspec: {resourceClaims: [{name: r, resourceClaimName: c}]}")
}

// answers returns the filter's verdict on each node, computed by the given number of goroutines.
func answers(c *cluster.Cluster, d *DynamicResources, p *cluster.Pod, goroutines int) []string {
	judge, lines := d.Filter(c, p), make([]string, len(c.Nodes))
	ask := func(i int) { lines[i] = told(offer{rejection: judge.Node(c.Nodes[i])}) }
	var running sync.WaitGroup
	for g := range goroutines {
		running.Go(func() {
			for i := g; i < len(lines); i += goroutines {
				ask(i)
			}
		})
	}
	running.Wait()
	if judge.Again() {
		for i := range lines {
			ask(i)
		}
	}
	return lines
}

// TestSearchesGoAsFarEveryTime verifies that the set of nodes searched before the limit does not
// depend on the number and speed of goroutines, and that the pod's next attempts continue with the
// remaining nodes.
func TestSearchesGoAsFarEveryTime(t *testing.T) {
	const nodes, devices = 60, 8
	c, d, p := hardSearch(t, nodes, devices, 0)
	d.Filter(c, p)
	for _, n := range c.SortedNodes() {
		d.last.offerAt(n)
	}
	limit := time.Duration(d.last.limit.spent.Load()) * searchCost / 4
	var want [][]string
	for _, goroutines := range []int{1, 1, 2, 4, 16, 16, 16} {
		c, d, p := hardSearch(t, nodes, devices, limit)
		var got [][]string
		for {
			d.BeginAttempt()
			got = append(got, answers(c, d, p, goroutines))
			timedOut := func(text string) bool { return strings.Contains(text, "timed out") }
			if !slices.ContainsFunc(got[len(got)-1], timedOut) {
				break
			}
			if len(got) > nodes {
				t.Fatal("it never ends")
			}
		}
		if len(got) < 3 {
			t.Fatalf("%d attempts are enough", len(got))
		}
		if want == nil {
			want = got
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%d goroutines: %d attempts, want %d, the first\n%q, want\n%q", goroutines, len(got), len(want), got[0], want[0])
		}
	}
}

// TestSearchesOfAnAttemptShareTheirLimit verifies that a claim with a slow search on every node
// does not take that time on each node, regardless of the number of calls of the filter.
func TestSearchesOfAnAttemptShareTheirLimit(t *testing.T) {
	c, d, p := hardSearch(t, 10, 60, 5*time.Millisecond)
	d.strict = true
	for range 2 {
		d.BeginAttempt()
		for range 3 {
			for i, text := range answers(c, d, p, 1) {
				if want := fmt.Sprintf("node node-%d: timed out", i); !strings.Contains(text, want) {
					t.Errorf("%s, want %s", text, want)
				}
			}
		}
		if spent := time.Duration(d.last.limit.spent.Load()) * searchCost; spent > 3*d.filterTimeout {
			t.Errorf("%v were spent, with a limit of %v", spent, d.filterTimeout)
		}
	}
}

// TestANodeOnWhichTheSearchTakesTooLongKeepsNobodyFromOthers verifies that attempts make progress
// beyond a node whose search alone exceeds the limit. A configured limit fails the attempt, as in
// kube-scheduler.
func TestANodeOnWhichTheSearchTakesTooLongKeepsNobodyFromOthers(t *testing.T) {
	const hard = 4 // three nodes have equal likeness, and one differs
	said := func(d *DynamicResources) []string {
		c, _, p := hardSearch(t, hard, 60, 0)
		c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "easy"}})
		slice := sliceOfUnlike("easy", 60)
		for i := range slice.Spec.Devices {
			slice.Spec.Devices[i].Attributes["half"] = resourcev1.DeviceAttribute{IntValue: new(int64(0))}
		}
		c.ResourceSlices.Set(slice)
		var lines []string
		for range 3 {
			d.BeginAttempt()
			lines = answers(c, d, p, 2)
		}
		return lines
	}
	const tooLong = "finding devices takes too long"
	if got, want := said(newDynamicResources(t)), []string{tooLong, tooLong, tooLong, tooLong, "ok"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	configured, err := NewDynamicResources(&config.DynamicResourcesArgs{FilterTimeout: &metav1.Duration{Duration: 10 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	if got := said(configured); !strings.Contains(got[0], "node node-0: timed out") {
		t.Errorf("with a configured limit: got %q", got)
	}
}

// sliceOfUnlike returns a slice with two kinds of devices in equal numbers. If a claim requests
// more devices of one kind than there are, the search tries all combinations.
func sliceOfUnlike(node string, devices int) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name:       fmt.Sprintf("gpu-%d", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"half": {IntValue: new(int64(i % 2))}},
		})
	}
	return slice
}

// TestNodesAlikeGiveTheSame verifies that a single search serves all nodes with equal likeness, and
// that each node offers devices under its own names.
func TestNodesAlikeGiveTheSame(t *testing.T) {
	c, d := cluster.New(), newDynamicResources(t)
	load(t, c, "node a\nnode b\nnode c\nnode d\nnode e")
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	for _, node := range []string{"a", "b", "c", "d"} {
		slice := sliceOfUnlike(node, 3)
		if node == "d" { // each share of a device has a unique ID
			for i := range slice.Spec.Devices {
				slice.Spec.Devices[i].AllowMultipleAllocations = new(true)
			}
		}
		second := slice.DeepCopy()
		second.Name, second.Spec.Pool.Name = slice.Name+"-2", slice.Name+"-second"
		c.ResourceSlices.Set(slice)
		c.ResourceSlices.Set(second)
	}
	for i := range 9 {
		claim := claimOfOne(fmt.Sprintf("claim-%d", i))
		claim.Spec.Devices.Requests[0].Exactly.Count = 4
		c.ResourceClaims.Set(claim)
		p := waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: p%d}\nspec: {resourceClaims: [{name: r, resourceClaimName: %s}]}", i, claim.Name))
		anew := newDynamicResources(t)
		for _, n := range c.SortedNodes() {
			got := d.attemptFor(c, p).offerAt(n)
			anew.last, anew.index, anew.shapes = nil, deviceIndex{}, deviceShapes{}
			want := anew.attemptFor(c, p).offerAt(n)
			if told(got) != told(want) || !apiequality.Semantic.DeepEqual(unshared(got.results), unshared(want.results)) {
				t.Fatalf("claim %d, node %s: got %s %v\nwant %s %v", i, n.Name, told(got), got.results, told(want), want.results)
			}
		}
		for _, n := range c.SortedNodes() { // one by one the nodes become different, and equal again
			if d.attemptFor(c, p).offerAt(n).rejection == nil && (i%3 == 0 || n.Name != "a") {
				if _, err := d.Reserve(c, p, n); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
	}
	shares := map[types.UID]bool{}
	for claim := range c.ResourceClaims.Each {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.ShareID != nil && shares[*r.ShareID] {
				t.Errorf("two claims have the share %s", *r.ShareID)
			} else if r.ShareID != nil {
				shares[*r.ShareID] = true
			}
		}
	}
	// At most six searches are expected for each shape: for a, b and c with none, some or all of
	// their devices taken, and for d and e.
	for _, shape := range d.shapes.byKey {
		if len(shape.examples) == 0 || len(shape.examples) > 6 {
			t.Errorf("%d examples of nodes", len(shape.examples))
		}
	}
}

// TestContentsGoWithTheirNodes verifies that after any number of changes the cached contents match
// the nodes' current devices, and that nodes with equal likeness are still recognized.
func TestContentsGoWithTheirNodes(t *testing.T) {
	c, d := cluster.New(), newDynamicResources(t)
	load(t, c, "node a\nnode b")
	for i := range mostContents + 10 {
		for _, node := range []string{"a", "b"} {
			slice := sliceOfUnlike(node, 1)
			slice.Spec.Pool.Generation = int64(i)
			c.ResourceSlices.Set(slice)
		}
		d.index.followCluster(c)
		a, _, known := d.index.likenessOf(c.Node("a"))
		if b, _, _ := d.index.likenessOf(c.Node("b")); !known || a != b || len(d.index.contents) != 1 {
			t.Fatalf("change %d: known %t, alike %t, %d contents", i, known, a == b, len(d.index.contents))
		}
	}
	c.ResourceSlices.Delete("", "a")
	c.ResourceSlices.Delete("", "b")
	if d.index.followCluster(c); len(d.index.contents) > 0 {
		t.Errorf("%d contents are left", len(d.index.contents))
	}
}

// TestExamplesAreForgottenUnderTheirLock verifies that goroutines can drop findings while other
// goroutines look them up.
func TestExamplesAreForgottenUnderTheirLock(t *testing.T) {
	s, like := &deviceShape{}, likeness{taken: "x"}
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for range 20_000 {
				undo := s.keepExample(likeness{taken: fmt.Sprint(i)}, nil, noDevices)
				s.allocationsLike(nil, like, nil)
				undo()
			}
		})
	}
	wait.Wait()
	if len(s.examples) != 0 {
		t.Errorf("%d examples are left", len(s.examples))
	}
}

// TestSharesOfLikeDevicesHaveOwnIDs verifies that no two shares have the same ID, even if a device
// returns to an earlier consumed capacity while a share allocated at that capacity is still held.
func TestSharesOfLikeDevicesHaveOwnIDs(t *testing.T) {
	spec := resourcev1.ResourceSliceSpec{Devices: []resourcev1.Device{{
		Name: "gpu-0", AllowMultipleAllocations: new(true),
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"milli": {Value: resource.MustParse("1000")}},
	}}}
	c, d := deviceCluster(t, spec), choosingProfile(t)
	ids := map[types.UID]string{}
	for _, name := range []string{"first", "second", "third"} {
		claim := claimOfOne(name)
		claim.Spec.Devices.Requests[0].Exactly.Capacity = &resourcev1.CapacityRequirements{
			Requests: map[resourcev1.QualifiedName]resource.Quantity{"milli": resource.MustParse("300")}}
		reserveClaim(t, c, d, claim)
		now, _ := c.ResourceClaims.Get("default", name)
		id := *now.Status.Allocation.Devices.Results[0].ShareID
		if ids[id] != "" {
			t.Errorf("%s has the share %s of %s", name, id, ids[id])
		}
		ids[id] = name
		if name == "second" {
			c.ResourceClaims.Delete("default", "first")
		}
	}
}

// TestCountersOfOneNode verifies that a pool with counters is tied to its node if all of its slices
// name this node, and not if its slices name several nodes.
func TestCountersOfOneNode(t *testing.T) {
	c := cluster.New()
	set := func(name, node string) {
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
		slice.Spec = resourcev1.ResourceSliceSpec{Driver: "d", NodeName: &node, Pool: resourcev1.ResourcePool{Name: "pool", ResourceSliceCount: 2}}
		if name == "counters" {
			slice.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "card"}}
		}
		c.ResourceSlices.Set(slice)
	}
	set("counters", "a")
	var x deviceIndex
	for _, at := range []struct {
		node   string
		shared int
	}{{"a", 0}, {"b", 1}, {"a", 0}} {
		set("devices", at.node)
		if x.followCluster(c); x.sharedPools != at.shared {
			t.Errorf("with devices on node %s, %d pools are shared, want %d", at.node, x.sharedPools, at.shared)
		}
	}
}
