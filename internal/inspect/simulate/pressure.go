// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/node/admit"
	"github.com/berth-k8s/berth/internal/node/pressure"
)

// kubelets simulates the kubelets of nodes that may experience pressure: nodes named by a Pressure,
// and nodes with a pod of known usage. All other nodes cost nothing.
//
//	pod usage + other usage -> available -> thresholds -> conditions -> taints (node health)
//	                                                   -> one eviction at a time
type kubelets struct {
	clock     *clock
	report    *report
	nodes     *nodes
	pods      *pods
	reactions *reactions
	measured  map[string]*measured
	// uses holds pod usage set by an operation Use; all other pods use the amount in their
	// annotation, or their requests.
	uses map[Name]v1.ResourceList
}

// measured is a node with a kubelet that measures its remaining resources.
type measured struct {
	// core holds the kubelet's thresholds, and the times since which they have been met.
	core *pressure.Core
	// others is the usage in bytes outside of pods, the difference between the measured total and
	// the pods' usage. It is negative if the pods use less than assumed.
	others map[v1.ResourceName]int64
	// conditions lists the pressure conditions last reported as True.
	conditions []v1.NodeConditionType
	// While a measurement is scheduled (waits), next is its time. made numbers the scheduled
	// measurements: a call with an outdated number was superseded by a measurement at an earlier
	// time, and does nothing.
	waits bool
	next  time.Duration
	made  int
	// scheduled counts the node's calls on the agenda, including superseded ones. again is set if
	// the latest evicted pod had itself replaced an evicted pod: the evictions then repeat
	// endlessly.
	scheduled int
	again     bool
	// helpless means that the lack of evictable pods has been reported.
	helpless bool
	// daemons counts the refused DaemonSet pods.
	daemons int
}

// measureEvery is the kubelet's monitoring interval.
const measureEvery = 10 * time.Second

// A controller replaces a pod refused by a kubelet after refusalSeen. A DaemonSet doubles the delay
// each time, up to daemonsPause.
const (
	refusalSeen  = time.Second
	daemonsPause = 15 * time.Minute
)

// unrequested is the assumed usage of a pod with neither a known usage nor a memory request. It
// equals the request assumed by scoring.
const unrequested = 200 << 20

// pressNodes sets the available memory or disk of nodes, and their thresholds. Either may be
// omitted. A note reports the number of pods with an assumed usage, because the assumption affects
// the choice of the evicted pod.
func (k *kubelets) pressNodes(p *Pressure) (*Done, error) {
	config, err := p.config()
	if err != nil {
		return nil, err
	}

	left, err := parseQuantities(p.Memory, p.EphemeralStorage)
	if err != nil {
		return nil, err
	}
	if config == nil && len(left) == 0 {
		return nil, fmt.Errorf("pressure: specify how much is left: memory or ephemeralStorage, or the kubelet's thresholds")
	}

	names, err := p.resolveNames(k.nodes)
	if err != nil {
		return nil, err
	}

	// Node health must be running to turn the kubelets' conditions into taints.
	k.reactions.health.ensureStarted()
	silent := 0
	for _, name := range names {
		m := k.measureNode(name)
		if config != nil {
			if m.core, err = pressure.NewCore(*config); err != nil {
				return nil, err
			}
		}
		if err := k.leaveAmounts(name, left); err != nil {
			return nil, err
		}
		silent += k.countSilent(name)
		k.lookAt(name, k.clock.now)
	}

	if silent == 0 || len(left) == 0 {
		return &Done{}, nil
	}
	return &Done{Notes: []string{fmt.Sprintf("pods without declared usage (annotation %s): %d; their requests are assumed, "+
		"or 200Mi without requests", pressure.AnnotationUses, silent)}}, nil
}

// leaveAmounts sets a node's usage outside of pods so that these amounts remain, given the current
// usage of the pods. Later changes of the pods change the remainder.
func (k *kubelets) leaveAmounts(name string, left v1.ResourceList) error {
	candidates, _ := k.candidatesOn(name)
	capacity := k.nodes.named[name].capacity()
	for resourceName, quantity := range left {
		all, known := capacity[resourceName]
		if !known {
			return fmt.Errorf("node %s does not report its %s", name, resourceName)
		}
		signal := pressure.Memory
		if resourceName == v1.ResourceEphemeralStorage {
			signal = pressure.NodeFs
		}
		if quantity.Cmp(all) > 0 {
			return fmt.Errorf("node %s has %s of %s: %s cannot be left", name, &all, resourceName, &quantity)
		}
		k.measured[name].others[resourceName] = pressure.Observe(capacity, nil, candidates).Signals[signal].Available - quantity.Value()
	}

	return nil
}

