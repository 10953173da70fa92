// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"cmp"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

var deviceRuns = flag.Int("device-runs", 15, "runs of TestNoVictimForDevicesLeavesInVain")

// TestNoVictimForDevicesLeavesInVain verifies that every pod that preempts for devices runs on the
// node of its victims, and that other pods of at most its priority do not get the devices in
// between. Victims terminate slowly, the controller releases their claims even later, and the
// scheduler restarts at any time.
func TestNoVictimForDevicesLeavesInVain(t *testing.T) {
	victims, restarts := 0, 0
	for seed := range uint64(*deviceRuns) {
		r := newDeviceRun(t, seed)
		for i := range 30 {
			r.arrive(fmt.Sprintf("first-%d", i), 0)
		}
		r.play(time.Minute)
		for i := range 25 {
			r.arrive(fmt.Sprintf("later-%d", i), []int32{0, 10, 10}[r.IntN(3)])
			r.play(time.Duration(r.IntN(1500)) * time.Millisecond)
			if seed%3 == 0 && r.IntN(4) == 0 {
				r.restart()
				restarts++
			}
		}
		r.play(10 * time.Minute)
		for preemptor, node := range r.promised {
			if p := r.pod(preemptor); p == nil || p.Spec.NodeName != node {
				t.Errorf("seed %d: %s preempted on %s, and did not arrive there", seed, preemptor, node)
			}
		}
		victims += r.victims
	}
	t.Logf("%d victims, %d restarts", victims, restarts)
	if victims < 4**deviceRuns {
		t.Errorf("only %d victims", victims)
	}
}

// TestAGangPreemptsForDevices verifies that a gang preempts for its devices, in the cheapest rack:
// as many pods as it needs devices, and none elsewhere. Pods of at most its priority do not get the
// devices if they arrive while the victims leave, and a restart does not give the devices away.
func TestAGangPreemptsForDevices(t *testing.T) {
	const size = 8
	for seed := range uint64(*deviceRuns+5) / 8 {
		r := emptyDeviceRun(t, seed, groups.Gates{Generic: true, Topology: true})
		racks := map[string]int32{"a": 3, "b": 1, "c": 9} // with the priority of its pods
		for _, rack := range slices.Sorted(maps.Keys(racks)) {
			for i := range 2 {
				node := fmt.Sprint(rack, "-", i)
				r.addNode(node, rack, size/2+1)
				for j := range size/2 + 1 {
					r.arriveWithDevice(fmt.Sprint(node, "-", j), racks[rack], func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"rack": rack} })
				}
			}
		}
		r.play(time.Minute)

		g := gangOf("gang", size)
		g.Spec.SchedulingConstraints, g.Spec.Priority = oneOf("rack"), new(int32(5))
		r.feed(Seen{PodGroups, g})
		for i := range size {
			r.arriveWithDevice(fmt.Sprint("member-", i), 5, func(p *v1.Pod) {
				p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &g.Name}
			})
		}
		for i := range 6 {
			r.play(time.Duration(r.IntN(1000)) * time.Millisecond)
			r.arriveWithDevice(fmt.Sprint("rival-", i), int32(r.IntN(2)*5), func(p *v1.Pod) { p.Spec.PreemptionPolicy = new(v1.PreemptNever) })
			if seed%2 == 1 && r.IntN(2) == 0 {
				r.restart()
			}
		}
		r.play(10 * time.Minute)

		for i := range size {
			if p := r.pod(types.UID(fmt.Sprint("uid-member-", i))); !strings.HasPrefix(p.Spec.NodeName, "b-") {
				t.Errorf("seed %d: %s is on %q: %v", seed, p.Name, p.Spec.NodeName, r.core.Decision(cluster.Name{Namespace: "default", Name: p.Name}).Message)
			}
		}
		if r.victims != size {
			t.Errorf("seed %d: %d victims for %d members", seed, r.victims, size)
		}
	}
}

// deviceRun is an API server with controllers and kubelets in virtual time. Writes of the core take
// a few milliseconds.
type deviceRun struct {
	*rand.Rand
	t           *testing.T
	now         time.Time
	core        *Core
	lives       int // number of cores so far
	controllers claimcontrollers.Controllers
	objects     map[Kind]map[cluster.Name]metav1.Object
	later       []laterStep
	groups      groups.Gates
	promised    map[types.UID]string // nodes of the victims, by preempting pod
	victims     int
}

type laterStep struct {
	at time.Time
	do func()
}

var deviceRunKinds = []Kind{Nodes, DeviceClasses, ResourceSlices, ResourceClaims, PodGroups, Pods}

