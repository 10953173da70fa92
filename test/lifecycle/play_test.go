// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lifecycle

import (
	"container/heap"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/kube/fakeapi"
)

const (
	beatEvery = 10 * time.Second // a kubelet renews its Lease and checks its status
	saysEvery = 5 * time.Minute  // a kubelet reports an unchanged status
)

// player plays a script on an API server.
type player struct {
	*script
	server *fakeapi.Server
	began  time.Time
	todo   agenda
	nodes  map[string]*machine
	steps  int // number of entries added to todo so far
}

// machine is the state of a node and its kubelet.
type machine struct {
	birth
	silent, notReady int // numbers of active deeds that cause the state
	conditions       map[v1.NodeConditionType]int
	taints           map[v1.Taint]int
	cordons          int
	said             time.Time // time of the last report of the status
	gone             bool
}

func play(s *script, server *fakeapi.Server) {
	p := &player{script: s, server: server, began: time.Now(), nodes: map[string]*machine{}}
	for _, b := range s.nodes {
		p.after(b.at, func() { p.join(b) })
	}
	for _, d := range s.deeds {
		p.after(d.at, func() { p.do(d) })
	}

	for len(p.todo) > 0 {
		next := heap.Pop(&p.todo).(entry)
		if next.at > s.ends {
			return
		}
		time.Sleep(time.Until(p.began.Add(next.at))) // virtual time, driven by the script
		next.do()
	}
}

func (p *player) now() time.Duration { return time.Since(p.began) }

func (p *player) after(at time.Duration, do func()) {
	p.steps++
	heap.Push(&p.todo, entry{at, p.steps, do})
}

func (p *player) join(b birth) {
	if m := p.nodes[b.name]; m != nil && !m.gone {
		return
	}
	m := &machine{birth: b, conditions: map[v1.NodeConditionType]int{}, taints: map[v1.Taint]int{}}
	p.nodes[b.name] = m
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: b.name, Labels: map[string]string{
		v1.LabelHostname: b.name, v1.LabelTopologyRegion: "r", v1.LabelTopologyZone: b.zone,
		v1.LabelOSStable: "linux", v1.LabelArchStable: "amd64", "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
	}}}
	if b.excluded {
		node.Labels["node.kubernetes.io/exclude-disruption"] = ""
	}
	// Set by the API server's admission.
	node.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeNotReady, Effect: v1.TaintEffectNoSchedule}}
	p.server.Put(node)
	if !b.neverReports {
		p.after(p.now()+b.beats, func() { p.beat(m) })
	}
}

// beat performs the work of a kubelet every ten seconds.
func (p *player) beat(m *machine) {
	if m.gone {
		return
	}
	if m.silent == 0 {
		p.renew(m)
		p.report(m)
	}
	p.after(p.now()+beatEvery, func() { p.beat(m) })
}

func (p *player) renew(m *machine) {
	now := metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: m.name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &m.name, RenewTime: &now}}
	p.server.Put(lease)
}

// report writes the status if it is outdated, or if the last report is old.
func (p *player) report(m *machine) {
	node := p.node(m.name)
	if node == nil {
		return
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	changed := false
	for _, kind := range []v1.NodeConditionType{v1.NodeReady, v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure, v1.NodeNetworkUnavailable} {
		want := v1.ConditionFalse
		if m.conditions[kind] > 0 || kind == v1.NodeReady && m.notReady == 0 {
			want = v1.ConditionTrue
		}
		at := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
		if at < 0 {
			at = len(node.Status.Conditions)
			node.Status.Conditions = append(node.Status.Conditions, v1.NodeCondition{Type: kind})
		}
		if c := &node.Status.Conditions[at]; c.Status != want {
			c.Status, c.LastTransitionTime, c.Reason, c.Message = want, now, "KubeletSays", "kubelet says so"
			changed = true
		}
	}
	if !changed && time.Since(m.said) < saysEvery {
		return
	}

	m.said = time.Now()
	fakeapi.Change(p.server, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}, func(n *v1.Node) {
		n.Status.Conditions = node.Status.Conditions
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].LastHeartbeatTime = now
		}
	})
}

func (p *player) node(name string) *v1.Node {
	for _, n := range fakeapi.All(p.server, &v1.Node{}) {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// do performs a deed, and reverts it later.
func (p *player) do(d deed) {
	if d.kind == "pod" {
		d.pod.UID = ""
		now := metav1.Now()
		pod := d.pod.DeepCopy()
		pod.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &now, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionFalse}}}
		p.server.Put(pod)
		p.after(p.now()+2*time.Second, func() { p.getReady(pod) })
		return
	}

	m := p.nodes[d.node]
	if m == nil || m.gone {
		return
	}
	// Upstream keeps the pods ready on a node that was not ready before it fell silent.
	if d.kind == "silence" && m.notReady > 0 || d.kind == "notready" && m.silent > 0 {
		return
	}
	change := func(by int) {
		if m.gone {
			return
		}
		switch d.kind {
		case "silence":
			m.silent += by
		case "notready":
			m.notReady += by
		case "condition":
			m.conditions[d.condition] += by
		case "cordon":
			m.cordons += by
			fakeapi.Change(p.server, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}, func(n *v1.Node) { n.Spec.Unschedulable = m.cordons > 0 })
		case "taint":
			m.taints[d.taint] += by
			p.taint(m, d.taint)
		}
		if d.kind == "notready" || d.kind == "condition" {
			if m.silent == 0 && !m.neverReports {
				p.report(m)
			}
		}
	}

	if d.kind == "delete" {
		m.gone = true
		p.server.Delete(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}})
		p.server.Delete(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: v1.NamespaceNodeLease, Name: m.name}})
		for _, pod := range p.server.Pods() { // acts like the garbage collector
			if pod.Spec.NodeName == m.name {
				p.server.Delete(pod)
			}
		}
		p.after(p.now()+d.for_, func() {
			// Use another name: for a node with the name of a deleted one, upstream still remembers
			// the last sign of life, and considers it silent immediately.
			again := m.birth
			again.name += "x"
			p.join(again)
		})
		return
	}
	change(1)
	p.after(p.now()+d.for_, func() { change(-1) })
}

// getReady reports a pod as ready, unless its node was deleted or its kubelet is silent.
func (p *player) getReady(pod *v1.Pod) {
	if m := p.nodes[pod.Spec.NodeName]; m == nil || m.gone || m.silent > 0 || m.neverReports {
		return
	}
	fakeapi.Change(p.server, pod, func(pod *v1.Pod) { pod.Status.Conditions[0].Status = v1.ConditionTrue })
}

// taint adds a user's taint to a node if a deed sets it, and otherwise removes the taint.
func (p *player) taint(m *machine, t v1.Taint) {
	fakeapi.Change(p.server, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.name}}, func(n *v1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(have v1.Taint) bool { return have.Key == t.Key && have.Effect == t.Effect })
		if m.taints[t] > 0 {
			now := metav1.NewTime(time.Now().Truncate(time.Second))
			t := t
			t.TimeAdded = &now
			n.Spec.Taints = append(n.Spec.Taints, t)
		}
	})
}

type entry struct {
	at    time.Duration
	order int
	do    func()
}

type agenda []entry

func (a agenda) Len() int { return len(a) }
func (a agenda) Less(i, k int) bool {
	return a[i].at < a[k].at || a[i].at == a[k].at && a[i].order < a[k].order
}
func (a agenda) Swap(i, k int) { a[i], a[k] = a[k], a[i] }
func (a *agenda) Push(e any)   { *a = append(*a, e.(entry)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}
