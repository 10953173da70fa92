package kubelet

import (
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	stats "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-k8s/berth/internal/node/pressure"
)

// measureEvery is the kubelet's interval between two looks at the signals of a node under pressure.
const measureEvery = 10 * time.Second

// usesOf reads what the pod's processes use. An annotation that cannot be read is complained of,
// and says nothing.
func (f *Fleet) usesOf(p *pod) v1.ResourceList {
	text, ok := p.object.Annotations[AnnotationUses]
	if !ok {
		return nil
	}
	uses := v1.ResourceList{}
	for part := range strings.SplitSeq(text, ",") {
		name, amount, _ := strings.Cut(part, "=")
		quantity, err := resource.ParseQuantity(amount)
		known := name == string(v1.ResourceMemory) || name == string(v1.ResourceEphemeralStorage)
		if err != nil || !known || quantity.Sign() < 0 {
			f.complain(p, "InvalidAnnotation", "annotation "+AnnotationUses+": "+part+": must be memory=QUANTITY or ephemeral-storage=QUANTITY")
			return nil
		}
		uses[v1.ResourceName(name)] = quantity
	}
	return uses
}

// measure looks at what the pods of a node use: the node reports the pressure that follows, and
// evicts one pod at a time, in the kubelet's order. Nodes whose pods say nothing of it cost
// nothing.
func (f *Fleet) measure(n *node, now time.Time) {
	if n.object == nil || n.silent {
		return
	}
	if n.core == nil && !f.beginToMeasure(n) {
		return
	}
	candidates, leaving := n.candidates()
	verdict := n.core.Step(n.levels(candidates), now)
	if !slices.Equal(n.pressed, verdict.Conditions) {
		n.pressed = verdict.Conditions
		f.checkNode(n, now)
	}
	if verdict.Starved != nil && !leaving {
		if victim := pressure.Victim(verdict.Starved, pressure.Rank(verdict.Starved, candidates)); victim != nil {
			f.evict(n.pods[victim.Pod.UID], victim, now)
		}
	}
	if len(verdict.Conditions) > 0 {
		f.timers.set(&n.measure, now.Add(measureEvery))
	} else {
		f.timers.clear(&n.measure)
	}
}

// beginToMeasure a node with the first pod that says what it uses.
func (f *Fleet) beginToMeasure(n *node) bool {
	for _, p := range n.pods {
		if p.uses != nil {
			core, err := pressure.NewCore(f.shape.Eviction)
			n.core = core
			return err == nil // the command has checked the thresholds
		}
	}
	return false
}

// candidates are the pods that run, each with what it uses: nothing, if it does not say. leaving:
// one of them has been evicted, and the API does not say so yet.
func (n *node) candidates() (candidates []pressure.Candidate, leaving bool) {
	for _, p := range inOrder(n.pods) {
		if !p.admitted || terminal(p.object.Status.Phase) {
			continue
		}
		leaving = leaving || p.evicted
		candidates = append(candidates, pressure.Candidate{Pod: p.object, Usage: p.usage()})
	}
	return candidates, leaving
}

// usage is that of the whole pod in its first container.
func (p *pod) usage() *stats.PodStats {
	bytes := func(name v1.ResourceName) *uint64 {
		quantity := p.uses[name]
		n := uint64(quantity.Value())
		return &n
	}
	memory, disk := bytes(v1.ResourceMemory), bytes(v1.ResourceEphemeralStorage)
	return &stats.PodStats{
		Memory:           &stats.MemoryStats{WorkingSetBytes: memory},
		EphemeralStorage: &stats.FsStats{UsedBytes: disk},
		Containers: []stats.ContainerStats{{
			Name: p.object.Spec.Containers[0].Name, Memory: &stats.MemoryStats{WorkingSetBytes: memory},
			Rootfs: &stats.FsStats{UsedBytes: disk}, Logs: &stats.FsStats{UsedBytes: new(uint64)},
		}},
	}
}

// levels are what the pods leave of the node's capacity. Images are on the one disk that it has.
func (n *node) levels(candidates []pressure.Candidate) pressure.Levels {
	left := func(name v1.ResourceName, used func(*stats.PodStats) *uint64) pressure.Level {
		quantity := n.object.Status.Capacity[name]
		level := pressure.Level{Available: quantity.Value(), Capacity: quantity.Value()}
		for _, c := range candidates {
			level.Available = max(level.Available-int64(*used(c.Usage)), 0)
		}
		return level
	}
	memory := left(v1.ResourceMemory, func(s *stats.PodStats) *uint64 { return s.Memory.WorkingSetBytes })
	disk := left(v1.ResourceEphemeralStorage, func(s *stats.PodStats) *uint64 { return s.EphemeralStorage.UsedBytes })
	return pressure.Levels{Signals: map[pressure.Signal]pressure.Level{
		pressure.Memory: memory, pressure.AllocatableMemory: memory, pressure.NodeFs: disk, pressure.ImageFs: disk,
	}}
}

// evict ends the pod at once, with the kubelet's status and event.
func (f *Fleet) evict(p *pod, why *pressure.Eviction, now time.Time) {
	if p.busy || p.object.DeletionTimestamp != nil {
		return // looked at again when that is done
	}
	status := endedStatus(p.object, true, now)
	status.Phase, status.Reason, status.Message = v1.PodFailed, pressure.Reason, why.Message
	status.Conditions = append(status.Conditions, v1.PodCondition{
		Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: why.Message,
		ObservedGeneration: p.object.Generation, LastTransitionTime: stamp(now),
	})
	p.evicted = true
	f.report(p, v1.EventTypeWarning, pressure.Reason, why.Message)
	f.write(p, status)
}
