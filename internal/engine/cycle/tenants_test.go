// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/world/hostile"
)

var (
	tenants    = flag.Int("tenants", 24, "tenants of TestWhateverATenantStoresHoldsNobodyUp")
	tenantSeed = flag.Uint64("tenantseed", 0, "the first tenant of TestWhateverATenantStoresHoldsNobodyUp")
)

// The limits of a tenant's cost to other tenants. Times are processor times, excluding garbage
// collection, on a machine that runs [unit] in [usualUnit].
const (
	// mostOfStep is the maximum time of the core for one event or one decision.
	mostOfStep = 100 * time.Millisecond
	// mostOfEvent is the maximum average time of another tenant's event.
	mostOfEvent = time.Millisecond
	// mostOfAside is the maximum time of one asynchronous question: meanwhile, other pods wait for
	// the answers to their questions.
	mostOfAside = 2 * time.Second
	// mostMemory is the maximum growth of memory with a tenant's objects and their cached state.
	// The objects have at most roomOfTenant of text in total.
	mostMemory   = 256 << 20
	roomOfTenant = 12 << 20
	// mostLeft is the maximum memory remaining after the deletion of all tenants.
	mostLeft = 32 << 20
)

// usualUnit is the duration of unit on the reference machine for these bounds, when idle.
const usualUnit = 36 * time.Millisecond

// unit returns the processor time of a fixed piece of work. The time grows with the load of the
// machine.
func unit(t *testing.T) time.Duration {
	before := processorTime(t)
	for range 4 {
		all := map[string]int{}
		for i := range 50_000 {
			all[strconv.Itoa(i)] = i
		}
	}
	return processorTime(t) - before
}

// awaitCalm waits until the machine has little other load, for at most three seconds.
func awaitCalm(t *testing.T) {
	for began := time.Now(); unit(t) > usualUnit*5/4 && time.Since(began) < 3*time.Second; {
	}
}

// followed lists the kinds of a tenant's objects that are shown to the core.
var followed = map[string]Kind{
	"Pod": Pods, "PersistentVolumeClaim": Claims, "PodDisruptionBudget": DisruptionBudgets, "ResourceClaim": ResourceClaims, "Service": Services,
	"ReplicationController": ReplicationControllers, "ReplicaSet": ReplicaSets, "StatefulSet": StatefulSets, "PodGroup": PodGroups,
	"CompositePodGroup": CompositePodGroups,
}

// neighbourhood returns a crowd with objects for tenants to refer to: storage classes with and
// without volumes, device classes and devices, and nodes with room.
func neighbourhood(t *testing.T) *crowd {
	c := newCrowdThatFollows(t, Options{PrepareAside: true, Groups: groups.Gates{Generic: true, Topology: true, Composite: true}}, allKinds...)
	later := storagev1.VolumeBindingWaitForFirstConsumer
	for _, class := range []string{"made", "local", "zonal"} {
		c.tell(Seen{StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "csi.example.com", VolumeBindingMode: &later}})
	}
	for i := range 1000 {
		c.tell(Seen{Volumes, &v1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("v-", i), Labels: map[string]string{"app": "app-1"}},
			Spec: v1.PersistentVolumeSpec{StorageClassName: "local", Capacity: v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")},
				AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}},
			Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable},
		}})
	}
	for i := range 3000 {
		volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("z-", i)}, Status: v1.PersistentVolumeStatus{Phase: v1.VolumeAvailable}}
		volume.Spec.StorageClassName, volume.Spec.AccessModes = "zonal", []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
		volume.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		volume.Spec.NodeAffinity = &v1.VolumeNodeAffinity{Required: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{
			{MatchExpressions: []v1.NodeSelectorRequirement{{Key: v1.LabelTopologyZone, Operator: v1.NodeSelectorOpIn, Values: []string{"z1"}}}},
		}}}
		c.tell(Seen{Volumes, volume})
	}
	c.tell(Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	for i := range 200 {
		name := fmt.Sprint("class-", i)
		c.tell(Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("e.com/" + name)}}})
	}
	for i := range 100 {
		devices := 2
		if i < 20 {
			devices = devicesOfHard
		}
		c.tell(Seen{ResourceSlices, devicesOf(fmt.Sprint("node-", i), devices)})
		if i%20 != 19 { // the other nodes stay full; see ordinary
			c.tell(Gone{Pods, aPod(fmt.Sprint("low-", i, "-9"), "100m")})
		}
	}
	return c
}

