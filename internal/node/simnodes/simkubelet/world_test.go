// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// world is an API server in memory, a fleet on it, and a clock: the fleet's actions are applied
// immediately and recorded.
type world struct {
	shape   Shape
	fleet   *Fleet
	now     time.Time
	began   time.Time
	version int
	nodes   map[string]*v1.Node
	pods    map[string]*v1.Pod
	renewed map[string]time.Time
	trace   []string
	// outcomes holds the outcomes of the next actions of a kind; the default is OK.
	outcomes map[Kind][]Outcome
	// quiet omits renewals and reports without changes from the trace.
	quiet bool
}

func newWorld(shape Shape) *world {
	began := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	return &world{
		shape: shape, now: began, began: began,
		nodes: map[string]*v1.Node{}, pods: map[string]*v1.Pod{}, renewed: map[string]time.Time{},
		outcomes: map[Kind][]Outcome{}, quiet: true,
	}
}

// start starts a fleet on the API's present state, like a new process.
func (w *world) start() {
	w.fleet = New(w.shape)
	var nodes []*v1.Node
	for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
		nodes = append(nodes, w.nodes[name].DeepCopy())
	}
	w.fleet.NodesListed(nodes, strconv.Itoa(w.version), w.now)
	if err := w.fleet.Start(w.now); err != nil {
		w.say("%v", err)
	}
	var pods []*v1.Pod
	for _, name := range slices.Sorted(maps.Keys(w.pods)) {
		pods = append(pods, Slim(w.pods[name].DeepCopy()))
	}
	w.settle()
	w.fleet.PodsListed(pods, strconv.Itoa(w.version), w.now)
	w.settle()
}

// wait lets time pass, stopping at each timer of the fleet.
func (w *world) wait(d time.Duration) {
	until := w.now.Add(d)
	for {
		at, ok := w.fleet.Next()
		if !ok || at.After(until) {
			break
		}
		if at.After(w.now) {
			w.now = at
		}
		w.fleet.Tick(w.now)
		w.settle()
	}
	w.now = until
}

// settle carries out actions until the fleet has no more.
func (w *world) settle() {
	for {
		actions := w.fleet.Take()
		if len(actions) == 0 {
			return
		}
		for _, a := range actions {
			w.carryOut(a)
		}
	}
}

func (w *world) carryOut(a Action) {
	outcome := OK
	if planned := w.outcomes[a.Kind]; len(planned) > 0 {
		outcome, w.outcomes[a.Kind] = planned[0], planned[1:]
	}
	if outcome != OK {
		w.say("%s %s: %s", a.Kind, w.nameOf(a), [...]string{"ok", "gone", "failed", "refused"}[outcome])
		w.fleet.Done(a, outcome, nil, w.now)
		return
	}
	switch a.Kind {
	case Register:
		node := a.Object.DeepCopy()
		node.UID = types.UID("uid-" + node.Name + "-" + strconv.Itoa(w.version))
		w.storeNode(node)
		w.say("node %s: registered", a.Node)
		w.fleet.Done(a, OK, w.nodes[a.Node].DeepCopy(), w.now)
	case Renew:
		w.renewed[a.Node] = w.now
		if !w.quiet {
			w.say("node %s: lease renewed", a.Node)
		}
		w.fleet.Done(a, OK, nil, w.now)
	case PatchNode:
		was := w.nodes[a.Node]
		var node v1.Node
		w.merge(was, a.Patch, &node)
		w.storeNode(&node)
		if news := nodeNews(was, &node); news != "" {
			w.say("node %s: %s", a.Node, news)
		} else if !w.quiet {
			w.say("node %s: heartbeat", a.Node)
		}
		w.fleet.Done(a, OK, w.nodes[a.Node].DeepCopy(), w.now)
	case DeleteNode:
		delete(w.nodes, a.Node)
		w.say("node %s: removed", a.Node)
		w.fleet.Done(a, OK, nil, w.now)
	case PatchPod:
		was := w.pods[a.Pod.Name]
		if was == nil || was.UID != a.UID {
			w.fleet.Done(a, Gone, nil, w.now)
			return
		}
		var pod v1.Pod
		w.merge(was, a.Patch, &pod)
		w.storePod(&pod)
		w.say("pod %s: %s", pod.Name, describePod(&pod))
		w.fleet.Done(a, OK, Slim(w.pods[pod.Name].DeepCopy()), w.now)
	case DeletePod:
		pod := w.pods[a.Pod.Name]
		if pod == nil || pod.UID != a.UID {
			w.fleet.Done(a, Gone, nil, w.now)
			return
		}
		w.fleet.Done(a, OK, nil, w.now)
		w.deletePod(pod.Name, 0)
	case Report:
		w.say("event %s: %s %s: %s", w.nameOf(a), a.Event.Type, a.Event.Reason, a.Event.Message)
	}
}

