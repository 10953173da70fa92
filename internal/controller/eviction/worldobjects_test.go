// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eviction_test

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/eviction"
)

// Node is a node with the actual starts of its taints. The embedded eviction.Node is the object as
// stored, with times in whole seconds.
type Node struct {
	eviction.Node
	since       map[string]time.Time // actual start of each taint, by taint ID
	doubtful    map[string]time.Time // latest start of each taint that a controller may assume
	written     time.Time            // when the list of taints was last written
	unseen      bool                 // the list has been written since a controller last observed it
	noteTrouble time.Time            // last time at which the taints changed, or a note was not written
}

// Pod is a pod with data about its deletion.
type Pod struct {
	eviction.Pod
	Grace time.Duration // time between the delete and the removal of the pod
	// Deletes holds the arrival times of all deletes of the pod's name.
	Deletes []time.Time
	// justified is the last recorded time at which the pod was due, or zero.
	justified time.Time
	refuse    int // number of deletes to be refused by a webhook
}

// nextVersion returns a new resource version.
func (w *World) nextVersion() string {
	w.rev++
	return strconv.Itoa(w.rev)
}

// AddNode creates a node without taints.
func (w *World) AddNode(name string) {
	if w.nodes[name] != nil {
		return
	}
	n := &Node{since: map[string]time.Time{}, doubtful: map[string]time.Time{}}
	n.Name, n.UID = name, w.nextUID(name)
	n.written = w.Now
	w.nodes[name] = n
	w.showNode(n)
}

// RemoveNode deletes a node. Its pods stay until they are garbage-collected.
func (w *World) RemoveNode(name string) {
	n := w.nodes[name]
	if n == nil {
		return
	}
	w.Truth.justifyPods(name)
	delete(w.nodes, name)
	w.nodeFeed.Show(func() { w.Controller.Step(eviction.NodeGone{Name: name}) })
}

// HasTaint reports whether the node exists and has a taint with that key.
func (w *World) HasTaint(node, key string) bool {
	n := w.nodes[node]
	return n != nil && slices.ContainsFunc(n.Taints, func(t v1.Taint) bool { return t.Key == key })
}

// Taint adds a NoExecute taint to a node. stamped sets its timeAdded, like controllers and unlike
// kubectl.
func (w *World) Taint(node, key, value string, stamped bool) {
	n := w.nodes[node]
	if n == nil || w.HasTaint(node, key) {
		return
	}
	w.Truth.justifyPods(node)
	taint := v1.Taint{Key: key, Value: value, Effect: v1.TaintEffectNoExecute}
	if stamped {
		taint.TimeAdded = &metav1.Time{Time: w.Now.Truncate(time.Second)}
	}
	n.since[taint.ToString()] = w.Now
	n.doubtful[taint.ToString()] = w.Now
	w.writeTaints(n, append(slices.Clone(n.Taints), taint))
}

// Untaint removes the taint with that key from a node.
func (w *World) Untaint(node, key string) {
	n := w.nodes[node]
	if n == nil || !w.HasTaint(node, key) {
		return
	}
	w.Truth.justifyPods(node)
	w.writeTaints(n, slices.DeleteFunc(slices.Clone(n.Taints), func(t v1.Taint) bool { return t.Key == key }))
}

// writeTaints stores another list of taints. It also records which starts of the taints a
// controller can determine later.
func (w *World) writeTaints(n *Node, taints []v1.Taint) {
	w.Tracef("node %s taints: %s", n.Name, describeTaints(taints))
	n.Taints, n.written, n.unseen, n.noteTrouble = taints, w.Now, true, w.Now
	// The API server stores this time in whole seconds.
	n.Witness = w.Now.Truncate(time.Second)
	if !w.Controller.Running() {
		n.becomesDoubtful(w.Now)
	}
	w.showNode(n)
}

// describeTaints is for the trace.
func describeTaints(taints []v1.Taint) string {
	if len(taints) == 0 {
		return "none"
	}
	var words []string
	for _, t := range taints {
		words = append(words, t.ToString())
	}
	return strings.Join(words, " ")
}

// becomesDoubtful records that a controller may assume later starts: if it did not observe the
// last write of the taints, or was killed before it could write the note, each taint without a time
// may have begun with that write.
func (n *Node) becomesDoubtful(now time.Time) {
	if !n.unseen && now.Sub(n.noteTrouble) > 10*time.Second {
		return
	}
	for _, t := range n.Taints {
		if t.TimeAdded.IsZero() {
			n.doubtful[t.ToString()] = n.written
		}
	}
}

