// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// storyGroup returns the PodGroup of a story's command.
func storyGroup(t *testing.T, d *datadriven.TestData, name string) *groups.PodGroup {
	t.Helper()
	uid, least, priority, key, in := "uid-"+name, int32(0), int32(0), "", ""
	d.MaybeScanArgs(t, "in", &in)
	d.MaybeScanArgs(t, "uid", &uid)
	d.MaybeScanArgs(t, "min", &least)
	d.MaybeScanArgs(t, "priority", &priority)
	d.MaybeScanArgs(t, "key", &key)
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}}
	g.Spec.Priority = &priority
	if least > 0 {
		g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	} else {
		g.Spec.SchedulingPolicy.Basic = &schedulingv1beta1.BasicSchedulingPolicy{}
	}
	if key != "" {
		g.Spec.SchedulingConstraints = oneOf(key)
	}
	if in != "" {
		g.Spec.ParentCompositePodGroupName = &in
	}
	if d.HasArg("never") {
		g.Spec.PreemptionPolicy = new(schedulingv1beta1.PreemptNever)
	}
	if d.HasArg("as-one") {
		g.Spec.DisruptionMode = asOne()
	}
	if d.HasArg("scheduled") {
		g.Status.Conditions = []metav1.Condition{{Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}}
	}
	if d.HasArg("shares") {
		g.Spec.ResourceClaims = []schedulingv1beta1.PodGroupResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one-gpu")}}
	}
	if d.HasArg("deleting") {
		g.DeletionTimestamp = &metav1.Time{Time: begin}
	}
	return g
}

// storyComposite returns the CompositePodGroup of a story's command.
func storyComposite(t *testing.T, d *datadriven.TestData, name string) *groups.CompositePodGroup {
	t.Helper()
	least, priority, key, in := int32(0), int32(0), "", ""
	d.MaybeScanArgs(t, "min", &least)
	d.MaybeScanArgs(t, "priority", &priority)
	d.MaybeScanArgs(t, "key", &key)
	d.MaybeScanArgs(t, "in", &in)
	c := compositeOf(name, int(least))
	uid := string(c.UID)
	d.MaybeScanArgs(t, "uid", &uid)
	c.UID, c.Spec.Priority = types.UID(uid), &priority
	if in != "" {
		c.Spec.ParentCompositePodGroupName = &in
	}
	if key != "" {
		c.Spec.SchedulingConstraints = &schedulingv1alpha3.CompositePodGroupSchedulingConstraints{
			Topology: []schedulingv1alpha3.TopologyConstraint{{Key: key}}}
	}
	if d.HasArg("as-one") {
		c.Spec.DisruptionMode = &schedulingv1alpha3.CompositeDisruptionMode{All: &schedulingv1alpha3.AllCompositeDisruptionMode{}}
	}
	return c
}

// compositeOf returns a CompositePodGroup requiring the given number of groups together, or a basic
// one for zero.
func compositeOf(name string, least int) *groups.CompositePodGroup {
	c := &groups.CompositePodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	if least > 0 {
		c.Spec.SchedulingPolicy.Gang = &schedulingv1alpha3.CompositeGangSchedulingPolicy{MinGroupCount: int32(least)}
	} else {
		c.Spec.SchedulingPolicy.Basic = &schedulingv1alpha3.CompositeBasicSchedulingPolicy{}
	}
	return c
}

// asOne returns the disruption mode of a group whose pods are preempted only all together.
func asOne() *schedulingv1beta1.DisruptionMode {
	return &schedulingv1beta1.DisruptionMode{All: &schedulingv1beta1.AllDisruptionMode{}}
}

// oneOf returns the constraint that all pods must be on nodes with the same value of a label.
func oneOf(key string) *schedulingv1beta1.PodGroupSchedulingConstraints {
	return &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: key}}}
}

// gangOf returns a PodGroup requiring the given number of pods together.
func gangOf(name string, least int) *groups.PodGroup {
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(least)}
	return g
}

// storyReserve returns the reservation settings of a story.
func storyReserve(t *testing.T, d *datadriven.TestData) plugins.Reservations {
	t.Helper()
	var after, most string
	share := "1"
	if arg, _ := d.Arg("reserves"); len(arg.Vals) == 3 {
		d.ScanArgs(t, "reserves", &after, &most, &share)
	} else {
		d.ScanArgs(t, "reserves", &after, &most)
	}
	r := plugins.Reservations{}
	var errs [3]error
	r.After, errs[0] = time.ParseDuration(after)
	r.For, errs[1] = time.ParseDuration(most)
	r.Share, errs[2] = strconv.ParseFloat(share, 64)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return r
}

// storyDevices returns the ResourceSlice of a story's node.
func storyDevices(t *testing.T, d *datadriven.TestData) *resourcev1.ResourceSlice {
	t.Helper()
	node := d.CmdArgs[0].Key
	count, err := strconv.Atoi(d.CmdArgs[1].Key)
	if err != nil {
		t.Fatal(err)
	}
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node, UID: types.UID("uid-slice-" + node)},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, ResourceSliceCount: 1},
		},
	}
	for i := range count {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("gpu-%d", i)})
	}
	return slice
}

// storyClaim returns a device claim of a story, in the form created by the resource claim
// controller for a group.
func storyClaim(t *testing.T, d *datadriven.TestData, version int) *resourcev1.ResourceClaim {
	t.Helper()
	name := d.CmdArgs[0].Key
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-claim-" + name), ResourceVersion: strconv.Itoa(version)},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "one", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}
	if d.HasArg("of") {
		group := ""
		d.ScanArgs(t, "of", &group)
		claim.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: schedulingv1beta1.SchemeGroupVersion.String(), Kind: "PodGroup", Name: group, UID: types.UID("uid-" + group), Controller: new(true),
		}}
	}
	if d.HasArg("on") {
		node := ""
		d.ScanArgs(t, "on", &node)
		claim.Finalizers = []string{resourcev1.Finalizer}
		claim.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
				{Request: "one", Driver: "gpu.example.com", Pool: node, Device: "gpu-0"},
			}},
			NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
				{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node}},
			}}}},
		}
	}
	if d.HasArg("for") {
		group := ""
		d.ScanArgs(t, "for", &group)
		claim.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{
			APIGroup: schedulingv1beta1.GroupName, Resource: "podgroups", Name: group, UID: types.UID("uid-" + group),
		}}
	}
	return claim
}

// claimsKnown lists the device claims of a core.
func claimsKnown(core *Core) (text string) {
	for _, claim := range core.View().Cluster.ResourceClaims.All() {
		text += claim.Name + ":"
		if claim.Status.Allocation != nil {
			for _, r := range claim.Status.Allocation.Devices.Results {
				text += fmt.Sprintf(" has %s/%s", r.Pool, r.Device)
			}
		}
		for _, r := range claim.Status.ReservedFor {
			text += fmt.Sprintf(" for %s %s", r.Resource, r.UID)
		}
		text += "\n"
	}
	return text + fmt.Sprintf("in use or given up: %d\n", core.Books().Claims)
}
