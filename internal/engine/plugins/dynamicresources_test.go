// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

func TestDynamicResources(t *testing.T) {
	runCases(t, "testdata/dynamicresources.txt", func(t *testing.T, _ *datadriven.TestData) any { return newDynamicResources(t) })
}

func newDynamicResources(t *testing.T) *DynamicResources {
	t.Helper()
	d, err := NewDynamicResources(nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Now = func() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) }
	return d
}

func init() {
	// take on=NODE [undo]: reserves devices for the pod and lists the claims. With undo, it lists
	// them again after the undo.
	moreCommands["take"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, plugin any) string {
		var node string
		d.ScanArgs(t, "on", &node)
		undo, err := plugin.(*DynamicResources).Reserve(c, waiting(t, c, d.Input), c.Node(node))
		if err != nil {
			return fmt.Sprintf("error: %v\n", err)
		}
		answer := listClaims(c)
		if d.HasArg("undo") {
			undo()
			answer += "undone:\n" + listClaims(c)
		}
		return answer
	}
	// gone: removes a placed pod.
	moreCommands["gone"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, _ any) string {
		changed, gone := ClaimsWithout(c, waiting(t, c, d.Input))
		for _, claim := range changed {
			c.ResourceClaims.Set(claim)
		}
		for _, claim := range gone {
			c.ResourceClaims.Delete(claim.Namespace, claim.Name)
		}
		return listClaims(c)
	}
	// postfilter judges all nodes first.
	moreCommands["postfilter"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, plugin any) string {
		p := waiting(t, c, d.Input)
		answer := judged(c, plugin.(*DynamicResources).Filter(c, p))
		message, change, remove := plugin.(*DynamicResources).PostFilter(c, p, nil)
		answer += message + "\n"
		switch {
		case remove:
			answer += "remove " + change.Name + "\n"
		case change != nil:
			answer += "change " + describe(change)
		}
		return answer
	}
	moreCommands["enqueue"] = func(t *testing.T, d *datadriven.TestData, c *cluster.Cluster, plugin any) string {
		return plugin.(*DynamicResources).PreEnqueue(c, waiting(t, c, d.Input)) + "\n"
	}
}

func listClaims(c *cluster.Cluster) string {
	var b strings.Builder
	for _, claim := range c.ResourceClaims.All() {
		b.WriteString(describe(claim))
	}
	return b.String()
}

func describe(claim *resourcev1.ResourceClaim) string {
	text := claim.Name + ":"
	if claim.Status.Allocation == nil {
		text += " not allocated"
	} else {
		for _, r := range claim.Status.Allocation.Devices.Results {
			text += fmt.Sprintf(" %s=%s/%s", r.Request, r.Pool, r.Device)
			if r.ShareID != nil {
				text += " (shared)"
			}
		}
	}
	for _, r := range claim.Status.ReservedFor {
		text += " for " + r.Name
	}
	return text + "\n"
}

func TestDynamicResourcesRefusesTimeoutsThatCannotBe(t *testing.T) {
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	_, err := NewDynamicResources(&config.DynamicResourcesArgs{FilterTimeout: duration(-time.Second), BindingTimeout: duration(0)})
	want := `[filterTimeout: Invalid value: "-1s": must be zero or positive, bindingTimeout: Invalid value: "0s": must be at least 1 second]`
	if err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if _, err := NewDynamicResources(&config.DynamicResourcesArgs{FilterTimeout: duration(0), BindingTimeout: duration(time.Second)}); err != nil {
		t.Error(err)
	}
}

// TestAllocatedDevicesAreFollowed verifies that consecutive pods get different devices, and that a
// pod is rejected when all devices are allocated.
func TestAllocatedDevicesAreFollowed(t *testing.T) {
	c, d := cluster.New(), newDynamicResources(t)
	load(t, c, "node a\nnode b")
	c.DeviceClasses.Set(&resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}})
	for _, node := range []string{"a", "b"} {
		slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		}}
		for i := range 3 {
			slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i)})
		}
		c.ResourceSlices.Set(slice)
	}
	for i := range 7 {
		c.ResourceClaims.Set(claimOfOne(fmt.Sprintf("pod-%d", i)))
	}
	taken := map[string]string{}
	for i := range 6 {
		name := fmt.Sprintf("pod-%d", i)
		p := waiting(t, c, fmt.Sprintf("kind: Pod\nmetadata: {name: %s}\nspec: {resourceClaims: [{name: r, resourceClaimName: %s}]}", name, name))
		judge := d.Filter(c, p)
		for _, n := range c.SortedNodes() {
			if judge.Node(n) != nil {
				continue
			}
			if _, err := d.Reserve(c, p, n); err != nil {
				t.Fatal(err)
			}
			break
		}
		claim, _ := c.ResourceClaims.Get("default", name)
		if claim.Status.Allocation == nil {
			t.Fatalf("%s found no device", name)
		}
		r := claim.Status.Allocation.Devices.Results[0]
		if other := taken[r.Pool+"/"+r.Device]; other != "" {
			t.Errorf("%s and %s have %s/%s", other, name, r.Pool, r.Device)
		}
		taken[r.Pool+"/"+r.Device] = name
	}
	p := waiting(t, c, "kind: Pod\nmetadata: {name: late}\nspec: {resourceClaims: [{name: r, resourceClaimName: pod-6}]}")
	if got := judged(c, d.Filter(c, p)); strings.Contains(got, "ok") {
		t.Errorf("a seventh pod gets one of six devices:\n%s", got)
	}
}

func claimOfOne(name string) *resourcev1.ResourceClaim {
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name:    "one",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}
}
