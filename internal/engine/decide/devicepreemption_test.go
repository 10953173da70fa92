// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"cmp"
	"flag"
	"fmt"
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
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

var (
	deviceWorlds = flag.Int("device-worlds", 200, "number of random worlds of TestVictimsForDevices")
	deviceWorld0 = flag.Uint64("device-world-seed", 0, "the first of these worlds")
)

// TestVictimsForDevices compares preemption for devices with brute force in random small worlds. A
// node has victims if and only if the removal of some less important pods gives the pod its
// devices; the victims are then the least important ones, and the cheapest node is chosen.
func TestVictimsForDevices(t *testing.T) {
	profile := preemptingProfile(t)
	outcomes := map[string]int{}
	for seed := *deviceWorld0; seed < *deviceWorld0+uint64(*deviceWorlds); seed++ {
		w := newDeviceWorld(t, profile, seed)
		p := w.pending()
		decider := decide.New(w.c, profile, seed)
		if found := decider.Decide(p); found.Node != nil || found.Err != nil {
			if found.Err != nil || !w.fits(p, found.Node, nil, nil) {
				t.Fatalf("world %d: %v fits on %v (error: %v), which brute force denies\n%s", seed, p.Name(), found.Node, found.Err, w.text())
			}
			outcomes["fits"]++
			continue
		}
		plain := decide.NewPlain(w.c, profile)
		fast, slow := decider.Preempt(p), plain.Preempt(p, plain.Evaluate(p))
		want, best := w.cheapest(p)
		for name, got := range map[string]decide.Preemption{"fast": fast, "plain": slow} {
			ok := false
			switch {
			case want == "awaits":
				ok = got.Node == nil && got.Ineligible
			case len(best) == 0:
				ok = got.Node == nil && !got.Ineligible
			default:
				ok = got.Node != nil && slices.Contains(best, got.Node.Name+":"+namesOf(got.Victims))
			}
			if !ok {
				t.Fatalf("world %d, %s: %s for %s on %v, %s; want %s %v\n%s", seed, name, namesOf(got.Victims), p.Name(), got.Node, got.Message, want, best, w.text())
			}
		}
		outcomes[want]++
	}
	t.Log(outcomes)
	for _, outcome := range []string{"fits", "victims", "none", "awaits"} {
		if *deviceWorlds >= 200 && outcomes[outcome] < *deviceWorlds/100 {
			t.Errorf("only %d worlds have the outcome %q: %v", outcomes[outcome], outcome, outcomes)
		}
	}
}

func preemptingProfile(tb testing.TB) *plugins.Profile {
	tb.Helper()
	c, err := config.Default(config.Options{PreemptDevices: true})
	if err != nil {
		tb.Fatal(err)
	}
	return c.Profiles[0]
}

func namesOf(pods []*cluster.Pod) string {
	var names []string
	for _, p := range pods {
		names = append(names, p.Name())
	}
	slices.Sort(names)
	return strings.Join(names, ",")
}

// deviceWorld is a cluster of a few nodes with devices of three drivers: whole devices, some with
// binding conditions, devices with consumable capacity, and partitions of a counter set. Every
// capacity and counter is 4.
type deviceWorld struct {
	*rand.Rand
	c        *cluster.Cluster
	profile  *plugins.Profile
	consumes map[string]int64 // of partitions, by device
	tainted  map[string]bool
	gone     []types.UID // pods that have left without the release of their claims
	pods     int
}

func newDeviceWorld(t *testing.T, profile *plugins.Profile, seed uint64) *deviceWorld {
	t.Helper()
	w := &deviceWorld{Rand: rand.New(rand.NewPCG(seed, 72)), c: cluster.New(), profile: profile,
		consumes: map[string]int64{}, tainted: map[string]bool{}}
	for _, class := range []string{"whole", "share", "part"} {
		object := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Spec: resourcev1.DeviceClassSpec{
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", class)}}},
		}}
		if class == "whole" {
			object.Spec.ExtendedResourceName = new("example.com/gpu")
		}
		w.c.DeviceClasses.Set(object)
	}
	for i := range 2 + w.IntN(3) {
		w.addNode(fmt.Sprintf("node-%d", i))
	}
	decider := decide.New(w.c, profile, seed)
	for range 2 + w.IntN(10) {
		p := w.pod(int32(w.IntN(4)))
		if found := decider.Decide(p); found.Node != nil {
			reserveAll(t, w.c, profile, p, found.Node)
		} else if found.Err != nil {
			t.Fatal(found.Err)
		}
	}
	if w.IntN(4) == 0 {
		w.taint()
	}
	if w.IntN(4) == 0 {
		for _, n := range w.c.Nodes {
			if len(n.Pods) > 0 && w.IntN(2) == 0 {
				w.gone = append(w.gone, n.Pods[0].UID())
				w.c.RemovePod(n.Pods[0].UID())
			}
		}
	}
	return w
}

