package execute

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
)

// leftBehind are surges that a run which was killed has not put back: those of pods on the nodes to
// drain, and those that are older than a surge lasts.
func (d *Drainer) leftBehind() (list []*surge) {
	pods := map[types.UID]*v1.Pod{}
	for _, object := range d.cluster.objects {
		if p, ok := object.(*v1.Pod); ok {
			pods[p.UID] = p
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.cluster.objects)) {
		object := d.cluster.objects[key]
		scaled, scales := scaledOf(object)
		note, ok := readNote(object.GetLabels()[rebalance.SurgeLabel])
		if !scales || !ok {
			continue
		}
		s := &surge{scaled: scaled, note: note,
			departure: &departure{Departure: rebalance.Departure{Namespace: scaled.Namespace, UID: note.pod}}}
		if p := pods[note.pod]; p != nil {
			if !slices.Contains(d.options.Nodes, p.Spec.NodeName) && d.wall().Unix()-note.begun < int64(surgesFor.Seconds()) {
				continue
			}
			s.Name, s.From, s.owner, s.marked = p.Name, p.Spec.NodeName, workloadOf(p), Marked(p)
		}
		d.giveUp(s, fmt.Sprintf("an earlier run has left %s with one more replica", scaled))
		list = append(list, s)
	}
	for _, key := range slices.Sorted(maps.Keys(d.cluster.objects)) { // scaled back, and another pod was removed
		p, ok := d.cluster.objects[key].(*v1.Pod)
		if !ok || !Marked(p) || p.DeletionTimestamp != nil || !slices.Contains(d.options.Nodes, p.Spec.NodeName) ||
			slices.ContainsFunc(list, func(s *surge) bool { return s.UID == p.UID }) {
			continue
		}
		s := &surge{departure: &departure{Departure: rebalance.Departure{Namespace: p.Namespace, Name: p.Name,
			UID: p.UID}, owner: workloadOf(p)}, marked: true, back: true}
		s.why = "an earlier run has left it with the lowest deletion cost"
		s.enter(clearing, d.now)
		list = append(list, s)
	}
	return list
}

// Annotations of a pod that a surge has marked.
const (
	costAnnotation = "controller.kubernetes.io/pod-deletion-cost"
	costBefore     = "berth.dev/deletion-cost-before"
)

// Marked reports whether a surge has given the pod the lowest deletion cost.
func Marked(p *v1.Pod) bool {
	_, marked := p.Annotations[costBefore]
	return marked
}

// MarkOf returns the annotations that mark a pod, or no longer do; nil for those to be taken away.
func MarkOf(p *v1.Pod, clearing bool) map[string]any {
	if !clearing {
		return map[string]any{costAnnotation: strconv.Itoa(math.MinInt32), costBefore: p.Annotations[costAnnotation]}
	}
	if before := p.Annotations[costBefore]; before != "" {
		return map[string]any{costAnnotation: before, costBefore: nil}
	}
	return map[string]any{costAnnotation: nil, costBefore: nil}
}