func newDeviceRun(t *testing.T, seed uint64) *deviceRun {
	t.Helper()
	r := emptyDeviceRun(t, seed, groups.Gates{Generic: true})
	for i := range 1 + r.IntN(4) {
		r.addNode(fmt.Sprint("node-", i), "", 1+r.IntN(4))
	}
	return r
}

func emptyDeviceRun(t *testing.T, seed uint64, gates groups.Gates) *deviceRun {
	t.Helper()
	r := &deviceRun{Rand: rand.New(rand.NewPCG(seed, 72)), t: t, now: begin, objects: map[Kind]map[cluster.Name]metav1.Object{},
		groups: gates, promised: map[types.UID]string{}}
	for _, kind := range deviceRunKinds {
		r.objects[kind] = map[cluster.Name]metav1.Object{}
	}
	r.restart()
	r.feed(Seen{DeviceClasses, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")},
	}})
	return r
}

func (r *deviceRun) addNode(name, rack string, devices int) {
	n := aNode(name, "100")
	if rack != "" {
		n.Labels["rack"] = rack
	}
	r.feed(Seen{Nodes, n})
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("slice-" + name)}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: 1},
	}}
	for j := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", j)})
	}
	r.feed(Seen{ResourceSlices, slice})
}

// restart replaces the core with a new core that reads the current objects.
func (r *deviceRun) restart() {
	c, err := config.Default(config.Options{PreemptDevices: true})
	if err != nil {
		r.t.Fatal(err)
	}
	core, err := New(Options{Profiles: []Profile{{Profile: c.Profiles[0]}}, Seed: 1, Groups: r.groups})
	if err != nil {
		r.t.Fatal(err)
	}
	r.core = core
	r.lives++
	r.controllers = claimcontrollers.Controllers{
		Cluster: core.View().Cluster, Feed: r.feed, Now: func() metav1.Time { return metav1.NewTime(r.now) },
		Named: func(uid types.UID, status *v1.PodExtendedResourceClaimStatus) {
			r.change(uid, func(p *v1.Pod) { p.Status.ExtendedResourceClaimStatus = status })
		},
	}
	show(core, r.now, deviceRunKinds, func(kind Kind) []metav1.Object {
		return slices.SortedFunc(maps.Values(r.objects[kind]), func(a, b metav1.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
	})
}

// arrive creates a pod with a claim of its own, a claim shared with another pod, or an extended
// resource.
func (r *deviceRun) arrive(name string, priority int32) {
	p := aPod(name, "1")
	p.Spec.Priority = &priority
	count := int64(1 + r.IntN(5)/4)
	if r.IntN(4) == 0 {
		p.Spec.Containers[0].Resources.Requests["example.com/gpu"] = *resource.NewQuantity(count, resource.DecimalSI)
		r.feed(Seen{Pods, p})
		return
	}
	claim := claimOf(name, count)
	if priority == 0 && r.IntN(4) == 0 {
		claim.Name = fmt.Sprintf("shared-%d", r.IntN(3))
		claim.UID = types.UID("claim-" + claim.Name)
	}
	if r.objects[ResourceClaims][cluster.Name{Namespace: "default", Name: claim.Name}] == nil {
		r.feed(Seen{ResourceClaims, claim})
	}
	p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim.Name}}
	r.feed(Seen{Pods, p})
}

// claimOf returns a claim for some devices.
func claimOf(name string, count int64) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("claim-" + name)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count},
		}}}},
	}
}

// arriveWithDevice creates a pod with a claim of its own for one device.
func (r *deviceRun) arriveWithDevice(name string, priority int32, edit func(*v1.Pod)) {
	p := aPod(name, "1")
	p.Spec.Priority, p.Spec.ResourceClaims = &priority, []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &name}}
	edit(p)
	r.feed(Seen{ResourceClaims, claimOf(name, 1)})
	r.feed(Seen{Pods, p})
}

func (r *deviceRun) pod(uid types.UID) *v1.Pod {
	for _, object := range r.objects[Pods] {
		if object.GetUID() == uid {
			return object.(*v1.Pod)
		}
	}
	return nil
}

func (r *deviceRun) change(uid types.UID, how func(*v1.Pod)) {
	if p := r.pod(uid); p != nil {
		p = p.DeepCopy()
		how(p)
		r.feed(Seen{Pods, p})
	}
}

