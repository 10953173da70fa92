// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// groupSaver is an out-of-tree plugin at PodGroupPostFilter.
type groupSaver struct {
	asked   []string // members, with their nodes in a trial without the removed pod
	answers GroupPostFilterResult
	without types.UID // the pod removed in the trial
}

func (*groupSaver) Name() string { return "Saver" }

func (s *groupSaver) RunGroupPostFilter(a *GroupAttempt) GroupPostFilterResult {
	text := fmt.Sprint(len(a.Members), " of ", a.Group.Name)
	if gone := a.Cluster.Pod(s.without); gone != nil {
		n := gone.Node
		a.Cluster.RemovePod(gone.UID())
		for _, place := range a.Schedule().Places {
			text += fmt.Sprint(" ", place.Pod.Name, " on ", place.Node.Name)
		}
		a.Cluster.Place(gone, n)
	}
	s.asked = append(s.asked, text)
	return s.answers
}

// profileOfGroupSaver returns a profile with the plugin before or after DefaultPreemption.
func profileOfGroupSaver(t *testing.T, s *groupSaver, first bool) Profile {
	t.Helper()
	d := plugins.Default()
	points := map[plugins.Point][]string{}
	for point, names := range d.At {
		points[point] = slices.Clone(names)
	}
	if first {
		points[plugins.PodGroupPostFilter] = append([]string{s.Name()}, points[plugins.PodGroupPostFilter]...)
	} else {
		points[plugins.PodGroupPostFilter] = append(points[plugins.PodGroupPostFilter], s.Name())
	}
	made, err := plugins.NewProfile(v1.DefaultSchedulerName, points, d.Weights, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Profile{Profile: made, Extensions: []Extension{s}}
}

// savedGang decides a gang of three pods on a node of four CPUs, and returns the resulting actions.
// A pod of the given priority uses two CPUs, so the gang does not fit.
func savedGang(t *testing.T, s *groupSaver, first bool, priority int32) (text string) {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{profileOfGroupSaver(t, s, first)}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{Nodes, aNode("n", "4")})
	low := aPod("low", "2")
	low.Spec.NodeName, *low.Spec.Priority = "n", priority
	core.Step(begin, Seen{Pods, low})
	g := gangOf("g", 3)
	g.Spec.Priority = new(int32(100))
	core.Step(begin, Seen{PodGroups, g})
	for i := range 3 {
		p := aPod(fmt.Sprint("m", i), "1")
		*p.Spec.Priority = 100
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		core.Step(begin, Seen{Pods, p})
	}
	for _, action := range core.Step(begin, Tick{}) {
		text += action.String() + "\n"
	}
	return text
}

// TestOutOfTreePluginsAreAskedAboutGroups verifies that plugins at PodGroupPostFilter run in the
// order of the profile, and can have the group decided in a temporarily changed cluster.
func TestOutOfTreePluginsAreAskedAboutGroups(t *testing.T) {
	const before, without = "3 of g", "3 of g m0 on n m1 on n m2 on n"
	for _, row := range []struct {
		name     string
		first    bool
		priority int32 // priority of the pod on the node
		answers  GroupPostFilterResult
		without  types.UID
		asked    string
		said     []string
		not      string
	}{
		{"nobody can be preempted", false, 200, GroupPostFilterResult{Message: "no luck"}, "", before, []string{"Unschedulable: 2 of 3 pods fit", ", no luck"}, "remove"},
		{"preemption helps, so that it is not asked", false, 0, GroupPostFilterResult{Message: "no luck"}, "", "", []string{"remove"}, "no luck"},
		{"it is asked before preemption", true, 0, GroupPostFilterResult{Message: "no luck"}, "", before, []string{"remove", "preempting 1 victims"}, "no luck"},
		{"it makes room itself", true, 0, GroupPostFilterResult{Helped: true, Nodes: map[types.UID]string{"uid-m0": "n", "uid-m2": "n"}, Message: "moved"}, "uid-low", without,
			[]string{`m0, nominated "n"`, `m1, nominated ""`, `m2, nominated "n"`, "minCount (3) cannot be satisfied: 2 scheduled, 0 remaining, moved"}, "remove"},
		{"it knows that none can help", true, 0, GroupPostFilterResult{Message: "never", Final: true}, "", before, []string{", never"}, "remove"},
		{"it fails", true, 0, GroupPostFilterResult{Err: errors.New("broken")}, "", before,
			[]string{`SchedulerError: error in "Saver" PodGroupPostFilter plugins: broken`}, "remove"},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := &groupSaver{answers: row.answers, without: row.without}
			text := savedGang(t, s, row.first, row.priority)
			if got := strings.Join(s.asked, ", "); got != row.asked {
				t.Errorf("it was asked about %q, want %q", got, row.asked)
			}
			for _, want := range row.said {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in:\n%s", want, text)
				}
			}
			if row.not != "" && strings.Contains(text, row.not) {
				t.Errorf("%q in:\n%s", row.not, text)
			}
		})
	}
}

// TestMembersGiveUpDevicesThatTheyCannotUse verifies that a member's claim is deallocated if it is
// allocated on a node unsuitable for the member, as for a single pod.
func TestMembersGiveUpDevicesThatTheyCannotUse(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true}})
	if err != nil {
		t.Fatal(err)
	}
	core.Step(begin, Follows{})
	core.Step(begin, Led{})
	core.Step(begin, Seen{Nodes, aNode("small", "1")})
	core.Step(begin, Seen{Nodes, aNode("large", "4")})
	core.Step(begin, Seen{DeviceClasses, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}})
	for _, name := range []string{"small", "large"} {
		core.Step(begin, Seen{ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
			Driver: "d", NodeName: &name, Pool: resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1}, Devices: []resourcev1.Device{{Name: "g"}},
		}}})
	}
	core.Step(begin, Seen{PodGroups, gangOf("g", 2)})
	text := ""
	for i := range 2 {
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("c", i), UID: types.UID(fmt.Sprint("c", i))}}
		claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1}}}
		if i == 0 {
			claim.Status.Allocation = &resourcev1.AllocationResult{
				Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "d", Pool: "small", Device: "g"}}},
				NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchFields: []v1.NodeSelectorRequirement{
					{Key: metav1.ObjectNameField, Operator: v1.NodeSelectorOpIn, Values: []string{"small"}}}}}},
			}
		}
		core.Step(begin, Seen{ResourceClaims, claim})
		p := aPod(fmt.Sprint("m", i), "2")
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
		p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "r", ResourceClaimName: new(claim.Name)}}
		core.Step(begin, Seen{Pods, p})
	}
	for _, action := range core.Step(begin, Tick{}) {
		text += action.String() + "\n"
		if back, ok := action.(DeallocateClaim); ok && back.Claim.Name == "c0" {
			return
		}
	}
	t.Errorf("the claim keeps devices that nobody can use:\n%s", text)
}
