// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestStories runs testdata/*.txt: each event is a command, and the resulting actions are its
// output. The commands of a story:
//
//	core [holds] [works] [keeps] [gentle] [delay=D] [standby] [groups] [trees] [policies] [claims] [limit=N] [reserves=(AFTER,FOR[,SHARE])]
//	                                   a new leading core with an empty listed cluster; holds: with
//	                                   a plugin at Permit that makes pods with the label hold wait
//	                                   for 30 s; works: with a plugin that works at PreBind; keeps:
//	                                   with preemption that respects budgets; gentle: with gentle
//	                                   preemption, delayed by D; standby: not leading yet; groups:
//	                                   with pod groups; trees: with trees of pod groups; policies:
//	                                   with preemption policies of groups; claims: with device
//	                                   claims of groups, and without nominations of pods being
//	                                   placed; limit: with this search limit; reserves: with room
//	                                   reserved for groups after waiting for AFTER, for the duration
//	                                   FOR, up to SHARE of the cluster
//	lead                               it leads from now on
//	node NAME cpu=N [rack=R] [zone=Z]  the watch shows a node; "no-node NAME" deletes it
//	group NAME [min=N] [key=LABEL] [uid=U] [priority=N] [never] [as-one] [scheduled] [shares]
//	                                   the watch shows a PodGroup, a basic one without min; shares:
//	                                   its pods share a device claim; "no-group NAME" deletes it
//	composite NAME [min=N] [in=NAME] [key=LABEL] [priority=N] [as-one] [age=N]
//	                                   the watch shows a CompositePodGroup, a basic one without min;
//	                                   "no-composite NAME" deletes it; the command group also has
//	                                   the argument in
//	devices NODE N                     the watch shows N devices of a node
//	device-claim NAME [of=GROUP] [on=NODE] [for=GROUP]
//	                                   the watch shows a claim for one device; of: created for that
//	                                   group; on: with a device of that node; for: reserved for that
//	                                   group; "no-device-claim NAME" deletes it
//	pods NAME... cpu=N …               like pod, for each name
//	pod NAME cpu=N [uid=U] [priority=N] [on=NODE] [nominated=NODE] [hold] [deleting [grace=SECONDS]] [preempted] [scheduler=NAME] [group=NAME]
//	    [gated] [fails] [claim=NAME] [device=CLAIM] [app=APP] [near=APP] [never] [ended] [deadline=SECONDS] [of=KIND [owner=UID]] [only=NODE] [version=V]
//	                                   the watch shows a pod; "no-pod NAME [uid=U]" deletes it
//	room POD NODE [grace=SECONDS] [ahead]
//	                                   the Lease reserves room on the node for the pod's successor;
//	                                   "no-room" ends the reservation
//	budget APP allows=N                the watch shows a disruption budget of the pods with app=APP
//	list KIND                          a list begins; "listed KIND" completes it
//	tick [after=DURATION]              repeatedly lets time pass until the core needs a tick, for at most DURATION; without a
//	                                   duration only while the core has immediate work
//	answer TICKET [fault=TEXT] [withdrawn] [work]
//	allow TICKET; reject TICKET        the verdict of the plugin at Permit
//	configure NAME...                  profiles of these names replace the existing ones
//	claims                             the device claims known to the core
//	books                              the pending work
//	autoscalers                        the pods for which cluster-autoscaler and Karpenter add nodes, by their written statuses
func TestStories(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.tell(t, d) })
	})
}

type story struct {
	core     *Core
	now      time.Time
	statuses statuses
	writes   map[Ticket]WriteClaims
	version  int // resource version of the last claim shown by the watch
	rooms    []MoveReservation
}

func (s *story) step(e Event) string {
	var lines []string
	for _, action := range s.core.Step(s.now, e) {
		lines = append(lines, fmt.Sprintf("%s\n", action))
		s.statuses.write(action)
		if writes, ok := action.(WriteClaims); ok {
			s.writes[writes.Ticket] = writes
		}
	}
	s.statuses.show(e)
	return strings.Join(lines, "")
}

