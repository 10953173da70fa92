// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// slow is an extender with slow responses, preferring n2. It is interested in pods with a host
// name.
type slow struct {
	*record
	takes time.Duration
}

func (*slow) Name() string                { return "slow" }
func (*slow) IsInterested(p *v1.Pod) bool { return p.Spec.Hostname != "" }
func (*slow) IsFilter() bool              { return true }
func (*slow) IsPrioritizer() bool         { return true }
func (*slow) IsBinder() bool              { return false }
func (*slow) IsIgnorable() bool           { return false }
func (*slow) SupportsPreemption() bool    { return true }
func (*slow) Bind(*v1.Binding) error      { return nil }

func (x *slow) asked(what string, p *v1.Pod) {
	x.note("%s %s", what, p.Name)
	time.Sleep(x.takes) // in virtual time
}

func (x *slow) Filter(p *v1.Pod, nodes []fwk.NodeInfo) ([]fwk.NodeInfo, extenderv1.FailedNodesMap, extenderv1.FailedNodesMap, error) {
	x.asked("filter", p)
	return nodes, nil, nil, nil
}

func (x *slow) Prioritize(p *v1.Pod, nodes []fwk.NodeInfo) (*extenderv1.HostPriorityList, int64, error) {
	x.asked("prioritize", p)
	return &extenderv1.HostPriorityList{{Host: "n2", Score: 10}}, 100, nil
}

func (x *slow) ProcessPreemption(p *v1.Pod, victims map[string]*extenderv1.Victims, _ fwk.NodeInfoLister) (map[string]*extenderv1.Victims, error) {
	x.asked("preempt", p)
	delete(victims, "n1")
	return victims, nil
}

func withHostname(p *v1.Pod) *v1.Pod {
	p.Spec.Hostname = "h"
	return p
}

// TestASlowExtenderHoldsUpNobodyElse verifies that pods of no interest to the extender are bound
// while a request is pending, and that its own pods land on its preferred node after the response.
func TestASlowExtenderHoldsUpNobodyElse(t *testing.T) {
	x := &slow{&record{}, 4 * time.Second}
	inWorldWith(t, "", nil, []fwk.Extender{x}, func(w *world) {
		w.addNode("n1", 8)
		w.addNode("n2", 4)
		w.api.Put(withHostname(pod("asks", "1")))
		synctest.Wait()
		w.api.Put(pod("plain", "6"))
		w.expect(time.Second, "asks waits; plain on n1")
		w.expect(8*time.Second, "asks on n2; plain on n1")
		if asked := x.taken(); asked != "filter asks; prioritize asks" {
			t.Errorf("asked: %s", asked)
		}
	})
}

// TestAnExtenderIsAskedAboutVictimsAside verifies that decisions continue while a request about
// victims is pending.
func TestAnExtenderIsAskedAboutVictimsAside(t *testing.T) {
	x := &slow{&record{}, 4 * time.Second}
	inWorldWith(t, "", nil, []fwk.Extender{x}, func(w *world) {
		w.addNode("n1", 4)
		w.addNode("n2", 4)
		for i, node := range []string{"n1", "n2"} {
			low := pod(fmt.Sprint("low-", i), "4")
			low.Spec.NodeName = node
			w.api.Put(low)
		}
		high := withHostname(pod("high", "4"))
		priority := int32(10)
		high.Spec.Priority = &priority
		w.api.Put(high)
		w.expect(time.Second, "high waits; low-0 on n1; low-1 on n2")
		tiny := pod("tiny", "0")
		tiny.Spec.NodeSelector = map[string]string{v1.LabelHostname: "n1"}
		w.api.Put(tiny)
		w.expect(time.Second, "high waits; low-0 on n1; low-1 on n2; tiny on n1")
		w.expect(20*time.Second, "high on n2; low-0 on n1; tiny on n1")
	})
}

// TestVictimsThatChangedAreAskedAboutAgain verifies that preemption succeeds with another victim if
// the first one is deleted, and another pod takes its resources, while the request is pending.
func TestVictimsThatChangedAreAskedAboutAgain(t *testing.T) {
	x := &slow{&record{}, 4 * time.Second}
	inWorldWith(t, "", nil, []fwk.Extender{x}, func(w *world) {
		w.addNode("n2", 4)
		low := pod("low", "2", on("n2"))
		w.api.Put(low, pod("stays", "2", on("n2"), priority(5)))
		w.api.Put(withHostname(pod("high", "2", priority(10))))
		w.expect(time.Second, "high waits; low on n2; stays on n2")
		w.api.Delete(low)
		w.api.Put(pod("other", "2", on("n2")))
		w.expect(4*time.Second, "high waits; other on n2; stays on n2")
		w.expect(20*time.Second, "high on n2; stays on n2")
		if asked := x.taken(); strings.Count(asked, "preempt high") != 2 {
			t.Errorf("asked: %s", asked)
		}
	})
}

// TestPodsThatAskAsideAreFew verifies that the number of pending requests is limited, that further
// pods back off and get their turn later, and that a pod deleted meanwhile is forgotten.
func TestPodsThatAskAsideAreFew(t *testing.T) {
	x := &slow{&record{}, 20 * time.Second}
	inWorldWith(t, "", nil, []fwk.Extender{x}, func(w *world) {
		w.addNode("n1", 64)
		for i := range 40 {
			p := withHostname(pod(fmt.Sprintf("p%02d", i), "1"))
			p.CreationTimestamp = metav1.Time{Time: time.Unix(int64(i), 0)}
			w.api.Put(p)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if n := strings.Count(x.taken(), "filter"); n != 32 {
			t.Errorf("%d pods are asked about at once", n)
		}
		for _, p := range w.api.Pods() {
			if p.Name == "p00" {
				w.api.Delete(p)
			}
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		for _, p := range w.api.Pods() {
			if p.Spec.NodeName == "" || p.Name == "p00" {
				t.Errorf("%s %s", p.Name, stateOf(p))
			}
		}
	})
}