// after does something after a random time of at most most.
func (r *deviceRun) after(most time.Duration, do func()) {
	r.later = append(r.later, laterStep{r.now.Add(time.Duration(1 + r.Int64N(int64(most)))), do})
	slices.SortStableFunc(r.later, func(a, b laterStep) int { return a.at.Compare(b.at) })
}

// answer answers the core that requested an action, unless it has been replaced.
func (r *deviceRun) answer(lives int, ticket Ticket, o Outcome) {
	if lives == r.lives && ticket != 0 {
		r.feed(Answered{ticket, o})
	}
}

func (r *deviceRun) feed(e Event) {
	switch e := e.(type) {
	case Seen:
		r.objects[e.Kind][cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()}] = e.Object
		if claim, ok := e.Object.(*resourcev1.ResourceClaim); ok {
			r.checkDevices(claim)
		}
	case Gone:
		delete(r.objects[e.Kind], cluster.Name{Namespace: e.Object.GetNamespace(), Name: e.Object.GetName()})
	}
	for _, action := range slices.Clone(r.core.Step(r.now, e)) {
		r.carryOut(action)
	}
}

// checkDevices verifies that no device of a claim is allocated twice.
func (r *deviceRun) checkDevices(claim *resourcev1.ResourceClaim) {
	for _, object := range r.objects[ResourceClaims] {
		other := object.(*resourcev1.ResourceClaim)
		if other.UID == claim.UID || other.Status.Allocation == nil || claim.Status.Allocation == nil {
			continue
		}
		for _, a := range claim.Status.Allocation.Devices.Results {
			for _, b := range other.Status.Allocation.Devices.Results {
				if a.Pool == b.Pool && a.Device == b.Device {
					r.t.Errorf("%s of %s is allocated to %s and %s", a.Device, a.Pool, claim.Name, other.Name)
				}
			}
		}
	}
}

func (r *deviceRun) carryOut(action Action) {
	const lag, grace, release = 5 * time.Millisecond, 2 * time.Second, time.Second
	if r.controllers.CarryOut(action) {
		return
	}
	lives := r.lives
	switch a := action.(type) {
	case Bind:
		r.after(lag, func() {
			r.change(a.Attempt.Pod.UID, func(p *v1.Pod) { p.Spec.NodeName, p.Status.NominatedNodeName = a.Attempt.Node, "" })
			r.answer(lives, a.Ticket, Outcome{})
			if node, ok := r.promised[a.Attempt.Pod.UID]; ok && node != a.Attempt.Node {
				r.t.Errorf("%s preempted on %s, and is bound to %s", a.Attempt.Pod.Name, node, a.Attempt.Node)
			}
		})
	case Remove:
		victim := r.pod(a.Victim.UID)
		if node, ok := r.promised[a.For]; ok && node != victim.Spec.NodeName {
			r.t.Errorf("%s preempts on %s after it preempted on %s", a.For, victim.Spec.NodeName, node)
		}
		if r.pod(a.For) != nil { // not a group
			r.promised[a.For] = victim.Spec.NodeName
		}
		r.victims++
		r.after(lag, func() {
			r.answer(lives, a.Ticket, Outcome{})
			r.change(a.Victim.UID, func(p *v1.Pod) {
				p.DeletionTimestamp = &metav1.Time{Time: r.now}
				p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
			})
			r.after(grace, func() {
				known := r.core.View().Cluster.Pod(a.Victim.UID)
				if p := r.pod(a.Victim.UID); p != nil && known != nil {
					r.feed(Gone{Pods, p})
					r.after(release, func() { r.controllers.Gone(known) })
				}
			})
		})
	case WriteStatus:
		if a.Nominate != nil {
			if p := r.pod(a.Pod.UID); p != nil && p.Spec.NodeName == "" && p.Status.NominatedNodeName != *a.Nominate {
				r.change(a.Pod.UID, func(p *v1.Pod) { p.Status.NominatedNodeName = *a.Nominate })
			}
		}
		r.answer(lives, a.Ticket, Outcome{})
	case Panicked:
		r.t.Fatalf("panic: %s\n%s", a.Value, a.Stack)
	}
}

// play advances the time.
func (r *deviceRun) play(most time.Duration) {
	for end := r.now.Add(most); ; {
		wake := r.core.Wake(r.now)
		step := len(r.later) > 0 && !r.later[0].at.After(wake)
		if step {
			wake = r.later[0].at
		}
		if wake.After(end) {
			r.now = end
			return
		}
		r.now = latest(r.now, wake)
		if step {
			do := r.later[0].do
			r.later = r.later[1:]
			do()
		} else {
			r.feed(Tick{})
		}
	}
}