// capacity is the node's total capacity, as measured by its kubelet.
func (m *machine) capacity() v1.ResourceList {
	if m.object.Status.Capacity != nil {
		return m.object.Status.Capacity
	}
	return m.object.Status.Allocatable // fallback for hand-written manifests
}

// useResources sets the usage of a pod from now on. A pending pod takes the usage to its node.
func (k *kubelets) useResources(u *Use) (*Done, error) {
	uses, err := parseQuantities(u.Memory, u.EphemeralStorage)
	if err != nil {
		return nil, err
	}
	if len(uses) == 0 {
		return nil, fmt.Errorf("use: specify how much: memory or ephemeralStorage")
	}
	name := Name{u.Namespace, strings.TrimPrefix(u.Pod, "pod/")}
	name.Namespace = cmp.Or(name.Namespace, v1.NamespaceDefault)
	p := k.pods.named[name]
	if p == nil {
		return nil, fmt.Errorf("there is no pod %s/%s", name.Namespace, name.Name)
	}

	k.reactions.health.ensureStarted()
	for resourceName, quantity := range k.usesOf(p.object) { // unspecified resources keep their usage
		if _, named := uses[resourceName]; !named {
			uses[resourceName] = quantity
		}
	}
	k.uses[name] = uses
	if p.Pod != nil && p.NodeName != "" {
		k.measureNode(p.NodeName)
		k.lookAt(p.NodeName, k.clock.now)
	}
	return &Done{}, nil
}

// measureNode starts measuring a node, with the kubelet's default thresholds unless others are set.
// It does not schedule a measurement.
func (k *kubelets) measureNode(node string) *measured {
	if k.measured[node] == nil {
		core, _ := pressure.NewCore(pressure.DefaultConfig()) // the default configuration is valid
		k.measured[node] = &measured{core: core, others: map[v1.ResourceName]int64{}}
	}
	return k.measured[node]
}

// podJoined handles a pod newly on a node. The kubelet refuses it if the node is under pressure and
// neither the pod's QoS class nor a toleration admits it.
func (k *kubelets) podJoined(p *pod) {
	if p.object == nil {
		return
	}
	if _, says := p.object.Annotations[pressure.AnnotationUses]; says {
		k.measureNode(p.NodeName)
	}
	if m := k.measured[p.NodeName]; m != nil {
		if refusal := admit.UnderPressure(p.object, m.conditions); refusal != nil {
			k.refusePod(m, p, refusal)
			return
		}
	}
	k.podLeft(p.NodeName)
}

// podLeft handles the departure of a pod from the node: its usage is freed.
func (k *kubelets) podLeft(node string) { k.lookAt(node, k.clock.now+measureEvery) }

// lookAt schedules a measurement of a measured node at a time, unless an earlier one is scheduled.
// Only the earliest is valid: calls cannot be removed from the agenda, so a superseded call does
// nothing when it runs.
func (k *kubelets) lookAt(node string, at time.Duration) {
	m := k.measured[node]
	if m == nil || m.waits && m.next <= at {
		return
	}
	m.made++
	m.waits, m.next = true, at
	this := m.made
	k.scheduleCall(m, at, func() {
		if m.made == this && m.waits {
			m.waits = false
			k.observeNode(node)
		}
	})
}

// scheduleCall schedules a call for a node's kubelet and counts it until it has run.
func (k *kubelets) scheduleCall(m *measured, at time.Duration, do func()) {
	m.scheduled++
	k.clock.callAt(at, func() {
		m.scheduled--
		do()
	})
}

// countRepeats counts the scheduled calls of nodes that evict only replacements of earlier evicted
// pods. These calls repeat forever, so a world without any other calls is considered quiet.
func (k *kubelets) countRepeats() (count int) {
	for _, m := range k.measured {
		if m.again {
			count += m.scheduled
		}
	}
	return count
}

