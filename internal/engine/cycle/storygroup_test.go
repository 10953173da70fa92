package cycle_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// storyGroup is the PodGroup of a story's command.
func storyGroup(t *testing.T, d *datadriven.TestData, name string) *groups.PodGroup {
	t.Helper()
	uid, least, priority, key := "uid-"+name, int32(0), int32(0), ""
	d.MaybeScanArgs(t, "uid", &uid)
	d.MaybeScanArgs(t, "min", &least)
	d.MaybeScanArgs(t, "priority", &priority)
	d.MaybeScanArgs(t, "key", &key)
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(uid)}}
	g.Spec.Priority = &priority
	if least > 0 {
		g.Spec.SchedulingPolicy.Gang = &schedulingv1alpha2.GangSchedulingPolicy{MinCount: least}
	} else {
		g.Spec.SchedulingPolicy.Basic = &schedulingv1alpha2.BasicSchedulingPolicy{}
	}
	if key != "" {
		g.Spec.SchedulingConstraints = oneOf(key)
	}
	if d.HasArg("as-one") {
		mode := schedulingv1alpha2.DisruptionModePodGroup
		g.Spec.DisruptionMode = &mode
	}
	if d.HasArg("scheduled") {
		g.Status.Conditions = []metav1.Condition{{Type: schedulingv1alpha2.PodGroupScheduled, Status: metav1.ConditionTrue, Reason: "Scheduled"}}
	}
	if d.HasArg("deleting") {
		g.DeletionTimestamp = &metav1.Time{Time: begin}
	}
	return g
}

// oneOf asks for nodes with one value of a label.
func oneOf(key string) *schedulingv1alpha2.PodGroupSchedulingConstraints {
	return &schedulingv1alpha2.PodGroupSchedulingConstraints{Topology: []schedulingv1alpha2.TopologyConstraint{{Key: key}}}
}

// gangOf is a PodGroup that asks for so many pods at once.
func gangOf(name string, least int) *groups.PodGroup {
	g := &groups.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1alpha2.GangSchedulingPolicy{MinCount: int32(least)}
	return g
}

// storyReserve is what a story says of reservations.
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