// devicesOfHard is the number of devices of a node for which a search can be long. Without the
// limit of an attempt, a search on 20 nodes takes some seconds.
const devicesOfHard = 28

// devicesOf returns the devices of a node, half of one kind and half of another. Another node's
// devices differ, so cached results do not apply to them.
func devicesOf(node string, devices int) *resourcev1.ResourceSlice {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID(node)}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
	}}
	for i := range devices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{
			Name:       fmt.Sprint("gpu-", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"half": {IntValue: new(int64(i % 2))}, "of": {StringValue: &node}},
			Capacity:   map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	return slice
}

// cost is a tenant's cost to other tenants.
type cost struct {
	step, event, decision, aside time.Duration
	which                        string // description of the most expensive step
	memory                       int64
	stored                       int
}

// tooMuch reports whether a tenant exceeded its allowed cost, on a machine slower by the given
// factor.
func (of *cost) tooMuch(slower float64) bool {
	most := func(d time.Duration) time.Duration { return time.Duration(float64(d) * slower) }
	return max(of.step, of.decision) > most(mostOfStep) || of.event > most(mostOfEvent) || of.aside > most(mostOfAside) || of.memory > mostMemory
}

// atWorst keeps the maximum of each cost.
func (of *cost) atWorst(other cost) {
	of.step, of.decision = max(of.step, other.step), max(of.decision, other.decision)
	of.event, of.aside = max(of.event, other.event), max(of.aside, other.aside)
	of.memory, of.stored = max(of.memory, other.memory), of.stored+other.stored
}

// timed sends the core an event, and records the processing time.
func (c *crowd) timed(of *cost, which string, e Event) (took time.Duration) {
	before := processorTime(c.T)
	actions := c.tell(e)
	if took = processorTime(c.T) - before; took > of.step {
		of.step, of.which = took, which
	}
	for _, a := range slices.Clone(actions) {
		if ask, is := a.(Ask); is { // an asynchronous question delays no other pod
			before := processorTime(c.T)
			ask.Query.Run(context.Background())
			of.aside = max(of.aside, processorTime(c.T)-before)
			c.timed(of, which+", an answer from aside", Answered{Ticket: ask.Ticket})
		}
	}
	return took
}

// ordinary shows the core another tenant's pod, and lets the core decide it. The pod finds room, or
// must preempt if full is set.
func (c *crowd) ordinary(of *cost, name string, full bool) {
	pod := aPod(name, "100m")
	pod.Namespace, pod.Labels, pod.Spec.Priority = "other", map[string]string{"app": "app-1"}, new(int32(10_000))
	if full { // the pod must preempt
		pod.Spec.NodeSelector = map[string]string{"k18": "19"}
	}
	took := c.timed(of, "an ordinary pod", Seen{Pods, pod})

	before := processorTime(c.T)
	var removals []Ticket
	for _, a := range c.tell(Tick{}) {
		if r, is := a.(Remove); is {
			removals = append(removals, r.Ticket)
		}
	}
	took += processorTime(c.T) - before
	of.decision = max(of.decision, took)
	c.tell(Gone{Pods, pod})
	for _, ticket := range removals { // the removals are refused, so that the victims remain for the next attempt
		c.tell(Answered{ticket, Outcome{Fault: &Fault{Message: "refused"}}})
	}
}

