// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	helper "k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/inspect/explain"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// The kinds of reports. Their API version is simulate.APIVersion.
const (
	// Each is the value of the field kind of a report in JSON or YAML.
	KindPending   = "PendingPods"
	KindEvictions = "Evictions"
	KindCapacity  = "Capacity"
)

// Scope selects the pods to report on. The zero value is all pods of all namespaces.
type Scope struct {
	// Namespace is empty for all.
	Namespace string
	Selector  labels.Selector // nil selects all
}

// Covers reports whether a pod is in the scope.
func (s Scope) Covers(p simulate.Found) bool {
	return (s.Namespace == "" || p.Object.Namespace == s.Namespace) &&
		(s.Selector == nil || s.Selector.Matches(labels.Set(p.Object.Labels)))
}

// Pending lists the pods without a node, by workload.
//
// It answers the first question on call: which pods are pending, and why? A cluster may have
// thousands of pending pods for a handful of reasons, so they are listed by workload and reason,
// with one change that would help.
type Pending struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Source     simulate.Source `json:"source"`
	// Pods is the total number of pending pods. Missing is the total number of pods that workloads
	// want but cannot create yet.
	Pods    int `json:"pods"`
	Missing int `json:"missing,omitempty"`
	// Workloads has several entries for a workload with several reasons.
	Workloads []Workload `json:"workloads"`
	// Notes name the limits of the report.
	Notes []string `json:"notes,omitempty"`

	scope Scope // requested scope
}

// PendingOf lists the workloads with pending pods, by descending number of pods. The world must be
// newly read.
//
// It explains only the oldest pod of each entry, because an explanation costs a decision with all
// its reasons, and pods of one workload and class have the same constraints. Explaining tries pods
// in the order of the queue, so it changes the world.
func PendingOf(w *simulate.World, scope Scope, source simulate.Source) (*Pending, error) {
	p := &Pending{APIVersion: simulate.APIVersion, Kind: KindPending, Source: source, Workloads: []Workload{}, scope: scope}
	type key struct{ namespace, workload, class string }
	// Pods of a workload have different classes if their requirements differ, as in an old and a
	// new ReplicaSet.
	groups := map[key][]simulate.Found{}
	var resized []simulate.Found
	for _, f := range w.Each() {
		if f.Pod != nil && helper.IsPodResizeDeferred(f.Object) && scope.Covers(f) {
			resized = append(resized, f)
		}
		if f.Pod == nil || f.Object.Spec.NodeName != "" || !scope.Covers(f) {
			continue
		}
		k := key{f.Object.Namespace, WorkloadOf(w, f), fmt.Sprintf("%p", f.Pod.Class)}
		if f.Group != "" { // a group is decided as a whole, whatever the pods' controllers
			k = key{f.Object.Namespace, "podgroup/" + f.Group, ""}
		}
		groups[k] = append(groups[k], f)
		p.Pods++
	}
	keys := slices.SortedFunc(maps.Keys(groups), func(a, b key) int { // in a fixed order, because explaining one pod may place others
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.workload, b.workload),
			cmp.Compare(groups[a][0].Object.Name, groups[b][0].Object.Name))
	})
	namespaces := answer.Grouped(keys, func(k key) string { return k.namespace })
	shared := rehearsals{left: explain.RehearsedPods, size: explain.Size(w), namespaces: len(namespaces)}
	for _, keys := range namespaces {
		shared.begin()
		for _, k := range keys {
			for _, pods := range byTurn(w, groups[k]) {
				// The oldest pod, which has been pending for the longest, represents the entry.
				slices.SortStableFunc(pods, func(a, b simulate.Found) int {
					return a.Object.CreationTimestamp.Compare(b.Object.CreationTimestamp.Time)
				})
				if shared.isLast() {
					p.Notes = append(p.Notes, fmt.Sprintf("%s: changes that help were searched for the first %d entries only",
						k.namespace, shared.entries))
				}
				one, err := newWorkload(w, k.workload, pods, source, shared.next())
				if err != nil {
					return nil, err
				}
				p.Workloads = append(p.Workloads, *one)
			}
		}
	}
	// Merge the entries of a workload's classes that are pending for the same reason.
	p.Workloads = mergeWorkloads(p.Workloads)
	p.addMissing(w)
	if err := p.addResizes(w, resized); err != nil {
		return nil, err
	}
	slices.SortFunc(p.Workloads, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(b.countPods(), a.countPods()), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name), slices.Compare(a.Pods, b.Pods))
	})
	return p, nil
}

// addResizes notes the pods whose kubelet has deferred a resize, and explains the first ones.
func (p *Pending) addResizes(w *simulate.World, resized []simulate.Found) error {
	const most = 10
	for i, f := range resized {
		if i == most {
			p.Notes = append(p.Notes, fmt.Sprintf("%d more pods wait for a deferred resize", len(resized)-most))
			break
		}
		e, err := explain.Of(w, explain.Options{Namespace: f.Object.Namespace, Name: f.Object.Name, Most: -1})
		if err != nil {
			return err
		}
		if e.Resize != "" {
			p.Notes = append(p.Notes, fmt.Sprintf("%s/%s on node %s: %s", f.Object.Namespace, f.Object.Name, e.Pod.Node, e.Resize))
		}
	}
	return nil
}