func (w *deviceWorld) addNode(name string) {
	w.c.SetNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("6"), v1.ResourceMemory: resource.MustParse("7Gi"), v1.ResourcePods: resource.MustParse("9")}}})
	pool := func(driver, slice string, slices int64) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: slice + "-" + name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, ResourceSliceCount: slices}}}
	}
	if count := w.IntN(4); count > 0 {
		slice := pool("whole", "whole", 1)
		for i := range count {
			device := resourcev1.Device{Name: fmt.Sprint("gpu-", i)}
			if w.IntN(4) == 0 {
				device.BindingConditions, device.BindingFailureConditions = []string{"attached"}, []string{"failed"}
				device.BindsToNode = new(w.IntN(2) == 0)
			}
			slice.Spec.Devices = append(slice.Spec.Devices, device)
		}
		w.c.ResourceSlices.Set(slice)
	}
	if count := w.IntN(3); count > 0 {
		slice := pool("share", "share", 1)
		for i := range count {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", i), AllowMultipleAllocations: new(true),
				Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"milli": {Value: resource.MustParse("4")}}})
		}
		w.c.ResourceSlices.Set(slice)
	}
	if w.IntN(3) == 0 {
		counters, slice := pool("part", "counters", 2), pool("part", "parts", 2)
		counters.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "set", Counters: map[string]resourcev1.Counter{"milli": {Value: resource.MustParse("4")}}}}
		for i := range 1 + w.IntN(3) {
			device := resourcev1.Device{Name: fmt.Sprint("part-", i)}
			takes := int64(1) << w.IntN(3)
			w.consumes["part/"+name+"/"+device.Name] = takes
			device.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "set",
				Counters: map[string]resourcev1.Counter{"milli": {Value: *resource.NewQuantity(takes, resource.DecimalSI)}}}}
			slice.Spec.Devices = append(slice.Spec.Devices, device)
		}
		w.c.ResourceSlices.Set(counters)
		w.c.ResourceSlices.Set(slice)
	}
}

// taint taints some devices of all nodes.
func (w *deviceWorld) taint() {
	for _, slice := range w.c.ResourceSlices.All() {
		slice = slice.DeepCopy()
		for i := range slice.Spec.Devices {
			if w.IntN(3) == 0 {
				slice.Spec.Devices[i].Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
				w.tainted[slice.Spec.Driver+"/"+slice.Spec.Pool.Name+"/"+slice.Spec.Devices[i].Name] = true
			}
		}
		w.c.ResourceSlices.Set(slice)
	}
}

func (w *deviceWorld) pending() *cluster.Pod { return w.pod(int32(1 + w.IntN(3))) }

// pod draws a pod with a claim of its own, a claim from a template, a claim shared with other pods,
// an extended resource, admin access, or no claim.
func (w *deviceWorld) pod(priority int32) *cluster.Pod {
	w.pods++
	name := fmt.Sprintf("pod-%d", w.pods)
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Spec: v1.PodSpec{
			SchedulerName: v1.DefaultSchedulerName, Priority: &priority,
			Containers: []v1.Container{{Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				v1.ResourceCPU: *resource.NewQuantity(int64(w.IntN(3)), resource.DecimalSI)}}}},
		},
		Status: v1.PodStatus{StartTime: new(metav1.NewTime(time.Unix(int64(1000+w.IntN(5)), 0)))},
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "claim-" + name, UID: types.UID("claim-" + name)},
		Spec:       resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: w.requests()}},
	}
	switch w.IntN(8) {
	case 0:
		pod.Spec.Containers[0].Resources.Requests["example.com/gpu"] = *resource.NewQuantity(int64(1+w.IntN(2)), resource.DecimalSI)
		return w.c.Pending(pod)
	case 1:
		return w.c.Pending(pod)
	case 2, 3:
		claim.Name = fmt.Sprint("shared-", w.IntN(2))
		claim.UID = types.UID(claim.Name)
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim.Name}}
		if _, ok := w.c.ResourceClaims.Get("default", claim.Name); ok {
			return w.c.Pending(pod)
		}
	case 4:
		claim.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: pod.UID, Controller: new(true)}}
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimTemplateName: new("template")}}
		pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "r", ResourceClaimName: &claim.Name}}
	case 5:
		first := claim.Spec.Devices.Requests[0].Exactly
		if w.IntN(2) == 0 && first.DeviceClassName == "whole" && len(claim.Spec.Devices.Requests) == 1 { // other devices limit admin access as well
			first.AdminAccess = new(true)
		}
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim.Name}}
	default:
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: &claim.Name}}
	}
	w.c.ResourceClaims.Set(claim)
	return w.c.Pending(pod)
}