// observeNode measures a node and reports the resulting pressure. Like the kubelet, it evicts one
// pod at a time, and the next pod only if the first one was not enough.
func (k *kubelets) observeNode(node string) {
	m, machine := k.measured[node], k.nodes.named[node]
	if machine == nil || machine.dead {
		return
	}
	candidates, leaving := k.candidatesOn(node)
	verdict := m.core.Step(pressure.Observe(machine.capacity(), m.others, candidates), k.clock.time())
	k.reportConditions(node, m, verdict.Conditions)
	if verdict.Starved != nil && !leaving {
		why := pressure.Victim(verdict.Starved, pressure.Rank(verdict.Starved, candidates))
		if why == nil { // measure again only after a pod joins or leaves, or an operation changes the usage
			if !m.helpless {
				m.helpless = true
				k.report.addEvent(Event{Kind: "Note", Node: node,
					Message: fmt.Sprintf("%s is short, and no pod may be evicted", verdict.Starved.Resource)})
			}
			return
		}
		// The pod is removed after the grace period of the eviction.
		p := k.pods.placed[why.Pod.UID]
		p.starved = true
		k.removeAfter(time.Duration(why.Grace)*time.Second, m, p, strings.TrimSpace(why.Message))
	}
	m.helpless = false
	// Under pressure, measure again to detect the end of the pressure. Otherwise nothing changes
	// until a pod joins or leaves, which calls lookAt.
	if len(verdict.Conditions) > 0 {
		k.lookAt(node, k.clock.now+measureEvery)
	}
}

// candidatesOn lists a node's pods with their usage. It omits pods refused by the kubelet, which
// run no containers. leaving is set if the kubelet is already evicting one of the pods.
func (k *kubelets) candidatesOn(node string) (list []pressure.Candidate, leaving bool) {
	for _, p := range k.pods.podsOn(node) {
		if p.turnedAway {
			continue
		}
		leaving = leaving || p.starved
		list = append(list, pressure.Candidate{Pod: p.object, Usage: pressure.UsageOf(p.object, k.usesOf(p.object))})
	}
	return list, leaving
}

// usesOf returns a pod's usage: set by an operation, or by its annotation, or else its requests.
func (k *kubelets) usesOf(object *v1.Pod) v1.ResourceList {
	if uses := k.uses[Name{object.Namespace, object.Name}]; uses != nil {
		return uses
	}
	if uses, err := pressure.Uses(object); err == nil && uses != nil {
		return uses
	}
	// An invalid annotation is ignored.
	uses := pressure.Requests(object)
	if memory := uses[v1.ResourceMemory]; memory.IsZero() {
		uses[v1.ResourceMemory] = *resource.NewQuantity(unrequested, resource.BinarySI)
	}
	return uses
}

// countSilent counts the pods of a node with unknown usage.
func (k *kubelets) countSilent(node string) (count int) {
	for _, p := range k.pods.podsOn(node) {
		_, says := p.object.Annotations[pressure.AnnotationUses]
		if !says && k.uses[Name{p.object.Namespace, p.object.Name}] == nil {
			count++
		}
	}
	return count
}

// reportConditions makes the node report its changed conditions; node health sets the taints.
func (k *kubelets) reportConditions(node string, m *measured, conditions []v1.NodeConditionType) {
	if slices.Equal(m.conditions, conditions) {
		return
	}
	before := m.conditions
	m.conditions = conditions
	k.reactions.health.ensureStarted()

	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure} {
		was, is := slices.Contains(before, kind), slices.Contains(conditions, kind)
		if was == is {
			continue
		}
		status := v1.ConditionFalse
		if is {
			status = v1.ConditionTrue
		}
		k.nodes.reportCondition(node, kind, status)
	}
}

// refusePod fails a pod that the kubelet does not admit under pressure. Such a pod was bound by
// node name, or thanks to a toleration that the kubelet ignores. Its controller replaces it after
// observing the failure; DaemonSets wait longer each time.
func (k *kubelets) refusePod(m *measured, p *pod, refusal *admit.Refusal) {
	pause := refusalSeen
	if rules.KindOf(metav1.GetControllerOfNoCopy(p.object)) == rules.DaemonSet {
		pause = min(refusalSeen<<min(m.daemons, 10), daemonsPause)
		m.daemons++
	}

	p.turnedAway = true
	k.removeAfter(pause, m, p, "Pod was rejected: "+strings.TrimSpace(refusal.Message))
}

// removeAfter removes a pod after a pause, unless it has left by then.
func (k *kubelets) removeAfter(pause time.Duration, m *measured, p *pod, message string) {
	k.scheduleCall(m, k.clock.now+pause, func() {
		if !p.gone {
			k.removePod(m, p, message)
		}
	})
}

// removePod removes a pod that failed on its node and reports the removal as an eviction.
func (k *kubelets) removePod(m *measured, p *pod, message string) {
	m.again = p.again
	k.report.said.Evictions = append(k.report.said.Evictions, Eviction{
		Namespace: p.Namespace(), Name: p.Name(), Node: p.NodeName, After: Seconds(k.clock.now), Message: message,
	})
	k.reactions.controllers.departPod(p, ByPressure, message)
}