func (w *world) nameOf(a Action) string {
	if a.Pod.Name != "" {
		return a.Pod.Name
	}
	return a.Node
}

func (w *world) merge(object any, patch []byte, into any) {
	doc, err := json.Marshal(object)
	if err == nil {
		doc, err = strategicpatch.StrategicMergePatch(doc, patch, into)
	}
	if err == nil {
		err = json.Unmarshal(doc, into)
	}
	if err != nil {
		panic(fmt.Sprintf("%v in %s", err, patch))
	}
}

// storeNode, storePod and deletePod simulate the API server, including its watch.
func (w *world) storeNode(node *v1.Node) {
	w.version++
	node.ResourceVersion = strconv.Itoa(w.version)
	w.nodes[node.Name] = node
}

func (w *world) changeNode(name string, change func(*v1.Node)) {
	node := w.nodes[name].DeepCopy()
	change(node)
	w.storeNode(node)
	w.fleet.NodeSeen(node.DeepCopy(), w.now)
	w.settle()
}

func (w *world) deleteNode(name string) {
	node := w.nodes[name]
	delete(w.nodes, name)
	w.fleet.NodeGone(node, w.now)
	w.settle()
}

func (w *world) storePod(pod *v1.Pod) {
	w.version++
	pod.ResourceVersion = strconv.Itoa(w.version)
	w.pods[pod.Name] = pod
}

func (w *world) changePod(name string, change func(*v1.Pod)) {
	pod := w.pods[name].DeepCopy()
	change(pod)
	w.storePod(pod)
	w.fleet.PodSeen(Slim(pod.DeepCopy()), w.now)
	w.settle()
}

func (w *world) createPod(pod *v1.Pod) {
	pod.UID = types.UID(fmt.Sprintf("uid-%s-%d", pod.Name, w.version))
	pod.Generation = 1
	if pod.CreationTimestamp.IsZero() {
		pod.CreationTimestamp = toSeconds(w.now)
	}
	pod.Status.Phase = v1.PodPending
	if pod.Spec.RestartPolicy == "" {
		pod.Spec.RestartPolicy = v1.RestartPolicyAlways
	}
	w.storePod(pod)
	w.fleet.PodSeen(Slim(pod.DeepCopy()), w.now)
	w.settle()
}

// deletePod removes the pod if its grace period is 0 or it has no node, and no finalizer holds it.
// Otherwise it only marks the pod as deleted.
func (w *world) deletePod(name string, grace int64) {
	pod := w.pods[name].DeepCopy()
	at := toSeconds(w.now.Add(time.Duration(grace) * time.Second))
	if pod.DeletionTimestamp == nil || at.Before(pod.DeletionTimestamp) {
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
	}
	if (grace == 0 || pod.Spec.NodeName == "") && len(pod.Finalizers) == 0 {
		delete(w.pods, name)
		w.say("pod %s: gone", name)
		w.fleet.PodGone(pod.UID, w.now)
	} else {
		w.storePod(pod)
		w.fleet.PodSeen(Slim(pod.DeepCopy()), w.now)
	}
	w.settle()
}