func (w *deviceWorld) requests() (list []resourcev1.DeviceRequest) {
	for i := range 1 + w.IntN(5)/4 {
		exactly := &resourcev1.ExactDeviceRequest{DeviceClassName: []string{"whole", "whole", "share", "part"}[w.IntN(4)],
			AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}
		switch {
		case exactly.DeviceClassName == "share":
			exactly.Capacity = &resourcev1.CapacityRequirements{Requests: map[resourcev1.QualifiedName]resource.Quantity{
				"milli": *resource.NewQuantity(int64(1)<<w.IntN(3), resource.DecimalSI)}}
		case exactly.DeviceClassName == "whole" && w.IntN(8) == 0:
			exactly.AllocationMode, exactly.Count = resourcev1.DeviceAllocationModeAll, 0
		default:
			exactly.Count = int64(1 + w.IntN(2))
		}
		if w.IntN(4) == 0 {
			exactly.Tolerations = []resourcev1.DeviceToleration{{Key: "broken", Operator: resourcev1.DeviceTolerationOpExists}}
		}
		list = append(list, resourcev1.DeviceRequest{Name: fmt.Sprint("r", i), Exactly: exactly})
	}
	return list
}

// fits reports by brute force whether a pod fits on a node without some of its pods.
func (w *deviceWorld) fits(p *cluster.Pod, n *cluster.Node, without []*cluster.Pod, gone []types.UID) bool {
	cpu, pods := p.Class.Requests.MilliCPU, 1
	for _, o := range n.Pods {
		if !slices.Contains(without, o) {
			cpu, pods = cpu+o.Class.Requests.MilliCPU, pods+1
		}
	}
	if cpu > 6000 || pods > 9 {
		return false
	}
	used := map[string]int64{} // by device: 4 for a whole device
	for claim := range w.c.ResourceClaims.Each {
		if claim.Status.Allocation == nil {
			continue
		}
		released := len(claim.Status.ReservedFor) > 0
		for _, holder := range claim.Status.ReservedFor {
			released = released && (slices.Contains(gone, holder.UID) ||
				slices.ContainsFunc(without, func(o *cluster.Pod) bool { return o.UID() == holder.UID }))
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if released || ptr.Deref(r.AdminAccess, false) {
				continue
			}
			takes := int64(4)
			if amount, ok := r.ConsumedCapacity["milli"]; ok {
				takes = amount.Value()
			}
			used[r.Driver+"/"+r.Pool+"/"+r.Device] += takes
		}
	}
	var requests []resourcev1.DeviceRequest
	if amount := p.Class.Requests.Scalars["example.com/gpu"]; amount > 0 {
		requests = append(requests, resourcev1.DeviceRequest{Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "whole", Count: amount}})
	}
	for _, r := range p.Object().Spec.ResourceClaims {
		name := ptr.Deref(r.ResourceClaimName, "claim-"+p.Name())
		claim, _ := w.c.ResourceClaims.Get("default", name)
		if allocation := claim.Status.Allocation; allocation == nil {
			requests = append(requests, claim.Spec.Devices.Requests...)
		} else if allocation.NodeSelector.NodeSelectorTerms[0].MatchFields[0].Values[0] != n.Name {
			return false
		}
	}
	return w.assign(n.Name, requests, used, "")
}

// assign tries all devices for the first request, and then the other requests.
func (w *deviceWorld) assign(node string, requests []resourcev1.DeviceRequest, used map[string]int64, after string) bool {
	if len(requests) == 0 {
		return true
	}
	r := *requests[0].Exactly
	if r.AllocationMode == resourcev1.DeviceAllocationModeExactCount && r.Count == 0 || r.AllocationMode == "" && r.Count == 0 {
		return w.assign(node, requests[1:], used, "")
	}
	var devices []string
	for _, slice := range w.c.ResourceSlices.All() {
		for _, d := range slice.Spec.Devices {
			if *slice.Spec.NodeName == node && slice.Spec.Driver == r.DeviceClassName {
				devices = append(devices, slice.Spec.Driver+"/"+node+"/"+d.Name)
			}
		}
	}
	wanted, admin := int64(4), ptr.Deref(r.AdminAccess, false)
	if r.Capacity != nil {
		amount := r.Capacity.Requests["milli"]
		wanted = amount.Value()
	}
	free := func(device string) bool {
		counted := w.consumes[device]
		for other, takes := range w.consumes {
			if strings.HasPrefix(other, "part/"+node+"/") && used[other] > 0 {
				counted += takes
			}
		}
		return (!w.tainted[device] || len(r.Tolerations) > 0) && (admin || used[device]+wanted <= 4 && (w.consumes[device] == 0 || counted <= 4))
	}
	if r.AllocationMode == resourcev1.DeviceAllocationModeAll {
		for _, device := range devices {
			if !free(device) {
				return false
			}
			if !admin {
				used[device] += wanted
			}
		}
		return len(devices) > 0 && w.assign(node, requests[1:], used, "")
	}
	r.Count--
	rest := slices.Clone(requests)
	rest[0].Exactly = &r
	for _, device := range devices {
		if device <= after || !free(device) {
			continue
		}
		if !admin {
			used[device] += wanted
		}
		if w.assign(node, rest, used, device) {
			return true
		}
		if !admin {
			used[device] -= wanted
		}
	}
	return false
}