// showNode gives the node a new version and delivers its current state. The list of taints counts
// as observed only if it has not been rewritten by then.
func (w *World) showNode(n *Node) {
	n.ResourceVersion = w.nextVersion()
	seen, written := n.Node, n.written
	w.nodeFeed.Show(func() {
		if n.written.Equal(written) {
			n.unseen = false
		}
		w.Controller.Step(eviction.NodeSeen{Node: seen})
	})
}

// Heartbeat writes a node's status. This changes only the version, so a write of a note with the
// previous version fails.
func (w *World) Heartbeat(node string) {
	if n := w.nodes[node]; n != nil {
		w.showNode(n)
	}
}

// AddPod creates a pod on a node, or returns nil if the name is taken. The node need not exist.
func (w *World) AddPod(name, node string, tolerations []v1.Toleration) *Pod {
	key := types.NamespacedName{Namespace: "default", Name: name}
	if w.pods[key] != nil {
		return nil
	}
	p := &Pod{}
	p.Name, p.UID, p.Node, p.Tolerations = key, w.nextUID(name), node, tolerations
	p.Bound, p.ResourceVersion = w.Now.Truncate(time.Second), w.nextVersion()
	w.pods[key] = p
	w.Tracef("pod %s created on %s, tolerates %s", p.UID, node, describeTolerations(tolerations))
	w.showPod(p)
	return p
}

// PodNamed returns the pod that currently has the name.
func (w *World) PodNamed(name string) *Pod {
	return w.pods[types.NamespacedName{Namespace: "default", Name: name}]
}

// Edit replaces a pod's tolerations.
func (w *World) Edit(name string, tolerations []v1.Toleration) {
	if p := w.PodNamed(name); p != nil {
		w.Truth.justifyPod(p)
		w.Tracef("pod %s tolerates %s", p.UID, describeTolerations(tolerations))
		p.Tolerations, p.ResourceVersion = tolerations, w.nextVersion()
		w.showPod(p)
	}
}

// Touch changes only the pod's version, like a write of its status.
func (w *World) Touch(name string) {
	if p := w.PodNamed(name); p != nil {
		p.ResourceVersion = w.nextVersion()
		w.showPod(p)
	}
}

// RefuseDeletes makes a webhook refuse the given number of deletes of the pod, but none after
// Requests.Until.
func (w *World) RefuseDeletes(name string, times int) {
	if p := w.PodNamed(name); p != nil {
		p.refuse = times
	}
}

// showPod delivers the current state of the pod.
func (w *World) showPod(p *Pod) {
	seen := p.Pod
	w.podFeed.Show(func() { w.Controller.Step(eviction.PodSeen{Pod: seen}) })
}

// Terminate carries out a delete: the pod is terminating, and is removed after its grace period. A
// second delete changes nothing.
func (w *World) Terminate(p *Pod) {
	if p.Terminating {
		return
	}
	p.Terminating, p.ResourceVersion = true, w.nextVersion()
	w.showPod(p)
	w.After(p.Grace, func() { w.removePod(p) })
}

// removePod removes the pod, unless it has already been removed.
func (w *World) removePod(p *Pod) {
	if w.pods[p.Name] != p {
		return
	}
	delete(w.pods, p.Name)
	w.Devices.Deallocate(p.Name.Name) // like the claim controller
	w.Tracef("pod %s gone", p.UID)
	name, uid := p.Name, p.UID
	w.podFeed.Show(func() { w.Controller.Step(eviction.PodGone{Name: name, UID: uid}) })
}

// describeTolerations is for the trace.
func describeTolerations(tolerations []v1.Toleration) string {
	if len(tolerations) == 0 {
		return "nothing"
	}
	var words []string
	for _, t := range tolerations {
		word := t.Key + ":" + string(t.Effect)
		if t.TolerationSeconds != nil {
			word += " " + strconv.FormatInt(*t.TolerationSeconds, 10) + "s"
		}
		words = append(words, word)
	}
	return strings.Join(words, ", ")
}

// Clear deletes all objects.
func (w *World) Clear() {
	for _, p := range sortedValues(w.pods, byName) {
		w.removePod(p)
	}
	for _, n := range sortedValues(w.nodes, cmp.Compare[string]) {
		w.Devices.RemoveSlice(n.Name)
		w.RemoveNode(n.Name)
	}
	for _, r := range sortedValues(w.Devices.rules, cmp.Compare[string]) {
		w.Devices.RemoveRule(r.Name)
	}
}
