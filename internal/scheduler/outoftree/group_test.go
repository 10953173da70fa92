// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// groupPlugin is a plugin at the extension points of pod groups. At PreFilter it keeps its
// arguments in the group's state, and at Reserve it counts its reservations.
type groupPlugin struct {
	*record
	rescue   func(state fwk.PodGroupCycleState, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status)
	scores   map[string]int64 // by placement
	reserved int
	most     int // maximum of reserved, checked at Reserve and Filter
}

const seenKey fwk.StateKey = "seen"

type seenPods []string

func (s seenPods) Clone() fwk.StateData { return s }

func (p *groupPlugin) recordIn(r *record) { p.record = r }
func (p *groupPlugin) Name() string       { return "A" }

func (p *groupPlugin) PreFilter(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if !state.IsPodGroupSchedulingCycle() {
		return nil, nil
	}
	of := state.GetPodGroupSchedulingCycle()
	var seen seenPods
	if data, err := of.Read(seenKey); err == nil {
		seen = data.(seenPods)
	}
	of.Write(seenKey, append(seen, pod.Name))
	if state.GetPlacementCycleState().GetPodGroupSchedulingCycle() != of {
		return nil, fwk.NewStatus(fwk.Error, "the placement is of another group")
	}
	state.Write(seenKey, seenPods{pod.Name})
	return nil, nil
}

func (p *groupPlugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

func (p *groupPlugin) Filter(context.Context, fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
	if p.most > 0 && p.reserved >= p.most {
		return fwk.NewStatus(fwk.Unschedulable, "all are reserved")
	}
	return nil
}

func (p *groupPlugin) Reserve(_ context.Context, state fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	if data, err := state.Read(seenKey); pod.Spec.SchedulingGroup != nil && (err != nil || data.(seenPods)[0] != pod.Name) {
		return fwk.NewStatus(fwk.Error, "the state is not the one of PreFilter")
	}
	p.reserved++
	return nil
}

func (p *groupPlugin) Unreserve(context.Context, fwk.CycleState, *v1.Pod, string) { p.reserved-- }

func (p *groupPlugin) PodGroupPostFilter(_ context.Context, state fwk.PodGroupCycleState, group fwk.PodGroupInfo,
	schedule fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	if p.rescue == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable, "no luck")
	}
	return p.rescue(state, group, schedule)
}

func (p *groupPlugin) ScorePlacement(_ context.Context, state fwk.PlacementCycleState, group fwk.PodGroupInfo, at *fwk.PodGroupAssignments) (int64, *fwk.Status) {
	p.note("score %s of %s: %d of %d nodes", at.Name, group.GetName(), len(at.ProposedAssignments), len(at.Nodes))
	if state == nil || state.GetPodGroupSchedulingCycle() == nil {
		return 0, fwk.NewStatus(fwk.Error, "no state")
	}
	return p.scores[at.Name], nil
}

func (p *groupPlugin) PlacementScoreExtensions() fwk.PlacementScoreExtensions { return nil }

func putGroup(w *world, least int32, key string) {
	g := &schedulingv1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "g", UID: "g"}}
	g.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: least}
	if key != "" {
		g.Spec.SchedulingConstraints = &schedulingv1beta1.PodGroupSchedulingConstraints{Topology: []schedulingv1beta1.TopologyConstraint{{Key: key}}}
	}
	w.api.Put(g)
}

func member(name, cpu string) *v1.Pod {
	p := pod(name, cpu)
	p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: new("g")}
	return p
}

