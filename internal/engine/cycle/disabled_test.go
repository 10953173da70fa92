package cycle_test

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestWithoutExpectationTheNodeIsNotNominated: a pod that is held at Permit has its node written to
// nominatedNodeName, unless the gate NominatedNodeNameForExpectation is off.
func TestWithoutExpectationTheNodeIsNotNominated(t *testing.T) {
	for _, off := range []bool{false, true} {
		core, err := New(Options{Profiles: []Profile{profileWith(holdsAtPermit)}, Disabled: Disabled{Expectation: off}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		core.Step(begin, Seen{Nodes, aNode("n", "4")})
		p := aPod("p", "1")
		p.Labels = map[string]string{"hold": "yes"}
		core.Step(begin, Seen{Pods, p})
		var hold Ticket
		nominated, said := false, ""
		for _, action := range core.Step(begin, Tick{}) {
			said += action.String() + "\n"
			switch a := action.(type) {
			case Hold:
				hold = a.Ticket
			case WriteStatus:
				nominated = a.Nominate != nil && *a.Nominate == "n"
			}
		}
		if hold == 0 || nominated == off {
			t.Errorf("disabled %t:\n%s", off, said)
		}
		for _, action := range core.Step(begin, PermitAllowed{Ticket: hold, Plugin: "Holds"}) {
			said += action.String() + "\n"
		}
		if off && !strings.Contains(said, "bind default/p") {
			t.Errorf("it was allowed, and is not bound:\n%s", said)
		}
	}
}

// TestWithoutPopFromBackoffAnIdleCoreWaits: the gate SchedulerPopFromBackoffQ.
func TestWithoutPopFromBackoffAnIdleCoreWaits(t *testing.T) {
	for _, off := range []bool{false, true} {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{PopFromBackoff: off}})
		if err != nil {
			t.Fatal(err)
		}
		core.Step(begin, Follows{})
		core.Step(begin, Led{})
		core.Step(begin, Seen{Pods, aPod("p", "1")})
		core.Step(begin, Seen{Nodes, aNode("small", "500m")})
		core.Step(begin, Tick{}) // it is rejected
		core.Step(begin, Seen{Nodes, aNode("large", "4")})
		bound := func(at time.Time) bool { return strings.Contains(tick(core, at), "bind default/p") }
		if got := bound(begin.Add(500 * time.Millisecond)); got == off {
			t.Errorf("disabled %t, within the back-off: bound %t", off, got)
		}
		if !off {
			continue
		}
		if at, ok := core.Due(); !ok || !at.Equal(begin.Add(time.Second)) {
			t.Errorf("a tick is due at %v, %t", at, ok)
		}
		if !bound(begin.Add(time.Second)) {
			t.Error("it is not bound when the back-off is over")
		}
	}
}

// TestWithoutPopFromBackoffAPreemptorWaits: a pod whose victim has gone does not back off, unless
// the gate SchedulerPopFromBackoffQ is off, as in kube-scheduler.
func TestWithoutPopFromBackoffAPreemptorWaits(t *testing.T) {
	for _, off := range []bool{false, true} {
		core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{PopFromBackoff: off}})
		if err != nil {
			t.Fatal(err)
		}
		victim, preemptor := aPod("victim", "1"), aPod("p", "1")
		victim.Spec.NodeName, *preemptor.Spec.Priority = "n", 10
		for _, e := range []Event{Follows{}, Seen{Nodes, aNode("n", "1")}, Seen{Pods, victim}, Seen{Pods, preemptor}, Led{}} {
			core.Step(begin, e)
		}
		removed := false
		for _, action := range core.Step(begin, Tick{}) {
			if a, ok := action.(Remove); ok {
				removed = true
				core.Step(begin, Answered{Ticket: a.Ticket})
			}
		}
		if !removed {
			t.Fatal("it preempts nothing")
		}
		soon := begin.Add(500 * time.Millisecond)
		core.Step(soon, Gone{Pods, victim})
		if said := tick(core, soon); strings.Contains(said, "bind default/p") == off {
			t.Errorf("disabled %t, within the back-off:\n%s", off, said)
		}
		if over := begin.Add(time.Second); off && !strings.Contains(tick(core, over), "bind default/p") {
			t.Error("it is not bound when the back-off is over")
		}
	}
}

// TestWithoutExtendedResourceClassesProvideNone: the gate DRAExtendedResource. A pod that requests
// what a DeviceClass provides, by its own name or by the implicit one, finds devices, or no node.
func TestWithoutExtendedResourceClassesProvideNone(t *testing.T) {
	named := v1.ResourceName("example.com/gpu")
	implicit := v1.ResourceName(resourcev1.ResourceDeviceClassPrefix + "gpu")
	for _, name := range []v1.ResourceName{named, implicit} {
		for _, off := range []bool{false, true} {
			core, err := New(Options{Profiles: []Profile{{Profile: plugins.Default()}}, Disabled: Disabled{ExtendedResource: off}})
			if err != nil {
				t.Fatal(err)
			}
			p := aPod("p", "1")
			p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse("1")
			for _, e := range []Event{
				Follows{}, Seen{Nodes, aNode("n", "4")},
				Seen{DeviceClasses, &resourcev1.DeviceClass{
					ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: (*string)(&named)},
				}},
				Seen{ResourceSlices, &resourcev1.ResourceSlice{
					ObjectMeta: metav1.ObjectMeta{Name: "s"},
					Spec: resourcev1.ResourceSliceSpec{
						Driver: "d", Pool: resourcev1.ResourcePool{Name: "n", Generation: 1, ResourceSliceCount: 1}, NodeName: new("n"),
						Devices: []resourcev1.Device{{Name: "gpu-0"}},
					},
				}},
				Seen{Pods, p}, Led{},
			} {
				core.Step(begin, e)
			}
			none := "0/1 nodes are available: 1 Insufficient " + string(name) + ". no new claims to deallocate, " +
				"preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
			if said := tick(core, begin); strings.Contains(said, none) != off {
				t.Errorf("%s, disabled %t:\n%s", name, off, said)
			}
		}
	}
}

func tick(core *Core, at time.Time) (said string) {
	for _, action := range core.Step(at, Tick{}) {
		said += action.String() + "\n"
	}
	return said
}