// cheapest finds the outcome of preemption, and lists the cheapest nodes with their victims.
func (w *deviceWorld) cheapest(p *cluster.Pod) (outcome string, best []string) {
	var lowest []int64
	for _, n := range w.c.Nodes {
		if w.fits(p, n, nil, w.gone) {
			return "awaits", nil
		}
		victims := w.victims(p, n)
		if victims == nil {
			continue
		}
		cost := []int64{int64(victims[0].Class.Priority), 0, int64(len(victims)), 0}
		for _, v := range victims {
			cost[1] += int64(v.Class.Priority) + 1<<31
			if v.Class.Priority == victims[0].Class.Priority {
				cost[3] = min(cost[3], -v.Started.UnixNano())
			}
		}
		cost[3] = -victims[0].Started.UnixNano()
		switch slices.Compare(cost, lowest) {
		case -1:
			lowest, best = cost, []string{n.Name + ":" + namesOf(victims)}
		case 0:
			best = append(best, n.Name+":"+namesOf(victims))
		default:
			if lowest == nil {
				lowest, best = cost, []string{n.Name + ":" + namesOf(victims)}
			}
		}
	}
	if len(best) == 0 {
		return "none", nil
	}
	return "victims", best
}

// victims tries all sets of less important pods of a node, and returns the set that spares the most
// important pods, the most important first; nil if the pod fits without none of them.
func (w *deviceWorld) victims(p *cluster.Pod, n *cluster.Node) (best []*cluster.Pod) {
	var lower []*cluster.Pod
	for _, o := range n.Pods {
		if o.Class.Priority < p.Class.Priority {
			lower = append(lower, o)
		}
	}
	slices.SortFunc(lower, func(a, b *cluster.Pod) int {
		return cmp.Or(cmp.Compare(b.Class.Priority, a.Class.Priority), cmp.Compare(a.Started.UnixNano(), b.Started.UnixNano()), cmp.Compare(a.UID(), b.UID()))
	})
	for set := 1; set < 1<<len(lower); set++ { // bit len-1 is the most important pod: a lower number spares more important pods
		var victims []*cluster.Pod
		for i, o := range lower {
			if set>>(len(lower)-1-i)&1 == 1 {
				victims = append(victims, o)
			}
		}
		if w.fits(p, n, victims, w.gone) {
			return victims
		}
	}
	return nil
}

// text describes the world.
func (w *deviceWorld) text() string {
	var b strings.Builder
	for _, n := range w.c.Nodes {
		fmt.Fprintf(&b, "%s:", n.Name)
		for _, p := range n.Pods {
			fmt.Fprintf(&b, " %s(priority %d, %dm)", p.Name(), p.Class.Priority, p.Class.Requests.MilliCPU)
		}
		b.WriteByte('\n')
	}
	for _, slice := range w.c.ResourceSlices.All() {
		fmt.Fprintf(&b, "slice %s:", slice.Name)
		for _, d := range slice.Spec.Devices {
			id := slice.Spec.Driver + "/" + slice.Spec.Pool.Name + "/" + d.Name
			fmt.Fprintf(&b, " %s(%d, tainted %t)", d.Name, w.consumes[id], w.tainted[id])
		}
		b.WriteByte('\n')
	}
	for _, claim := range w.c.ResourceClaims.All() {
		fmt.Fprintf(&b, "claim %s:", claim.Name)
		for _, r := range claim.Spec.Devices.Requests {
			fmt.Fprintf(&b, " %s %d %s %v", r.Exactly.DeviceClassName, r.Exactly.Count, r.Exactly.AllocationMode, r.Exactly.Capacity)
		}
		if claim.Status.Allocation != nil {
			for _, r := range claim.Status.Allocation.Devices.Results {
				fmt.Fprintf(&b, " holds %s/%s/%s (admin %t)", r.Driver, r.Pool, r.Device, ptr.Deref(r.AdminAccess, false))
			}
		}
		for _, h := range claim.Status.ReservedFor {
			fmt.Fprintf(&b, " for %s", h.Name)
		}
		b.WriteByte('\n')
	}
	return b.String()
}
