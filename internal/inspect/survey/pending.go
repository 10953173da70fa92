// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package survey

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

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

// Workload is a set of pods pending for the same reason: a controller's pods, the pods of a pod
// group, or a bare pod.
type Workload struct {
	Namespace string `json:"namespace"`
	// Name is deployment/NAME and so on; pod/NAME for a bare pod, podgroup/NAME for the pods of a
	// group.
	Name string `json:"name"`
	// Pods lists the names, the oldest first. If the entry is about pods that do not exist, Pods is
	// empty and Missing is their number.
	Pods    []string `json:"pods"`
	Missing int      `json:"missing,omitempty"`
	// Since is the creation time of the oldest pod; For is its age.
	Since metav1.Time      `json:"since"`
	For   simulate.Seconds `json:"for"`
	// State is the oldest pod's state, representing all pods of the entry.
	State explain.State `json:"state"`
	// Reason is the reason the pods are pending. If a plugin rejects the pods, Nodes is the number
	// of nodes it rejects, and Of is the number of all nodes.
	Reason string `json:"reason"`
	Plugin string `json:"plugin,omitempty"`
	Nodes  int    `json:"nodes,omitempty"`
	Of     int    `json:"of,omitempty"`
	// Detail names the objects and amounts behind the oldest pod's reason, if Reason does not name
	// them.
	Detail string `json:"detail,omitempty"`
	// Help is the smallest change that lets one of the pods run, if one was found.
	Help string `json:"help,omitempty"`
	// Command is a kubectl command for the change, if there is one.
	Command string `json:"command,omitempty"`
	// Message is the FailedScheduling event's message.
	Message string `json:"message,omitempty"`
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
	for _, f := range w.Each() {
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
	shared := rehearsals{left: explain.RehearsedPods, size: explain.Size(w)}
	for i, k := range keys {
		if i == 0 || k.namespace != keys[i-1].namespace {
			shared.namespaces++
		}
	}
	for i, k := range keys {
		if i == 0 || k.namespace != keys[i-1].namespace {
			shared.begin()
		}
		for _, pods := range byTurn(w, groups[k]) {
			// The oldest pod, which has been pending for the longest, represents the entry.
			slices.SortStableFunc(pods, func(a, b simulate.Found) int {
				return a.Object.CreationTimestamp.Compare(b.Object.CreationTimestamp.Time)
			})
			if shared.isLast() {
				p.Notes = append(p.Notes, fmt.Sprintf("%s: changes that help were searched for the first %d entries only", k.namespace, shared.entries))
			}
			one, err := newWorkload(w, k.workload, pods, source, shared.next())
			if err != nil {
				return nil, err
			}
			p.Workloads = append(p.Workloads, *one)
		}
	}
	// Merge the entries of a workload's classes that are pending for the same reason.
	p.Workloads = mergeWorkloads(p.Workloads)
	p.addMissing(w)
	slices.SortFunc(p.Workloads, func(a, b Workload) int {
		return cmp.Or(cmp.Compare(b.countPods(), a.countPods()), cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Name, b.Name), slices.Compare(a.Pods, b.Pods))
	})
	return p, nil
}

// countPods returns the number of pods of the entry, existing or not.
func (one *Workload) countPods() int { return len(one.Pods) + one.Missing }

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
	for _, part := range [][]simulate.Found{placed, preempting, left} {
		if len(part) > 0 {
			parts = append(parts, part)
		}
	}
	return parts
}

