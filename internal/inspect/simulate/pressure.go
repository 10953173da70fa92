package simulate

import (
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

// kubelets stand in for those of nodes that may come under pressure: nodes that a Pressure
// names, and those with a pod that says what it uses. All others cost nothing.
//
//	what pods use + what others use -> available -> thresholds -> conditions -> taints (node health)
//	                                                           -> one eviction at a time
type kubelets struct {
	clock    *clock
	report   *report
	nodes    *nodes
	pods     *pods
	begin    func() // has node health act, which makes the taints
	depart   func(p *pod, cause Cause, detail string)
	measured map[string]*measured
	// uses is what pods use by an operation Use; all others use what their annotation says,
	// or request.
	uses map[Name]v1.ResourceList
}

// measured is a node whose kubelet looks at what it has left.
type measured struct {
	// core has the kubelet's thresholds, and which of them were met since when.
	core *pressure.Core
	// others is how many bytes something uses that is no pod. It is negative if the pods use
	// less than is assumed of them.
	others map[v1.ResourceName]int64
	// conditions are the pressure conditions that are True, as last reported.
	conditions []v1.NodeConditionType
	// While it waits, next is when it looks again, by the last of the appointments made. made
	// numbers these: a call whose number is not the last one has been superseded by an
	// earlier appointment.
	waits bool
	next  time.Duration
	made  int
	// scheduled counts its calls on the agenda, superseded ones included. again is set if the
	// last pod that was evicted had come in the place of an evicted one: the node then evicts
	// in a circle.
	scheduled int
	again     bool
	// helpless: it has been reported that nobody may be evicted.
	helpless bool
	// daemons counts the pods of DaemonSets that were refused.
	daemons int
}

// The kubelet looks every ten seconds: its monitoring interval.
const measureEvery = 10 * time.Second

// A controller replaces a pod that a kubelet refused after refusalSeen; a DaemonSet's after twice
// as long each time, and at most daemonsPause.
const (
	refusalSeen  = time.Second
	daemonsPause = 15 * time.Minute
)

// unrequested is what a pod is taken to use that neither says so nor requests memory: what scoring
// takes it to request.
const unrequested = 200 << 20

// pressNodes makes so much of nodes' memory or disk available, and sets their thresholds.
// Either may be left out. A note says how many pods there have an assumed usage, because
// which of them is evicted depends on it.
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
		return nil, fmt.Errorf("pressure: say how much is left: memory or ephemeralStorage, or the kubelet's thresholds")
	}

	names, err := p.resolveNames(k.nodes)
	if err != nil {
		return nil, err
	}

	// The conditions that kubelets report lead to taints through node health, which has to be
	// at work.
	k.begin()
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
	return &Done{Notes: []string{fmt.Sprintf("%d of the pods there do not say what they use (annotation %s): taken as "+
		"what they request, or 200Mi without",
		silent, pressure.AnnotationUses)}}, nil
}

