package cycle_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// saver is an out-of-tree plugin at PostFilter.
type saver struct {
	asked   []string // pods, with how many nodes they fit on
	answers Rescue
}

func (*saver) Name() string { return "Saver" }

func (s *saver) Rescue(a *Attempt, evaluate func() *decide.Evaluation) Rescue {
	s.asked = append(s.asked, fmt.Sprint(a.Pod.Name, " ", evaluate().Feasible))
	return s.answers
}

// profileOfSaver asks the plugin before DefaultPreemption, or after it.
func profileOfSaver(t *testing.T, s *saver, first bool) Profile {
	t.Helper()
	d := plugins.Default()
	points := map[plugins.Point][]string{}
	for point, names := range d.At {
		points[point] = slices.Clone(names)
	}
	if first {
		points[plugins.PostFilter] = append([]string{s.Name()}, points[plugins.PostFilter]...)
	} else {
		points[plugins.PostFilter] = append(points[plugins.PostFilter], s.Name())
	}
	made, err := plugins.NewProfile(v1.DefaultSchedulerName, points, d.Weights, nil)
	if err != nil {
		t.Fatal(err)
	}
	return Profile{Profile: made, Extensions: []Extension{s}}
}

// savedGang decides a gang of three that does not fit on a node of four CPUs, where a pod of this
// priority takes two of them, and returns what follows.
func savedGang(t *testing.T, s *saver, first bool, gates groups.Gates, priority int32) (said string) {
	t.Helper()
	core, err := New(Options{Profiles: []Profile{profileOfSaver(t, s, first)}, Groups: gates})
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
		said += action.String() + "\n"
	}
	return said
}

// TestOutOfTreePluginsAreAskedAboutMembers at PostFilter: about each member that does not fit
// beside those that do, in the order of the profile, with preemption for the whole group at the
// place of DefaultPreemption.
func TestOutOfTreePluginsAreAskedAboutMembers(t *testing.T) {
	gang, whole := groups.Gates{Generic: true, Gang: true}, groups.Gates{Generic: true, Gang: true, Preemption: true}
	node := "n"
	for _, row := range []struct {
		name     string
		first    bool
		gates    groups.Gates
		priority int32 // of the pod on the node
		answers  Rescue
		asked    string
		said     []string
		not      string
	}{
		{"nobody can be preempted", false, gang, 200, Rescue{Message: "no luck"}, "m2 0", []string{"no luck"}, "remove"},
		{"preemption helps, so that it is not asked", false, gang, 0, Rescue{Message: "no luck"}, "", []string{"remove"}, "no luck"},
		{"it is asked before preemption", true, gang, 0, Rescue{Message: "no luck"}, "m2 0", []string{"remove", "no luck"}, ""},
		{"it makes room itself", true, gang, 0, Rescue{Nominate: &node, Final: true}, "m2 0",
			[]string{`m0, nominated "n"`, `m1, nominated "n"`, `m2, nominated "n"`, "pod group is waiting for preemption"}, "remove"},
		{"it refuses, and too few are left", true, gang, 0, Rescue{Message: "never", Final: true}, "m2 0", []string{"never"}, "remove"},
		{"groups with a priority of their own preempt when all have been asked", false, whole, -1, Rescue{Message: "no luck"}, "m2 0", []string{"remove"}, ""},
		{"it refuses one pod of a group with a priority of its own", true, whole, -1, Rescue{Message: "never", Final: true}, "m2 0", []string{"remove"}, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := &saver{answers: row.answers}
			said := savedGang(t, s, row.first, row.gates, row.priority)
			if got := strings.Join(s.asked, ", "); got != row.asked {
				t.Errorf("it was asked about %q, want %q", got, row.asked)
			}
			for _, want := range row.said {
				if !strings.Contains(said, want) {
					t.Errorf("no %q in:\n%s", want, said)
				}
			}
			if row.not != "" && strings.Contains(said, row.not) {
				t.Errorf("%q in:\n%s", row.not, said)
			}
		})
	}
}

// TestAMemberIsRescuedInTheDomainOfItsGroup: a plugin at PostFilter sees the nodes of the domain
// that the group came closest to fit in, and a node of another one that it nominates is none.
func TestAMemberIsRescuedInTheDomainOfItsGroup(t *testing.T) {
	for node, want := range map[string]int{"first": 3, "second": 0} {
		s := &saver{answers: Rescue{Nominate: &node, Final: true}}
		core, err := New(Options{Profiles: []Profile{profileOfSaver(t, s, true)}, Groups: groups.Gates{Generic: true, Gang: true, Topology: true}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		for _, name := range []string{"first", "second"} {
			n := aNode(name, "2")
			n.Labels["rack"] = name
			core.Step(begin, Seen{Nodes, n})
		}
		g := gangOf("g", 3)
		g.Spec.SchedulingConstraints = oneOf("rack")
		core.Step(begin, Seen{PodGroups, g})
		for i := range 3 {
			p := aPod(fmt.Sprint("m", i), "1")
			p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
			core.Step(begin, Seen{Pods, p})
		}
		said, nominated := "", 0
		for _, action := range core.Step(begin, Tick{}) {
			said += action.String() + "\n"
			if w, is := action.(WriteStatus); is && w.Nominate != nil && *w.Nominate == "first" {
				nominated++
			}
		}
		if nominated != want || strings.Contains(said, `nominated "second"`) {
			t.Errorf("%d members are nominated after %s, want %d:\n%s", nominated, node, want, said)
		}
		if got := strings.Join(s.asked, ", "); got != "m2 0" {
			t.Errorf("it was asked about %q", got)
		}
	}
}

// TestMembersGiveUpDevicesThatTheyCannotUse: a claim of a member that is allocated on a node where
// the member cannot go is deallocated, as for a single pod.
func TestMembersGiveUpDevicesThatTheyCannotUse(t *testing.T) {
	core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Groups: groups.Gates{Generic: true, Gang: true}})
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
	said := ""
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
		said += action.String() + "\n"
		if back, ok := action.(GiveBackClaim); ok && back.Claim.Name == "c0" {
			return
		}
	}
	t.Errorf("the claim keeps devices that nobody can use:\n%s", said)
}