func (s *story) tell(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	name := ""
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
		name = d.CmdArgs[0].Key
	}
	text := func(key string) (value string) { d.MaybeScanArgs(t, key, &value); return value }
	number := func() (n Ticket) { _, _ = fmt.Sscan(name, (*uint64)(&n)); return n }
	switch d.Cmd {
	case "core":
		return s.begin(t, d)
	case "lead":
		return s.step(Led{})
	case "node":
		n := aNode(name, text("cpu"))
		for _, key := range []string{"rack", "zone"} {
			if domain := text(key); domain != "" {
				n.Labels[key] = domain
			}
		}
		return s.step(Seen{Nodes, n})
	case "group":
		return s.step(Seen{PodGroups, storyGroup(t, d, name)})
	case "composite":
		return s.step(Seen{CompositePodGroups, storyComposite(t, d, name)})
	case "no-composite":
		return s.step(Gone{CompositePodGroups, storyComposite(t, d, name)})
	case "no-group":
		return s.step(Gone{PodGroups, storyGroup(t, d, name)})
	case "pods":
		said := ""
		for _, arg := range d.CmdArgs {
			if len(arg.Vals) == 0 && !slices.Contains([]string{"hold", "deleting", "gated", "never", "ended", "fails"}, arg.Key) {
				said += s.step(Seen{Pods, storyPod(t, d, arg.Key)})
			}
		}
		return said
	case "devices":
		return s.step(Seen{ResourceSlices, storyDevices(t, d)})
	case "device-claim":
		s.version++
		return s.step(Seen{ResourceClaims, storyClaim(t, d, s.version)})
	case "no-device-claim":
		return s.step(Gone{ResourceClaims, storyClaim(t, d, s.version)})
	case "claims":
		return claimsKnown(s.core)
	case "no-node":
		return s.step(Gone{Nodes, aNode(name, "1")})
	case "pod":
		return s.step(Seen{Pods, storyPod(t, d, name)})
	case "no-pod":
		return s.step(Gone{Pods, storyPod(t, d, name)})
	case "room", "no-room":
		return s.step(Seen{MoveLeases, s.room(t, d)})
	case "budget":
		var allowed int32
		d.ScanArgs(t, "allows", &allowed)
		return s.step(Seen{DisruptionBudgets, storyBudget(name, allowed)})
	case "list":
		return s.step(Listing{Kind(name)})
	case "listed":
		return s.step(Listed{Kind(name)})
	case "tick":
		return s.tick(t, text("after"))
	case "answer":
		o := Outcome{Withdrawn: d.HasArg("withdrawn")}
		if fault := text("fault"); fault != "" {
			o.Fault = &Fault{Message: fault}
		}
		if d.HasArg("work") {
			o.Work = []PreBindWork{{Needed: true}}
		}
		for _, written := range s.writes[number()].Claims.Claims {
			if o.Fault == nil && !o.Withdrawn {
				o.Claims, o.Written = append(o.Claims, written.Claim), append(o.Written, true)
			}
		}
		return s.step(Answered{number(), o})
	case "allow":
		return s.step(PermitAllowed{number(), "Holds"})
	case "reject":
		return s.step(PermitRejected{Ticket: number(), Plugin: "Holds", Message: "no"})
	case "configure":
		var profiles []Profile
		for _, arg := range d.CmdArgs {
			profile := *plugins.Default()
			profile.SchedulerName = arg.Key
			profiles = append(profiles, Profile{Profile: &profile})
		}
		return s.step(Configured{Profiles: profiles})
	case "autoscalers":
		return s.statuses.autoscalers()
	case "books":
		b := s.core.Books()
		said := fmt.Sprintf("on their way %v, held %v, preempting %v, leaving %v, unserved %v, unanswered %d\n",
			b.Assumed, b.Held, b.Preemptor, b.Leaving, b.Unserved, b.Handlers)
		for _, r := range s.core.View().Reserved {
			said += fmt.Sprintf("reserved for %s from %s to %s:", r.Group, r.Since.Sub(begin), r.Until.Sub(begin))
			if !r.Expected.IsZero() {
				said += fmt.Sprintf(" start by %s:", r.Expected.Sub(begin))
			}
			for _, uid := range sorted(r.Nodes) {
				said += fmt.Sprintf(" %s on %s", uid, r.Nodes[uid])
			}
			said += "\n"
		}
		return said
	}
	return "unknown command " + d.Cmd
}