// leaveAmounts has something that is no pod take as much of a node as leaves these amounts.
// It takes the difference to what would be left by the pods alone; later changes of the pods
// change what is left.
func (k *kubelets) leaveAmounts(name string, left v1.ResourceList) error {
	candidates, _ := k.candidatesOn(name)
	capacity := k.nodes.named[name].capacity()
	for resourceName, quantity := range left {
		all, known := capacity[resourceName]
		if !known {
			return fmt.Errorf("node %s says nothing of its %s", name, resourceName)
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

// capacity is what the node has in all, as its kubelet measures it.
func (m *machine) capacity() v1.ResourceList {
	if m.object.Status.Capacity != nil {
		return m.object.Status.Capacity
	}
	return m.object.Status.Allocatable // as in manifests written by hand
}

// useResources has a pod use so much from now on. The pod may be pending: it uses that where
// it goes.
func (k *kubelets) useResources(u *Use) (*Done, error) {
	uses, err := parseQuantities(u.Memory, u.EphemeralStorage)
	if err != nil {
		return nil, err
	}
	if len(uses) == 0 {
		return nil, fmt.Errorf("use: say how much: memory or ephemeralStorage")
	}
	name := Name{u.Namespace, strings.TrimPrefix(u.Pod, "pod/")}
	if name.Namespace == "" {
		name.Namespace = v1.NamespaceDefault
	}
	p := k.pods.named[name]
	if p == nil {
		return nil, fmt.Errorf("there is no pod %s/%s", name.Namespace, name.Name)
	}
	k.begin()
	for resourceName, quantity := range k.usesOf(p.object) { // what is not named stays
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

// measureNode has a node's kubelet look at what is left, from now on, with the kubelet's
// default thresholds unless others are set. It makes no appointment.
func (k *kubelets) measureNode(node string) *measured {
	if k.measured[node] == nil {
		core, _ := pressure.NewCore(pressure.DefaultConfig()) // which has no faults
		k.measured[node] = &measured{core: core, others: map[v1.ResourceName]int64{}}
	}
	return k.measured[node]
}

// podJoined is called for a pod that has come to a node. The kubelet refuses it if the node
// is under pressure and the pod's QoS class or toleration does not let it in.
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

// podLeft is called for the node of a pod that has gone: what it used is free.
func (k *kubelets) podLeft(node string) { k.lookAt(node, k.clock.now+measureEvery) }

// lookAt has the kubelet of a measured node look at a time, or earlier if it would anyway.
// There is at most one valid appointment: calls cannot be taken off the agenda, so a
// superseded one does nothing when its time comes.
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

// scheduleCall schedules what a node's kubelet does, and counts it until it is done.
func (k *kubelets) scheduleCall(m *measured, at time.Duration, do func()) {
	m.scheduled++
	k.clock.callAt(at, func() {
		m.scheduled--
		do()
	})
}

// countRepeats counts the appointments of nodes that evict nothing but replacements of pods
// that were evicted before. A world with only these left is quiet: they go on for ever.
func (k *kubelets) countRepeats() (count int) {
	for _, m := range k.measured {
		if m.again {
			count += m.scheduled
		}
	}
	return count
}

// observeNode looks at a node: it reports the pressure that follows, and evicts one pod at a
// time, as the kubelet does: the next one only if that was not enough.
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
		if why == nil { // nothing changes before a pod or a step does
			k.reportHelpless(node, m, verdict.Starved)
			return
		}
		k.evictPod(m, k.pods.placed[why.Pod.UID], why)
	}
	m.helpless = false
	// Under pressure it looks again, to see whether that is over. Otherwise nothing changes
	// until a pod comes or goes, which calls lookAt.
	if len(verdict.Conditions) > 0 {
		k.lookAt(node, k.clock.now+measureEvery)
	}
}

// reportHelpless reports once that nobody may be evicted.
func (k *kubelets) reportHelpless(node string, m *measured, starved *pressure.Starved) {
	if !m.helpless {
		m.helpless = true
		k.report.addEvent(Event{Kind: "Note", Node: node, Message: fmt.Sprintf("%s is short, and no pod may be evicted", starved.Resource)})
	}
}

// candidatesOn are a node's pods, each with what it uses. A pod that the kubelet refused runs
// no container, and is none. leaving is set if one of them is being evicted.
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

// usesOf is what a pod uses: by an operation, by its annotation, or as much as it requests.
func (k *kubelets) usesOf(object *v1.Pod) v1.ResourceList {
	if uses := k.uses[Name{object.Namespace, object.Name}]; uses != nil {
		return uses
	}
	if uses, err := pressure.Uses(object); err == nil && uses != nil {
		return uses
	}
	// An invalid annotation is taken as none.
	uses := pressure.Requests(object)
	if memory := uses[v1.ResourceMemory]; memory.IsZero() {
		uses[v1.ResourceMemory] = *resource.NewQuantity(unrequested, resource.BinarySI)
	}
	return uses
}

// countSilent counts the pods of a node of which nobody says what they use.
func (k *kubelets) countSilent(node string) (count int) {
	for _, p := range k.pods.podsOn(node) {
		_, says := p.object.Annotations[pressure.AnnotationUses]
		if !says && k.uses[Name{p.object.Namespace, p.object.Name}] == nil {
			count++
		}
	}
	return count
}

// reportConditions has the node report the conditions that have changed; node health makes
// the taints.
func (k *kubelets) reportConditions(node string, m *measured, conditions []v1.NodeConditionType) {
	if slices.Equal(m.conditions, conditions) {
		return
	}
	before := m.conditions
	m.conditions = conditions
	k.begin()

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

// refusePod fails a pod that came to a node under pressure although it may not: by a toleration
// that the kubelet does not honour, or by name. Controllers replace it when they have seen that;
// DaemonSets wait longer from time to time.
func (k *kubelets) refusePod(m *measured, p *pod, refusal *admit.Refusal) {
	pause := refusalSeen
	if rules.KindOf(metav1.GetControllerOfNoCopy(p.object)) == rules.DaemonSet {
		pause = min(refusalSeen<<min(m.daemons, 10), daemonsPause)
		m.daemons++
	}

	p.turnedAway = true
	k.scheduleCall(m, k.clock.now+pause, func() {
		if !p.gone {
			k.removePod(m, p, "Pod was rejected: "+strings.TrimSpace(refusal.Message))
		}
	})
}

// evictPod ends a pod, within the grace period that the kubelet gives it. It keeps its usage
// until then, and no other pod is evicted meanwhile.
func (k *kubelets) evictPod(m *measured, p *pod, why *pressure.Eviction) {
	p.starved = true
	k.scheduleCall(m, k.clock.now+time.Duration(why.Grace)*time.Second, func() {
		if !p.gone {
			k.removePod(m, p, strings.TrimSpace(why.Message))
		}
	})
}

// removePod removes a pod that failed on its node, and reports that as an eviction.
func (k *kubelets) removePod(m *measured, p *pod, message string) {
	m.again = p.again
	k.report.said.Evictions = append(k.report.said.Evictions, Eviction{
		Namespace: p.Namespace(), Name: p.Name, Node: p.NodeName, After: Seconds(k.clock.now), Message: message,
	})
	k.depart(p, ByPressure, message)
}