// tenant stores the objects of a seed, lets the core try the tenant's pods, and then decides for
// other tenants. At the end all of the objects are deleted.
func (c *crowd) tenant(seed uint64, weigh bool) (of cost) {
	before := int64(0)
	if weigh {
		before = heapInUse()
	}
	var gone []Event
	c.tenants++
	if seed%8 == 7 {
		gone = c.storeTogether(&of, combinations[seed/8%uint64(len(combinations))](fmt.Sprintf("t%x-", c.tenants)))
	} else {
		gone = c.storeFields(&of, seed)
	}
	for range 20 {
		c.timed(&of, "the tenant's pods", Tick{})
	}

	c.ordinary(&of, fmt.Sprint("roomy-", seed), false)
	c.ordinary(&of, fmt.Sprint("full-", seed), true)
	of.event = c.events()
	if weigh {
		of.memory = heapInUse() - before
	}

	for _, e := range gone {
		c.timed(&of, "what goes", e)
	}
	c.refuseAll()
	c.now = c.now.Add(20 * time.Second) // longer than any back-off
	return of
}

// refuseAll completes all outstanding actions with the API server's response for deleted objects.
func (c *crowd) refuseAll() {
	for len(c.asked) > 0 {
		asked := c.asked
		c.asked = nil
		for _, ticket := range asked {
			c.tell(Answered{ticket, Outcome{Fault: &Fault{Message: "not found"}}})
		}
	}
}

// storeFields stores objects, each with one field of maximum length, and returns the events
// deleting them.
func (c *crowd) storeFields(of *cost, seed uint64) (gone []Event) {
	g := &hostile.Generator{Rand: rand.New(rand.NewPCG(seed, 1)), Prefix: fmt.Sprintf("t%03x", c.tenants)}
	for range 1 + g.IntN(3) {
		kind := hostile.Kinds[g.IntN(len(hostile.Kinds))]
		at, known := followed[kind.Name]
		if !known {
			continue
		}
		paths := hostile.Paths(kind)
		path, full := paths[g.IntN(len(paths))], g.IntN(3) == 0
		copies := []int{1, 4, 100}[g.IntN(3)]
		g.Known = []int{0, 20, 90}[g.IntN(3)]
		var names []string
		for i := range copies {
			object := g.Object(kind, path, min(hostile.RoomOfObject, roomOfTenant/3/copies), full)
			if pod, is := object.(*v1.Pod); is {
				c.prepared(pod, g)
			}
			of.stored++
			c.timed(of, fmt.Sprintf("%s with %s", kind.Name, path), Seen{at, object})
			gone = append(gone, Gone{at, object})
			names = append(names, object.GetName())
			if i < 10 {
				c.timed(of, fmt.Sprintf("attempts beside %s with %s", kind.Name, path), Tick{})
			}
		}
		if pod := using(at, names[:min(len(names), 8)], seed); pod != nil {
			c.timed(of, "a pod that uses "+kind.Name, Seen{Pods, pod})
			gone = append(gone, Gone{Pods, pod})
		}
	}
	return gone
}

// storeTogether stores objects, and returns the events deleting them.
func (c *crowd) storeTogether(of *cost, all []Event) (gone []Event) {
	for _, e := range all {
		seen := e.(Seen)
		of.stored++
		c.timed(of, fmt.Sprintf("one of %d objects that meet, %v", len(all), seen.Kind), e)
		gone = append(gone, Gone(seen))
	}
	return gone
}

// using returns a pod of the tenant that uses these claims, or nil for other kinds.
func using(kind Kind, names []string, seed uint64) *v1.Pod {
	if kind != Claims && kind != ResourceClaims {
		return nil
	}
	pod := aPod(fmt.Sprint("using-", kind, seed), "100m")
	pod.Namespace, pod.Spec.Priority = hostile.Namespace, new(int32(3000)) // decided before the tenant's other pods
	for i, name := range names {
		if kind == Claims {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
		} else {
			pod.Spec.ResourceClaims = append(pod.Spec.ResourceClaims, v1.PodResourceClaim{Name: fmt.Sprint("r", i), ResourceClaimName: &names[i]})
		}
	}
	return pod
}