// mergeWorkloads combines entries of a workload with the same state and reason. Such entries are
// common, because each pod of a DaemonSet, and each pod with its own claim, has a separate class.
// The pods keep the order of the entries, the oldest first.
func mergeWorkloads(all []Workload) (kept []Workload) {
	type key struct {
		namespace, name, reason, plugin string
		state                           explain.State
		nodes                           int
	}
	slices.SortFunc(all, func(a, b Workload) int { // oldest first
		return cmp.Or(a.Since.Compare(b.Since.Time), cmp.Compare(a.Pods[0], b.Pods[0]))
	})
	at := map[key]int{}
	for _, one := range all {
		k := key{one.Namespace, one.Name, one.Reason, one.Plugin, one.State, one.Nodes}
		if i, known := at[k]; known {
			kept[i].Pods = append(kept[i].Pods, one.Pods...)
			continue
		}
		at[k] = len(kept)
		kept = append(kept, one)
	}
	return kept
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

// newWorkload explains the first pod, which must be the oldest, and returns one entry for all pods.
// With a budget, it searches for a change that helps.
func newWorkload(w *simulate.World, name string, pods []simulate.Found, source simulate.Source, budget *int) (*Workload, error) {
	oldest, most := pods[0].Object, 1
	if budget == nil {
		most = -1
	}
	e, err := explain.Of(w, explain.Options{Namespace: oldest.Namespace, Name: oldest.Name, Most: most, Budget: budget, Source: source})
	if err != nil {
		return nil, err
	}
	one := &Workload{
		Namespace: oldest.Namespace, Name: name, Since: oldest.CreationTimestamp, State: e.State, Of: e.Nodes, Message: e.Message,
		For: simulate.Seconds(max(w.Now().Sub(oldest.CreationTimestamp.Time), 0)),
	}
	for _, p := range pods {
		one.Pods = append(one.Pods, p.Object.Name)
	}
	// Replace the general summary of package explain with something shorter if available.
	one.Reason = e.Summary
	made := slices.IndexFunc(w.Pods(), func(d simulate.Pod) bool {
		return d.Namespace == oldest.Namespace && d.Name == oldest.Name && len(d.Victims) > 0
	})
	switch {
	case made >= 0: // the pod was tried, and its victims are already leaving
		d := &w.Pods()[made]
		one.State, one.Reason = explain.Pending, preemptsText(len(d.Victims), d.NominatedNode)
	case e.State == explain.Schedulable || e.State == explain.Placed: // offline, the pod has not been tried yet
		one.State = explain.Schedulable
		one.Reason = placeableText(source.IsStopped(oldest.Spec.SchedulerName), "is scheduled when its turn comes")
	case e.State == explain.Gated:
		one.Reason = e.Message
	case e.Leaving != nil:
		one.Reason = e.Leaving.Summary()
	case e.Preemption != nil && e.Preemption.Helps:
		one.Reason = preemptsText(len(e.Preemption.Victims), e.Preemption.Node)
	// A label missing on every node is more informative than the plugin that requires it.
	case len(e.NoNodeHas) > 0:
		one.Reason = "no node has " + strings.Join(e.NoNodeHas, " or ")
	case e.Decisive != nil:
		one.Plugin, one.Nodes, one.Reason = e.Decisive.Plugin, e.Decisive.Nodes, strings.Join(e.Decisive.Reasons, ", ")
		one.Detail = e.Decisive.Detail
	}
	// A pod that preempts needs no help.
	if makesRoom := e.Preemption != nil && e.Preemption.Helps; len(e.Suggestions) > 0 && !makesRoom {
		one.Help, one.Command = e.Suggestions[0].Text, e.Suggestions[0].Command()
	}
	// All pods of the entry are of this group.
	if g := pods[0].Group; g != "" {
		return one, one.ofGroup(w, g, source.IsStopped(oldest.Spec.SchedulerName))
	}
	return one, nil
}

// placeableText returns the reason for pods that have a feasible node. The argument then describes
// when they are placed. It is not used if their scheduler has stopped.
func placeableText(stopped bool, then string) string {
	if stopped {
		return "can be placed, but no scheduler is running to do it"
	}
	return "can be placed, and " + then
}

// preemptsText returns the reason for a pod that preempts victims on a node.
func preemptsText(victims int, node string) string {
	return fmt.Sprintf("preempts %s on %s", answer.Count(victims, "pod"), node)
}

// ofGroup replaces the reason and the suggestion for one pod with the reason and the suggestion for
// its group. Like explain, it omits suggestions for a single pod of a gang. If the group is
// unknown, it changes nothing and the pod's reason remains.
func (one *Workload) ofGroup(w *simulate.World, name string, stopped bool) error {
	e, err := explain.OfGroup(w, explain.Options{Namespace: one.Namespace, Name: name})
	if errors.Is(err, explain.ErrNoPod) || err == nil && e.Now == nil {
		return nil // the PodGroup is missing, or none of its pods is tried
	}
	if err != nil {
		return err
	}
	t := e.Now
	one.Plugin, one.Nodes, one.Detail, one.Message, one.State = "", 0, "", t.Message, e.State
	switch {
	case t.Incomplete:
		one.Reason = t.Message
	case len(t.Victims) > 0:
		one.Reason = "makes room by removing " + answer.Count(len(t.Victims), "pod")
	case e.Leaving != nil:
		one.Reason = e.Leaving.Summary()
	case t.Message != "":
		one.Reason = t.Message
	// Some pods of the group fit, and are placed without the others.
	case t.Fit < t.Tried:
		one.Reason = fmt.Sprintf("%d of %d pods %s", t.Fit, t.Tried, placeableText(stopped, "are scheduled when their turn comes"))
	default:
		one.Reason = placeableText(stopped, "is scheduled when its turn comes")
	}
	if len(e.Suggestions) > 0 {
		one.Help, one.Command = e.Suggestions[0].Text, ""
	}
	return nil
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