// addMissing adds the pods that workloads want but that do not exist, unless they are about to be
// created. If a quota or an admission webhook refuses pods, the only trace is a workload with too
// few pods: kubectl get pods shows nothing pending.
func (p *Pending) addMissing(w *simulate.World) {
	for _, s := range w.Shortfalls() {
		elsewhere := p.scope.Namespace != "" && s.Namespace != p.scope.Namespace
		// Pods about to be created are not missing, because nothing prevents their controller from
		// creating them.
		if elsewhere || p.scope.Selector != nil && !p.scope.Selector.Matches(s.Labels) || s.Refused == "" && s.Waits == "" {
			continue
		}
		state := explain.Refused
		if s.Waits != "" {
			state = explain.Gated
		}
		p.Missing += s.Missing
		p.Workloads = append(p.Workloads, Workload{
			Namespace: s.Namespace, Name: s.Workload, Pods: []string{}, Missing: s.Missing, Since: s.Since,
			State: state, Reason: s.Reason(),
			For: simulate.Seconds(max(w.Now().Sub(s.Since.Time), 0)),
		})
	}
}

// byTurn tries manifest pods, which no scheduler has tried yet, in the order of the queue. It
// separates placed pods and preempting pods from the remaining pods, because a workload may have
// room for only some of its pods. The parts are never empty. Pods of a group, which are placed
// together or not at all, and pods stored by an API server are one part, and are not tried.
//
//	5 pods of a manifest, room for 2, and another preempts: [2 placed] [1 preempting] [2 left]
func byTurn(w *simulate.World, pods []simulate.Found) (parts [][]simulate.Found) {
	if pods[0].Group != "" || simulate.Stored(pods[0].Object) {
		return [][]simulate.Found{pods}
	}
	for _, p := range pods {
		// The pods of the workload are tried in order, interleaved with pods of other workloads.
		w.UntilTurn(p.Object.Namespace, p.Object.Name)
	}
	// After a preemption, the victims are still leaving and the preemptor is still pending. The
	// decisions so far show which pods have preempted.
	turn := map[simulate.Name]int{} // index of the decision, by preempting pod
	for i, d := range w.Pods() {
		if name := (simulate.Name{Namespace: d.Namespace, Name: d.Name}); len(d.Victims) > 0 && turn[name] == 0 {
			turn[name] = i + 1
		}
	}
	turnOf := func(p simulate.Found) int {
		return turn[simulate.Name{Namespace: p.Object.Namespace, Name: p.Object.Name}]
	}
	// Some pods of a workload may have found room and others not, so they need different entries.
	var placed, preempting, left []simulate.Found
	for _, p := range pods {
		now, ok := w.Find(p.Object.Namespace, p.Object.Name)
		switch {
		case turnOf(p) > 0:
			preempting = append(preempting, p)
		case ok && now.Object.Spec.NodeName != "":
			placed = append(placed, p)
		default:
			left = append(left, p)
		}
	}
	// The first pod to preempt represents the entry.
	slices.SortFunc(preempting, func(a, b simulate.Found) int { return cmp.Compare(turnOf(a), turnOf(b)) })
	parts = [][]simulate.Found{placed, preempting, left}
	return slices.DeleteFunc(parts, func(part []simulate.Found) bool { return len(part) == 0 })
}

// mostAdvised bounds the entries of a namespace for which changes are searched, so that a tenant
// with many different pods does not delay the report on other tenants.
const mostAdvised = 20

// rehearsals shares the rehearsals of changes among the namespaces: each gets an equal share of the
// remaining rehearsals.
type rehearsals struct {
	left, size int // remaining rehearsals and the size of one, in units of explain.RehearsedPods
	namespaces int // number of namespaces without a share
	share      int // share of the current namespace
	entries    int // number of its entries for which changes are searched
	ended      bool
}

// begin begins the next namespace.
func (r *rehearsals) begin() {
	r.left += r.share
	r.share, r.entries, r.ended = r.left/r.namespaces, 0, false
	r.left, r.namespaces = r.left-r.share, r.namespaces-1
}

// isLast reports, once per namespace, that the budget is used up: no changes are searched for the
// remaining entries.
func (r *rehearsals) isLast() bool {
	last := !r.ended && (r.entries == mostAdvised || r.share < r.size)
	r.ended = r.ended || last
	return last
}

// next returns the budget for the next entry; nil to search for no changes.
func (r *rehearsals) next() *int {
	if r.ended {
		return nil
	}
	r.entries++
	return &r.share
}

// WorkloadOf returns the kubectl name of the pod's workload: its controller or, for a ReplicaSet of
// a Deployment, the Deployment. A bare pod is its own workload. Other higher-level controllers,
// such as an Argo Rollout, are named by package simulate.
func WorkloadOf(w *simulate.World, f simulate.Found) string {
	if owner := w.OwnerOf(f.Object); owner != nil {
		return owner.Workload()
	}
	return "pod/" + f.Object.Name
}
