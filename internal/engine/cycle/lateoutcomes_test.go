// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// readyCore returns a core that has listed these kinds and may decide.
func readyCore(t *testing.T, o Options, kinds ...Kind) *Core {
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	loggedStep(t, c, begin, Follows{kinds})
	for _, k := range kinds {
		loggedStep(t, c, begin, Listing{k})
		loggedStep(t, c, begin, Listed{k})
	}
	loggedStep(t, c, begin, Led{})
	return c
}

// loggedStep makes a step, and logs its actions.
func loggedStep(t *testing.T, c *Core, now time.Time, e Event) (list []Action) {
	t.Helper()
	for _, a := range c.Step(now, e) {
		t.Logf("    %s", a)
		list = append(list, a)
	}
	return list
}

// TestAMemberPreemptedAtPermitBreaksItsGang covers a plugin that preempts a waiting member: the
// rest of its gang must not be bound.
func TestAMemberPreemptedAtPermitBreaksItsGang(t *testing.T) {
	c := readyCore(t, Options{Seed: 1, Profiles: []Profile{profileWith(holdsAtPermit)}, Groups: groups.Gates{Generic: true}}, Nodes, Pods, PodGroups)
	loggedStep(t, c, begin, Seen{PodGroups, gangOf("g", 2)})
	loggedStep(t, c, begin, Seen{Nodes, aNode("n1", "1")})
	loggedStep(t, c, begin, Seen{Nodes, aNode("n2", "1")})
	for _, name := range []string{"a", "b"} {
		p := aPod(name, "1")
		p.Labels = map[string]string{"hold": "yes"}
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		loggedStep(t, c, begin, Seen{Pods, p})
	}
	var holds []Hold
	for range 5 {
		for _, a := range loggedStep(t, c, begin, Tick{}) {
			if a, ok := a.(Hold); ok {
				holds = append(holds, a)
			}
		}
	}
	if len(holds) != 2 {
		t.Fatal(holds)
	}
	loggedStep(t, c, begin, PermitRejected{Ticket: holds[0].Ticket, Plugin: "Holds", Message: "preempted", Preempted: true})
	loggedStep(t, c, begin, Answered{Ticket: 2})
	loggedStep(t, c, begin, Answered{Ticket: 4})
	for _, a := range loggedStep(t, c, begin, PermitAllowed{Ticket: holds[1].Ticket, Plugin: "Holds"}) {
		if strings.HasPrefix(a.String(), "bind") {
			t.Errorf("half of the gang is bound: %s", a)
		}
	}
}

// TestAPodServedAgainIsRetried covers a profile that is removed and added again while a pod is
// being bound, and a binding that then fails.
func TestAPodServedAgainIsRetried(t *testing.T) {
	on := []Profile{profileWith()}
	c := readyCore(t, Options{Seed: 1, Profiles: on}, Nodes, Pods)
	loggedStep(t, c, begin, Seen{Nodes, aNode("n1", "1")})
	p := aPod("a", "1")
	p.Status.Conditions = []v1.PodCondition{{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonSchedulerError, Message: "binding rejected: no"}}
	loggedStep(t, c, begin, Seen{Pods, p})
	var bind Bind
	for range 5 {
		for _, a := range loggedStep(t, c, begin, Tick{}) {
			if a, ok := a.(Bind); ok {
				bind = a
			}
		}
	}
	other := *profileWith().Profile
	other.SchedulerName = "other"
	loggedStep(t, c, begin, Configured{Profiles: []Profile{{Profile: &other}}})
	for _, a := range loggedStep(t, c, begin, Configured{Profiles: on}) {
		if _, ok := a.(ReadPod); ok {
			loggedStep(t, c, begin, Read{p})
		}
	}
	for _, a := range loggedStep(t, c, begin, Answered{Ticket: bind.Ticket, Outcome: Outcome{Fault: &Fault{Message: "binding rejected: no"}}}) {
		if _, ok := a.(ReadPod); ok {
			loggedStep(t, c, begin, Read{p})
		}
	}
	bound := false
	for now := begin; now.Before(begin.Add(time.Hour)); now = now.Add(5 * time.Second) {
		for _, a := range loggedStep(t, c, now, Tick{}) {
			if _, ok := a.(Bind); ok {
				bound = true
			}
		}
	}
	if !bound {
		t.Errorf("the pod is never tried again: %+v", c.Books())
	}
}

// TestAGroupGetsTheRoomOfAPreparedPod covers a gang that preempts a pod whose volume is being
// provisioned: the node is free immediately, although no pod waits for events.
func TestAGroupGetsTheRoomOfAPreparedPod(t *testing.T) {
	now := begin
	c := readyCore(t, Options{Seed: 1, Profiles: []Profile{profileWith()}, Groups: groups.Gates{Generic: true}}, Nodes, Pods, PodGroups, Claims, StorageClasses, Volumes)
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	loggedStep(t, c, now, Seen{StorageClasses, &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "s", UID: "s"}, Provisioner: "p", VolumeBindingMode: &mode}})
	claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c"}}
	claim.Spec.StorageClassName, claim.Spec.AccessModes = new("s"), []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}
	loggedStep(t, c, now, Seen{Claims, claim})
	loggedStep(t, c, now, Seen{Nodes, aNode("n", "1")})
	low := aPod("low", "1")
	low.Spec.Volumes = []v1.Volume{{Name: "d", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	loggedStep(t, c, now, Seen{Pods, low})
	var run func(a Action)
	bound := time.Duration(-1)
	tick := func() {
		for _, a := range loggedStep(t, c, now, Tick{}) {
			run(a)
		}
	}
	run = func(a Action) {
		switch a := a.(type) {
		case WriteVolumes:
			for _, a := range loggedStep(t, c, now, Answered{Ticket: a.Ticket}) {
				run(a)
			}
		case WriteStatus:
			if a.Ticket != 0 {
				for _, a := range loggedStep(t, c, now, Answered{Ticket: a.Ticket}) {
					run(a)
				}
			}
		case Bind:
			if a.Attempt.Pod.Name == "high" && bound < 0 {
				bound = now.Sub(begin)
			}
		}
	}
	for range 5 {
		tick()
	}
	g := gangOf("g", 1)
	g.Spec.Priority = new(int32(10))
	loggedStep(t, c, now, Seen{PodGroups, g})
	high := aPod("high", "1")
	high.Spec.Priority, high.Spec.SchedulingGroup = new(int32(10)), &v1.PodSchedulingGroup{PodGroupName: new("g")}
	loggedStep(t, c, now, Seen{Pods, high})
	for now.Before(begin.Add(10 * time.Minute)) {
		tick()
		now = now.Add(time.Second)
	}
	if bound < 0 || bound > 10*time.Second {
		t.Errorf("the gang gets the free node after %s", bound)
	}
}
