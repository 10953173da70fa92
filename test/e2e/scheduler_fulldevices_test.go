// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

var (
	fullNodes = flag.Int("full-nodes", 64, "nodes of TestAllDevicesAreTakenOver, in racks of eight or nine")
	fullKills = flag.Int("full-kills", 6, "how often it kills a process of Berth")
)

// TestAllDevicesAreTakenOver fills the devices of a cluster with pods of priority 0: devices of one
// pod, devices shared by two pods, and halves of devices. An important pod then needs each device,
// and in a quarter of the racks a gang of eight needs all of them. The first important pod of each
// form must be bound within a second after its victims have ended. While the others wait, the
// scheduler and the controller are killed again and again. At the end, each important pod must have
// a device of its own, and exactly the users of these devices must have left.
func TestAllDevicesAreTakenOver(t *testing.T) {
	nightly.Only(t)
	racks := *fullNodes / 8
	c := start(t, filepath.Join(t.TempDir(), "devices"), "--nodes", fmt.Sprint(*fullNodes), "--zones", fmt.Sprint(racks), "--ui-port", "-1",
		"--feature-gates", "BerthDevicePreemption=true,GenericWorkload=true,TopologyAwareWorkloadScheduling=true,DRAPartitionableDevices=true")
	f := &fullDevices{t: t, c: c, claims: map[string]bool{}}
	eventually(t, patience, func() error { // the ServiceAccount may not exist yet
		_, err := c.client.CoreV1().ServiceAccounts("default").Get(background(), "default", metav1.GetOptions{})
		return err
	})
	f.create(&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "important"}, Value: 1000})
	for _, form := range []string{"own", "shared", "whole", "half", "gang"} {
		class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: form}}
		class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.driver == "full.example.com" && device.attributes["full.example.com"].form == %q`, form)}}}
		f.create(class)
		f.create(&resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: form}, Spec: resourcev1.ResourceClaimTemplateSpec{Spec: oneOf(form)}})
	}
	nodes, err := c.client.CoreV1().Nodes().List(background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	zones := map[string][]string{}
	for _, n := range nodes.Items {
		zone := n.Labels[v1.LabelTopologyZone]
		zones[zone] = append(zones[zone], n.Name)
	}

	// Four forms take turns by rack.
	var important []*v1.Pod // one per device, and those of a gang in a row
	var first [][2]int      // the first important pod of each form, or its first gang: from, to
	low, i := 0, 0
	for _, zone := range slices.Sorted(func(yield func(string) bool) {
		for z := range zones {
			if !yield(z) {
				return
			}
		}
	}) {
		form := []string{"own", "shared", "whole", "gang"}[i%4]
		if len(zones[zone]) != 8 {
			form = "own" // a gang of eight would leave no rack for a gang of nine
		}
		if i < 4 {
			from, size := len(important), 1
			if form == "gang" {
				size = len(zones[zone])
			}
			first = append(first, [2]int{from, from + size})
		}
		i++
		for _, node := range zones[zone] {
			f.createSlices(node, form)
			switch form {
			case "own", "gang":
				f.create(f.pod("low-"+node, form, 0, ""))
				low++
			case "shared":
				f.create(&resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "shared-" + node}, Spec: oneOf("shared")})
				for k := range 2 {
					p := f.pod(fmt.Sprintf("low-%s-%d", node, k), form, 0, "")
					p.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "device", ResourceClaimName: new("shared-" + node)}
					f.create(p)
					low++
				}
			case "whole":
				for k := range 2 {
					f.create(f.pod(fmt.Sprintf("low-%s-%d", node, k), "half", 0, ""))
					low++
				}
			}
			group := ""
			if form == "gang" {
				group = "gang-" + zone
			}
			important = append(important, f.pod("high-"+node, form, 1000, group))
		}
		if form == "gang" {
			gang := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Name: "gang-" + zone}}
			gang.Spec.PriorityClassName = "important"
			gang.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(len(zones[zone]))}
			gang.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{
				Topology: []schedulingv1beta1.TopologyConstraint{{Key: v1.LabelTopologyZone}}}
			f.create(gang)
		}
	}
	f.follow()
	f.await(func() (bool, string) {
		return f.placed("low") == low, fmt.Sprintf("%d of %d pods fill the devices", f.placed("low"), low)
	})
	t.Logf("%d pods fill %d nodes", low, *fullNodes)

	// The first pods of each form, or its first gang, while nothing else happens.
	begun := map[int]bool{}
	for _, k := range first {
		members := important[k[0]:k[1]]
		for j, p := range members {
			begun[k[0]+j] = true
			f.create(p)
		}
		f.await(func() (bool, string) {
			for _, p := range members {
				if f.bound(p.Name).IsZero() {
					return false, p.Name + " is not bound"
				}
			}
			return true, ""
		})
		after := f.sinceVictims(members)
		t.Logf("%s: bound %v after the last victim had ended", members[0].Spec.Containers[0].Name, after.Round(time.Millisecond))
		if after > time.Second {
			t.Errorf("%s was bound %v after its last victim had ended, want within a second", members[0].Name, after)
		}
	}

	// All others, while processes are killed.
	began := time.Now()
	creating := make(chan struct{})
	go func() {
		defer close(creating)
		for k, p := range important {
			if !begun[k] {
				f.create(p)
			}
		}
	}()
	for kill := range *fullKills {
		want := rand.N(len(important))
		f.await(func() (bool, string) {
			n := f.leaving()
			return n >= want*kill / *fullKills, fmt.Sprintf("%d of %d pods are leaving", n, want)
		})
		process := []string{"scheduler\x00", "controller\x00"}[kill%2]
		eventually(t, patience, func() error {
			pid := c.findChild(process)
			if pid == 0 {
				return errors.New("the process killed before has not been restarted")
			}
			return syscall.Kill(pid, syscall.SIGKILL)
		})
	}
	<-creating
	f.await(func() (bool, string) {
		n := f.placed("high")
		return n == len(important), fmt.Sprintf("%d of %d important pods have a node", n, len(important))
	})
	t.Logf("%d important pods have their devices after %v, with %d kills", len(important), time.Since(began).Round(100*time.Millisecond), *fullKills)

	f.mu.Lock()
	defer f.mu.Unlock()
	if left := len(f.gone); left != low {
		t.Errorf("%d of %d pods left", left, low)
	}
	f.everyDeviceOnce(len(important))
}

func oneOf(class string) resourcev1.ResourceClaimSpec {
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: class}}}}}
}

// fullDevices follows the pods of TestAllDevicesAreTakenOver.
type fullDevices struct {
	t      *testing.T
	c      *cluster
	claims map[string]bool

	mu   sync.Mutex
	seen map[string]followed
	gone map[string]followed
}

type followed struct {
	node    string
	since   time.Time // when the pod was bound or, in gone, deleted
	leaving bool
}

func (f *fullDevices) create(object any) {
	f.t.Helper()
	err := poll(patience, func() (err error) {
		switch o := object.(type) {
		case *v1.Pod:
			_, err = f.c.client.CoreV1().Pods("default").Create(background(), o, metav1.CreateOptions{})
		case *schedulingv1.PriorityClass:
			_, err = f.c.client.SchedulingV1().PriorityClasses().Create(background(), o, metav1.CreateOptions{})
		case *schedulingv1beta1.PodGroup:
			_, err = f.c.client.SchedulingV1beta1().PodGroups("default").Create(background(), o, metav1.CreateOptions{})
		case *resourcev1.DeviceClass:
			_, err = f.c.client.ResourceV1().DeviceClasses().Create(background(), o, metav1.CreateOptions{})
		case *resourcev1.ResourceClaimTemplate:
			_, err = f.c.client.ResourceV1().ResourceClaimTemplates("default").Create(background(), o, metav1.CreateOptions{})
		case *resourcev1.ResourceClaim:
			_, err = f.c.client.ResourceV1().ResourceClaims("default").Create(background(), o, metav1.CreateOptions{})
		case *resourcev1.ResourceSlice:
			_, err = f.c.client.ResourceV1().ResourceSlices().Create(background(), o, metav1.CreateOptions{})
		}
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		if apierrors.IsInvalid(err) {
			return fatal{err}
		}
		return err
	})
	if err != nil {
		f.t.Error(err)
	}
}

// createSlices creates the device of a node. A whole device can be divided into two halves.
func (f *fullDevices) createSlices(node, form string) {
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-full"}}
	slice.Spec = resourcev1.ResourceSliceSpec{Driver: "full.example.com", NodeName: &node,
		Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1}}
	device := func(name, form, memory string) {
		d := resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"form": {StringValue: &form}}}
		if memory != "" {
			d.ConsumesCounters = []resourcev1.DeviceCounterConsumption{{CounterSet: "card",
				Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse(memory)}}}}
		}
		slice.Spec.Devices = append(slice.Spec.Devices, d)
	}
	if form != "whole" {
		device("gpu", form, "")
		f.create(slice)
		return
	}
	slice.Spec.Pool.ResourceSliceCount = 2
	counters := slice.DeepCopy()
	counters.Name = node + "-counters"
	counters.Spec.SharedCounters = []resourcev1.CounterSet{{Name: "card",
		Counters: map[string]resourcev1.Counter{"memory": {Value: resource.MustParse("40Gi")}}}}
	f.create(counters)
	device("gpu", "whole", "40Gi")
	device("half-0", "half", "20Gi")
	device("half-1", "half", "20Gi")
	f.create(slice)
}

// pod returns a pod that needs a device of the form. Without a priority it is a victim, which ends
// after its grace period.
func (f *fullDevices) pod(name, form string, priority int32, group string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"role": "low"},
		Annotations: map[string]string{"berth.dev/terminate-after": "1h"}}}
	p.Spec = v1.PodSpec{TerminationGracePeriodSeconds: new(int64(3)),
		ResourceClaims: []v1.PodResourceClaim{{Name: "device", ResourceClaimTemplateName: &form}},
		Containers: []v1.Container{{Name: form, Image: "i", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m")}, Claims: []v1.ResourceClaim{{Name: "device"}}}}}}
	if priority > 0 {
		p.Labels["role"], p.Spec.PriorityClassName = "high", "important"
	}
	if group != "" {
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	}
	return p
}

// follow watches the pods until the test ends.
func (f *fullDevices) follow() {
	f.seen, f.gone = map[string]followed{}, map[string]followed{}
	ctx, cancel := context.WithCancel(background())
	f.t.Cleanup(cancel)
	go func() {
		for ctx.Err() == nil {
			watching, err := f.c.client.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{})
			if err != nil {
				continue
			}
			for event := range watching.ResultChan() {
				if p, ok := event.Object.(*v1.Pod); ok {
					f.see(event.Type, p, time.Now())
				}
			}
		}
	}()
}

func (f *fullDevices) see(kind watch.EventType, p *v1.Pod, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	before := f.seen[p.Name]
	if kind == watch.Deleted {
		delete(f.seen, p.Name)
		f.gone[p.Name] = followed{node: p.Spec.NodeName, since: now}
		return
	}
	if before.node == "" && p.Spec.NodeName != "" {
		before.since = now
	}
	f.seen[p.Name] = followed{node: p.Spec.NodeName, since: before.since, leaving: p.DeletionTimestamp != nil}
}

// await waits until done holds, and gives up when its message has not changed for a minute.
func (f *fullDevices) await(done func() (bool, string)) {
	f.t.Helper()
	last := ""
	for {
		err := poll(patience, func() error {
			is, message := done()
			if is {
				return nil
			}
			if message != last {
				last = message
				return fatal{errors.New("progress")}
			}
			return errors.New(message)
		})
		if err == nil {
			return
		}
		var progress fatal
		if !errors.As(err, &progress) {
			f.t.Fatalf("no progress for %v: %v", patience, err)
		}
	}
}

func (f *fullDevices) placed(role string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, p := range f.seen {
		if p.node != "" && !p.leaving && len(name) > len(role) && name[:len(role)] == role {
			n++
		}
	}
	return n
}

func (f *fullDevices) leaving() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.gone)
	for _, p := range f.seen {
		if p.leaving {
			n++
		}
	}
	return n
}

func (f *fullDevices) bound(name string) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.seen[name].since
}

// sinceVictims returns the time from the end of the last victim on the pods' nodes to the last
// binding of the pods.
func (f *fullDevices) sinceVictims(pods []*v1.Pod) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ended, bound time.Time
	for _, p := range pods {
		now := f.seen[p.Name]
		if now.since.After(bound) {
			bound = now.since
		}
		for _, victim := range f.gone {
			if victim.node == now.node && victim.since.After(ended) {
				ended = victim.since
			}
		}
	}
	return bound.Sub(ended)
}

// everyDeviceOnce verifies that so many devices are allocated, each to one claim.
func (f *fullDevices) everyDeviceOnce(devices int) {
	list, err := f.c.client.ResourceV1().ResourceClaims("default").List(background(), metav1.ListOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	holders := map[string]string{}
	for _, claim := range list.Items {
		if claim.Status.Allocation == nil {
			continue
		}
		for _, device := range claim.Status.Allocation.Devices.Results {
			key := device.Pool + "/" + device.Device
			if other := holders[key]; other != "" {
				f.t.Errorf("%s is allocated to the claims %s and %s", key, other, claim.Name)
			}
			holders[key] = claim.Name
		}
	}
	if len(holders) != devices {
		f.t.Errorf("%d devices are allocated, want %d", len(holders), devices)
	}
}