// TestAPluginMakesRoomForAGroup verifies that the plugin sees the group and its own state, can have
// the group decided in a snapshot without one pod, and can nominate the members after undoing that
// change.
func TestAPluginMakesRoomForAGroup(t *testing.T) {
	a := &groupPlugin{}
	inGroupWorld(t, "plugins: {multiPoint: {enabled: [{name: A}]}}", []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 4)
		w.api.Put(pod("low", "2"))
		w.expect(time.Second, "low on n1")
		a.rescue = func(state fwk.PodGroupCycleState, group fwk.PodGroupInfo, schedule fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
			seen, err := state.Read(seenKey)
			w.note("%s %s: %d pods, seen %v %v", group.GetType(), group.GetKey(), len(group.GetUnscheduledPods()), seen.(seenPods)[:3], err)
			states, err := w.handle.PodGroupManager().PodGroupStates().Get("default", "g")
			w.note("%d pods, %d unscheduled, %v", states.AllPodsCount(), len(states.UnscheduledPods()), err)
			lister := w.handle.MutableSnapshotSharedLister()
			n1, _ := lister.NodeInfos().Get("n1")
			if err := lister.RemovePod(klog.Background(), n1.GetPods()[0].GetPod(), "n1"); err == nil {
				t.Error("the snapshot is changed before the changes begin")
			}
			if err := lister.StartMutations(); err != nil {
				t.Error(err)
			}
			if err := lister.RemovePod(klog.Background(), n1.GetPods()[0].GetPod(), "n1"); err != nil {
				t.Error(err)
			}
			n1, _ = lister.NodeInfos().Get("n1")
			w.note("%d pods left", len(n1.GetPods()))
			found, status := schedule(context.Background())
			result := &fwk.PodGroupPostFilterResult{NominatingInfos: map[types.NamespacedName]*fwk.NominatingInfo{}}
			for _, at := range found.ProposedAssignments {
				w.note("%s on %s", at.GetPod().Name, at.GetNodeName())
				result.NominatingInfos[types.NamespacedName{Namespace: "default", Name: at.GetPod().Name}] = &fwk.NominatingInfo{
					NominatingMode: fwk.ModeOverride, NominatedNodeName: at.GetNodeName()}
			}
			if err := lister.EndMutations(); err != nil || !status.IsSuccess() {
				t.Error(err, status)
			}
			_, status = schedule(context.Background())
			w.note("back: %s", status.Code())
			return result, fwk.NewStatus(fwk.Success, "low is moved")
		}
		w.taken()
		putGroup(w, 3, "")
		w.api.Put(member("a", "1"), member("b", "1"), member("c", "1"))
		const said = "pod group is unschedulable, 0/1 placements are available, first placement status: " +
			"minCount (3) cannot be satisfied: 2 scheduled, 0 remaining, low is moved"
		w.expect(time.Second, "a Unschedulable: "+said+" (nominated to n1); b Unschedulable: "+said+" (nominated to n1); "+
			"c Unschedulable: 0/1 nodes are available: 1 Insufficient cpu. (nominated to n1); low on n1")
		const want = "podgroup podgroup/default/g: 3 pods, seen [a b c] <nil>; 3 pods, 3 unscheduled, <nil>; 0 pods left; a on n1; b on n1; c on n1; back: Unschedulable"
		if got := w.taken(); !strings.HasPrefix(got, want) {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		if a.reserved != 1 {
			t.Errorf("%d are reserved after the look, want that of low", a.reserved)
		}
		if err := w.handle.MutableSnapshotSharedLister().StartMutations(); err == nil {
			t.Error("the snapshot can be changed at any time")
		}
		w.api.Delete(pod("low", "2"))
		w.expect(20*time.Second, "a on n1; b on n1; c on n1")
		if a.reserved != 4 {
			t.Errorf("%d are reserved at the end", a.reserved)
		}
	})
}

// TestMembersSeeWhatOthersHaveReserved verifies that a plugin allowing two reservations does not
// let in a gang of three.
func TestMembersSeeWhatOthersHaveReserved(t *testing.T) {
	a := &groupPlugin{most: 2}
	inGroupWorld(t, "plugins: {multiPoint: {enabled: [{name: A}]}}", []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 8)
		putGroup(w, 3, "")
		w.api.Put(member("a", "1"), member("b", "1"), member("c", "1"))
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, p := range w.api.Pods() {
			if p.Spec.NodeName != "" {
				t.Errorf("%s is on %s", p.Name, p.Spec.NodeName)
			}
		}
		if a.reserved != 0 {
			t.Errorf("%d stay reserved", a.reserved)
		}
		a.most = 3
		w.api.Put(member("d", "1"))
		w.expect(2*time.Minute, "a on n1; b on n1; c on n1; d Unschedulable: 0/1 nodes are available: 1 all are reserved.")
	})
}

// TestAPluginScoresPlacements verifies that a group that fits on two racks is placed on the rack
// preferred by the plugin, even if the other rack is fuller.
func TestAPluginScoresPlacements(t *testing.T) {
	for _, best := range []string{"r1", "r2"} {
		a := &groupPlugin{scores: map[string]int64{best: 100}}
		inGroupWorld(t, "plugins: {multiPoint: {enabled: [{name: A, weight: 3}]}}", []fwk.Plugin{a}, func(w *world) {
			for i := range 4 {
				w.addNode(fmt.Sprint("n", i), 2+i%2)
				fakeapi.Change(w.api, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}, func(n *v1.Node) { n.Labels["rack"] = fmt.Sprint("r", 1+i%2) })
			}
			synctest.Wait() // each kind has a separate watch: labels must precede pods
			putGroup(w, 2, "rack")
			w.api.Put(member("a", "2"), member("b", "2"))
			want := map[string]string{"r1": "a on n0; b on n2", "r2": "a on n1; b on n3"}[best]
			time.Sleep(5 * time.Second)
			synctest.Wait()
			on := map[string]bool{}
			for _, p := range w.api.Pods() {
				on[p.Spec.NodeName] = true
			}
			for _, node := range []string{want[5:7], want[14:16]} {
				if !on[node] {
					t.Errorf("%s is best, and the pods are on %v", best, on)
				}
			}
			if got := w.taken(); !strings.Contains(got, "score r1 of g: 2 of 2 nodes") || !strings.Contains(got, "score r2 of g: 2 of 2 nodes") {
				t.Errorf("got %s", got)
			}
		})
	}
}