// prepared adds to a pod the fields present on every pod accepted by the API server.
func (c *crowd) prepared(pod *v1.Pod, g *hostile.Generator) {
	pod.Spec.SchedulerName, pod.Spec.Priority = v1.DefaultSchedulerName, new(g.Int32N(3)*1000)
	if len(pod.Spec.Containers) == 0 {
		pod.Spec.Containers = aPod("", "100m").Spec.Containers
	}
	if len(pod.Spec.SchedulingGates) > 0 && len(pod.Spec.SchedulingGates) < 10 {
		pod.Spec.SchedulingGates = nil
	}
	if len(pod.Labels) == 0 {
		pod.Labels = map[string]string{"app": "app-1"}
	}
	if pod.Spec.NodeName = ""; g.IntN(2) == 0 {
		pod.Spec.NodeName = fmt.Sprint("node-", g.IntN(crowdNodes))
	}
}

// events measures the time of another tenant's event.
func (c *crowd) events() time.Duration {
	const events = 20
	before := processorTime(c.T)
	for i := range events {
		pod := aPod(fmt.Sprint("low-", i, "-0"), "100m")
		pod.Labels, pod.Spec.NodeName, pod.Spec.Priority = map[string]string{"app": "app-0", "event": fmt.Sprint(i % 5)}, fmt.Sprint("node-", i), new(int32(-10))
		c.tell(Seen{Pods, pod})
		pod = pod.DeepCopy()
		pod.Labels = map[string]string{"app": "app-0"}
		c.tell(Seen{Pods, pod})
	}
	return (processorTime(c.T) - before) / (2 * events)
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWhateverATenantStoresHoldsNobodyUp verifies that no event and no decision occupies the core
// for long if tenants store objects of every kind, each with one field of maximum length. A failure
// names its tenant.
func TestWhateverATenantStoresHoldsNobodyUp(t *testing.T) {
	measuresTime(t)
	c := neighbourhood(t)
	var without, worst cost
	for i := range 3 { // the first repetitions fill caches that are kept
		without = cost{}
		c.ordinary(&without, fmt.Sprint("first-roomy-", i), false)
		c.ordinary(&without, fmt.Sprint("first-full-", i), true)
	}
	begin := heapInUse()

	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	for seed := *tenantSeed; seed < *tenantSeed+uint64(*tenants); seed++ {
		if seed%16 == 0 {
			runtime.GC()
		}
		of := c.tenant(seed, seed%16 == 15)
		for again := 0; of.tooMuch(1) && again < measurings; again++ {
			awaitCalm(t)
			runtime.GC()
			slower := max(1, float64(unit(t))/float64(usualUnit))
			if of = c.tenant(seed, true); again == measurings-1 && of.tooMuch(slower) {
				t.Errorf("tenant %d, with %d objects: %s took %v; a decision %v, an event %v, aside %v, %d MiB; this machine is %.1f times as slow as usual",
					seed, of.stored, of.which, of.step, of.decision, of.event, of.aside, of.memory>>20, slower)
			}
		}
		worst.atWorst(of)
	}
	for i := range 3 { // no other pods arrive for a while
		c.now = c.now.Add(time.Minute)
		c.tell(Tick{})
		c.ordinary(&worst, fmt.Sprint("last-", i), false)
	}
	left := min(heapInUse(), heapInUse()) - begin
	if runtime.KeepAlive(c); left > mostLeft {
		t.Errorf("%d MiB are left of %d tenants that are gone", left>>20, *tenants)
	}
	t.Logf("%d tenants with %d objects: a step takes %v at worst, an ordinary pod %v (without them %v), an event %v, aside %v; %d MiB more, %d left",
		*tenants, worst.stored, worst.step, worst.decision, without.decision, worst.event, worst.aside, worst.memory>>20, left>>20)
}