// leavePod simulates an API server that fails between the two steps of removing a pod.
func (w *world) leavePod(name string) {
	pod, at := w.pods[name].DeepCopy(), toSeconds(w.now)
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, new(int64)
	w.storePod(pod)
	w.fleet.PodSeen(Slim(pod.DeepCopy()), w.now)
	w.settle()
}

func (w *world) say(format string, args ...any) {
	at := w.now.Sub(w.began).Round(100 * time.Millisecond)
	w.trace = append(w.trace, fmt.Sprintf("%-5s ", at)+fmt.Sprintf(format, args...))
}

// reports returns the trace, and clears it.
func (w *world) reports() string {
	trace := w.trace
	w.trace = nil
	if len(trace) == 0 {
		return "nothing"
	}
	return strings.Join(trace, "\n")
}

// describePod formats a pod in one line: phase, number of ready containers, and anything unusual.
func describePod(pod *v1.Pod) string {
	st := &pod.Status
	ready := 0
	for _, cs := range st.ContainerStatuses {
		if cs.Ready {
			ready++
		}
	}
	parts := []string{fmt.Sprintf("%s %d/%d", st.Phase, ready, len(pod.Spec.Containers))}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if c := rules.PodCondition(st, v1.PodReady); c != nil && c.Status == v1.ConditionTrue {
		add("Ready")
	}
	if st.Reason != "" {
		add("%s (%s)", st.Reason, st.Message)
	}
	for _, cs := range slices.Concat(st.InitContainerStatuses, st.ContainerStatuses) {
		switch {
		case cs.State.Waiting != nil:
			add("%s:%s", cs.Name, cs.State.Waiting.Reason)
		case cs.State.Terminated != nil:
			add("%s:exit=%d", cs.Name, cs.State.Terminated.ExitCode)
		case cs.RestartCount > 0:
			add("%s:restarts=%d", cs.Name, cs.RestartCount)
		}
	}
	if c := rules.PodCondition(st, v1.PodReady); c != nil && c.Reason == "ReadinessGatesNotReady" {
		add("(%s)", c.Message)
	}
	if c := rules.PodCondition(st, v1.PodResizePending); c != nil {
		add("resize %s (%s)", c.Reason, c.Message)
	}
	return strings.Join(parts, " ")
}

// nodeNews describes the changes of a node, except for heartbeats.
func nodeNews(was, is *v1.Node) string {
	var news []string
	for _, c := range is.Status.Conditions {
		i := slices.IndexFunc(was.Status.Conditions, func(o v1.NodeCondition) bool { return o.Type == c.Type })
		if i < 0 || was.Status.Conditions[i].Status != c.Status {
			news = append(news, fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.Status.Allocatable)) {
		q, old := is.Status.Allocatable[name], was.Status.Allocatable[name]
		if !q.Equal(old) {
			news = append(news, fmt.Sprintf("allocatable %s=%s", name, q.String()))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(is.Status.Capacity)) {
		q, old := is.Status.Capacity[name], was.Status.Capacity[name]
		if !q.Equal(old) {
			news = append(news, fmt.Sprintf("capacity %s=%s", name, q.String()))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(is.Labels)) {
		if was.Labels[key] != is.Labels[key] {
			news = append(news, fmt.Sprintf("label %s=%s", key, is.Labels[key]))
		}
	}
	return strings.Join(news, ", ")
}

// String formats the action for comparison in tests.
func (a Action) String() string {
	what := a.Node
	if a.Pod.Name != "" {
		what = a.Pod.String()
	}
	switch {
	case a.Event != nil:
		return fmt.Sprintf("%s %s %s %s: %s", a.Kind, what, a.Event.Type, a.Event.Reason, a.Event.Message)
	case a.Patch != nil:
		return fmt.Sprintf("%s %s %s", a.Kind, what, a.Patch)
	}
	return fmt.Sprintf("%s %s", a.Kind, what)
}
