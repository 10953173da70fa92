// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

// TestAHintDecidesWhatWakesAPod verifies that a hint gets the objects of the event and decides
// whether the pod is retried.
func TestAHintDecidesWhatWakesAPod(t *testing.T) {
	open := false
	a := &fakePlugin{name: "A", quiet: true, filter: func(fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
		if open {
			return nil
		}
		return fwk.NewStatus(fwk.Unschedulable, "closed")
	}}
	a.events = func() ([]fwk.ClusterEventWithHint, error) {
		return []fwk.ClusterEventWithHint{{
			Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.UpdateNodeAnnotation},
			QueueingHintFn: func(_ klog.Logger, p *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				a.note("asked for %s: %s to %s", p.Name, old.(*v1.Node).Annotations["door"], now.(*v1.Node).Annotations["door"])
				if now.(*v1.Node).Annotations["door"] == "open" {
					return fwk.Queue, nil
				}
				return fwk.QueueSkip, nil
			},
		}}, nil
	}
	inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 4)
		w.api.Put(pod("p", "1"))
		const closed = "p Unschedulable: 0/1 nodes are available: 1 closed. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
		w.expect(2*time.Second, closed)
		open = true
		w.taken()
		door := func(is string) {
			fakeapi.Change(w.api, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, func(n *v1.Node) { n.Annotations = map[string]string{"door": is} })
		}
		w.addNode("n2", 1) // irrelevant to the plugin
		w.expect(2*time.Second, closed)
		door("ajar")
		w.expect(2*time.Second, closed)
		door("open")
		w.expect(2*time.Second, "p on n1")
		calls := w.taken()
		if !strings.Contains(calls, "asked for p:  to ajar; asked for p: ajar to open") {
			t.Errorf("got %s", calls)
		}
	})
}

// TestAPodThatIsKeptOutComesInWhenThePluginLetsIt verifies that a pod rejected at PreEnqueue is not
// decided, and enters the queue when the plugin passes its updated version.
func TestAPodThatIsKeptOutComesInWhenThePluginLetsIt(t *testing.T) {
	a := &fakePlugin{name: "A", quiet: true, enqueue: unpaid, events: podUpdates}
	inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 4)
		p := pod("p", "1")
		w.api.Put(p)
		w.expect(time.Minute, "p waits")
		if calls := w.taken(); strings.Contains(calls, "Filter") {
			t.Errorf("a pod that is kept out is decided: %s", calls)
		}
		fakeapi.Change(w.api, p, func(p *v1.Pod) { p.Annotations = map[string]string{"paid": "yes"} })
		w.expect(time.Second, "p on n1")
	})
}

// TestPodsAreDecidedInThePluginsOrder verifies that the plugin's order replaces the order by
// priority and age.
func TestPodsAreDecidedInThePluginsOrder(t *testing.T) {
	profile := "plugins: {queueSort: {enabled: [{name: Sort}], disabled: [{name: '*'}]}, reserve: {enabled: [{name: A}]}}"
	inWorld(t, profile, []fwk.Plugin{byName{}, &fakePlugin{name: "A"}}, func(w *world) {
		w.api.Put(pod("c", "1"), pod("a", "1"), pod("b", "1", priority(1000)))
		time.Sleep(time.Minute)
		w.addNode("n1", 4)
		w.expect(time.Minute, "a on n1; b on n1; c on n1")
		if got := w.taken(); got != "A Reserve a on n1; A Reserve b on n1; A Reserve c on n1" {
			t.Errorf("got %s", got)
		}
	})
}

// TestCustomResourcesWakePods verifies that events of custom resources wake pods rejected by a
// plugin that registered them.
func TestCustomResourcesWakePods(t *testing.T) {
	const custom fwk.EventResource = "licences.v1.example.com"
	open := false
	a := &fakePlugin{name: "A", quiet: true, filter: func(fwk.CycleState, *v1.Pod, fwk.NodeInfo) *fwk.Status {
		if open {
			return nil
		}
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "no licence")
	}, events: func() ([]fwk.ClusterEventWithHint, error) {
		return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: custom, ActionType: fwk.Add}}}, nil
	}}
	inWorld(t, everywhere, []fwk.Plugin{a}, func(w *world) {
		w.addNode("n1", 4)
		w.api.Put(pod("p", "1"))
		time.Sleep(2 * time.Second)
		synctest.Wait()
		open = true
		w.set.addEvent("others.v1.example.com", fwk.Add, nil, &v1.Pod{})
		w.set.addEvent(custom, fwk.Delete, &v1.Pod{}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if p := w.api.Pods()[0]; p.Spec.NodeName != "" {
			t.Error("an event that the plugin did not register wakes the pod")
		}
		w.set.addEvent(custom, fwk.Add, nil, &v1.Pod{})
		w.expect(time.Second, "p on n1")
	})
}

// TestNominationsAreMadeInTheirOrder verifies that nominations are made and withdrawn in the order
// of requests. A plugin on separate goroutines does not wait for a nomination before it requests
// the next.
func TestNominationsAreMadeInTheirOrder(t *testing.T) {
	inWorld(t, everywhere, []fwk.Plugin{&fakePlugin{name: "A", quiet: true}}, func(w *world) {
		w.addNode("n1", 1)
		w.api.Put(pod("p", "2"))
		time.Sleep(time.Second)
		synctest.Wait()
		to := &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: "n1"}
		nominated := func() (n int) {
			w.set.host().Look(func(v cycle.View) { n = v.Cluster.Nominations() })
			synctest.Wait()
			return n
		}
		for range 20 {
			w.handle.AddNominatedPod(klog.Background(), newPodInfo(pod("p", "2")), to)
			w.handle.DeleteNominatedPodIfExists(pod("p", "2"))
			if n := nominated(); n != 0 {
				t.Fatalf("%d nominations, and the last one was taken back", n)
			}
			w.handle.DeleteNominatedPodIfExists(pod("p", "2"))
			w.handle.AddNominatedPod(klog.Background(), newPodInfo(pod("p", "2")), to)
			if n := nominated(); n != 1 {
				t.Fatalf("%d nominations, want the last one", n)
			}
		}
	})
}