func (s *story) begin(t *testing.T, d *datadriven.TestData) string {
	o := Options{Seed: 1}
	text := func(key string) (value string) { d.ScanArgs(t, key, &value); return value }
	var extensions []at
	if d.HasArg("holds") {
		extensions = append(extensions, holdsAtPermit)
	}
	if d.HasArg("works") {
		extensions = append(extensions, reservesAtItsPoints())
	}
	o.Profiles = []Profile{profileWith(extensions...)}
	o.Profiles[0].KeepBudgets = d.HasArg("keeps")
	o.Profiles[0].GentlePreemption = d.HasArg("gentle")
	if d.HasArg("delay") {
		o.Profiles[0].PreemptionDelay = storyTime(t, text("delay"))
	}
	if d.HasArg("reserves") {
		o.Profiles[0].Reservations = storyReserve(t, d)
	}
	kinds := []Kind{Nodes, Pods}
	if d.HasArg("groups") {
		o.Groups = groups.Gates{Generic: true, Topology: true, Policy: d.HasArg("policies")}
		kinds = append(kinds, PodGroups)
	}
	if d.HasArg("trees") {
		o.Groups = groups.Gates{Generic: true, Topology: true, Composite: true, Policy: d.HasArg("policies")}
		kinds = append(kinds, CompositePodGroups, PodGroups)
	}
	if d.HasArg("claims") {
		o.Groups.Generic, o.Groups.Claims, o.Disabled.Expectation = true, true, true
		kinds = append(kinds, ResourceSlices, ResourceClaims, DeviceClasses)
		if !slices.Contains(kinds, PodGroups) {
			kinds = append(kinds, PodGroups)
		}
	}
	d.MaybeScanArgs(t, "limit", &o.SearchLimit)
	if other := ""; d.HasArg("also") {
		d.ScanArgs(t, "also", &other)
		profile := *plugins.Default()
		profile.SchedulerName = other
		o.Profiles = append(o.Profiles, Profile{Profile: &profile})
	}
	core, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.core, s.now, s.statuses, s.writes, s.version = core, begin, statuses{}, map[Ticket]WriteClaims{}, 0
	said := s.step(Follows{Kinds: kinds})
	for _, kind := range kinds {
		said += s.step(Listing{kind})
		if kind == DeviceClasses {
			said += s.step(Seen{kind, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu", UID: "uid-gpu"}}})
		}
		said += s.step(Listed{kind})
	}
	if !d.HasArg("standby") {
		said += s.step(Led{}) + s.step(Tick{})
	}
	return said
}

// tick gives the core the requested ticks.
func (s *story) tick(t *testing.T, after string) (text string) {
	t.Helper()
	end := s.now
	if after != "" {
		end = end.Add(storyTime(t, after))
	}
	for {
		wake := s.core.Wake(s.now)
		if wake.After(end) {
			s.now = end
			return text
		}
		if wake.After(s.now) {
			s.now = wake
		}
		if line := s.step(Tick{}); line != "" {
			text += fmt.Sprintf("%s: %s", s.now.Sub(begin), line)
		}
	}
}

func storyTime(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func storyPod(t *testing.T, d *datadriven.TestData, name string) *v1.Pod {
	t.Helper()
	cpu, uid := "1", "uid-"+name
	d.MaybeScanArgs(t, "cpu", &cpu)
	d.MaybeScanArgs(t, "uid", &uid)
	p := aPod(name, cpu)
	p.UID = types.UID(uid)
	d.MaybeScanArgs(t, "priority", p.Spec.Priority)
	d.MaybeScanArgs(t, "on", &p.Spec.NodeName)
	d.MaybeScanArgs(t, "nominated", &p.Status.NominatedNodeName)
	d.MaybeScanArgs(t, "scheduler", &p.Spec.SchedulerName)
	d.MaybeScanArgs(t, "version", &p.ResourceVersion)
	p.Labels = map[string]string{}
	if d.HasArg("hold") {
		p.Labels["hold"] = "yes"
	}
	if d.HasArg("fails") {
		p.Labels["fails"] = "yes"
	}
	if d.HasArg("group") {
		group := ""
		d.ScanArgs(t, "group", &group)
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group}
	}
	if d.HasArg("gated") {
		p.Spec.SchedulingGates = []v1.PodSchedulingGate{{Name: "wait"}}
	}
	if d.HasArg("app") {
		app := ""
		d.ScanArgs(t, "app", &app)
		p.Labels["app"] = app
	}
	if d.HasArg("near") {
		app := ""
		d.ScanArgs(t, "near", &app)
		p.Spec.Affinity = &v1.Affinity{PodAffinity: &v1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []v1.PodAffinityTerm{{
			TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		}}}}
	}
	if d.HasArg("only") {
		node := ""
		d.ScanArgs(t, "only", &node)
		p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{{
				Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{node},
			}}}},
		}}}
	}
	if d.HasArg("deadline") {
		seconds := int64(0)
		d.ScanArgs(t, "deadline", &seconds)
		if p.Spec.ActiveDeadlineSeconds = &seconds; p.Spec.NodeName != "" {
			p.Status.StartTime = &metav1.Time{Time: begin}
		}
	}
	if d.HasArg("of") {
		owner := metav1.OwnerReference{APIVersion: "apps/v1", Name: "owner", UID: "uid-owner", Controller: new(true)}
		d.ScanArgs(t, "of", &owner.Kind)
		if d.HasArg("owner") {
			uid := ""
			d.ScanArgs(t, "owner", &uid)
			owner.UID = types.UID(uid)
		}
		p.OwnerReferences = []metav1.OwnerReference{owner}
	}
	if d.HasArg("never") {
		never := v1.PreemptNever
		p.Spec.PreemptionPolicy = &never
	}
	if d.HasArg("ended") {
		p.Status.Phase = v1.PodSucceeded
	}
	if d.HasArg("claim") {
		claim := &v1.PersistentVolumeClaimVolumeSource{}
		d.ScanArgs(t, "claim", &claim.ClaimName)
		p.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: claim}}}
	}
	if d.HasArg("device") {
		var claim string
		d.ScanArgs(t, "device", &claim)
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: new("one-gpu")}}
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &claim}}
	}
	if d.HasArg("deleting") || d.HasArg("preempted") {
		seconds := 0
		d.MaybeScanArgs(t, "grace", &seconds)
		p.DeletionTimestamp = &metav1.Time{Time: begin.Add(time.Duration(seconds) * time.Second)}
	}
	if d.HasArg("preempted") {
		p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
	}
	return p
}

func (s *story) room(t *testing.T, d *datadriven.TestData) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: MoveLeaseNamespace, Name: MoveLeaseName, UID: "uid-room"}}
	if d.Cmd == "no-room" {
		s.rooms = nil
		return lease
	}
	owner := "uid-owner"
	d.MaybeScanArgs(t, "owner", &owner)
	room := MoveReservation{Namespace: "default", Name: d.CmdArgs[0].Key, UID: types.UID("uid-" + d.CmdArgs[0].Key), Owner: types.UID(owner), Node: d.CmdArgs[1].Key}
	d.MaybeScanArgs(t, "grace", &room.GraceSeconds)
	room.Ahead = d.HasArg("ahead")
	if !d.HasArg("also") {
		s.rooms = nil
	}
	s.rooms = append(s.rooms, room)
	text, err := json.Marshal(s.rooms)
	if err != nil {
		t.Fatal(err)
	}
	lease.Annotations = map[string]string{MoveReservationAnnotation: string(text)}
	return lease
}

func storyBudget(app string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: app, UID: types.UID("uid-budget-" + app)},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}
