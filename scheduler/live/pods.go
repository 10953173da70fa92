package live

import (
	"maps"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/cluster"
	"github.com/berth-k8s/berth/queue"
	"github.com/berth-k8s/berth/rules"
)

// watchedPod takes in a pod that the API shows.
func (s *Scheduler) watchedPod(pod *v1.Pod) {
	if s.objects != nil {
		if rules.IsTerminal(pod) {
			s.objects.PodGone(pod.UID)
		} else {
			s.objects.Pod(pod)
		}
	}
	switch {
	case pod.Spec.NodeName != "" || rules.IsTerminal(pod):
		s.placedPod(pod)
	case pod.DeletionTimestamp != nil:
		s.abandon(pod.UID, errGone)
		s.dismiss(pod.UID)
	case s.profiles[pod.Spec.SchedulerName] == nil:
		s.unserved[pod.UID] = waitingName{nameOf(pod), pod.Spec.SchedulerName}
	case s.cluster.Pod(pod.UID) != nil: // it is on its way to its node
		if item := s.queue.Get(pod.UID); item != nil {
			item.Pod = s.kept(pod, item.Class)
		}
	default:
		delete(s.unserved, pod.UID)
		s.waitingPod(pod)
	}
}

// waitingPod takes in a pod that is to be scheduled.
func (s *Scheduler) waitingPod(pod *v1.Pod) {
	now, p := time.Now(), s.cluster.Pending(pod)
	pod = s.kept(pod, p.Class)
	item := s.queue.Get(pod.UID)
	if item == nil {
		if p.Nominated != "" {
			s.cluster.Nominate(p, p.Nominated)
		}
		s.queue.Add(pod, p.Class, now)
		return
	}
	taken := s.followNomination(item.Pod, pod, p)
	s.cluster.Renew(p)
	s.queue.Update(item, pod, p.Class, changes(item.Pod, pod, p.Class != item.Class), now)
	if taken {
		s.queue.Wake(pod.UID, queue.Changed, now)
	}
}

// followNomination takes a nomination over that somebody else has made or taken away. What this scheduler thinks different of
// already stays: its own word is on its way. A pod that is nominated now is to be tried: it goes there, or gives up the room that is
// kept for it. It may be a word of this scheduler's own, shown late, that could not be taken back.
func (s *Scheduler) followNomination(old, pod *v1.Pod, p *cluster.Pod) (nominated bool) {
	was, is := old.Status.NominatedNodeName, pod.Status.NominatedNodeName
	current := ""
	if nominated := s.cluster.Nominated(pod.UID); nominated != nil {
		current = nominated.Nominated
	}
	if was == is || current != was {
		return false
	}
	s.unnominate(pod.UID)
	if is != "" {
		s.cluster.Nominate(p, is)
	}
	return is != ""
}

// changes says what of a waiting pod has changed that may matter. Nothing: what the scheduler itself writes.
func changes(old, pod *v1.Pod, decisive bool) (actions queue.Action) {
	if !maps.Equal(old.Labels, pod.Labels) {
		actions |= queue.UpdatePodLabel
	}
	if len(old.Spec.Tolerations) != len(pod.Spec.Tolerations) {
		actions |= queue.UpdatePodToleration
	}
	if len(old.Spec.SchedulingGates) > 0 && len(pod.Spec.SchedulingGates) == 0 {
		actions |= queue.UpdatePodSchedulingGatesEliminated
	}
	if decisive && lessRequested(old, pod) {
		actions |= queue.UpdatePodScaleDown
	}
	if !reflect.DeepEqual(old.Status.ResourceClaimStatuses, pod.Status.ResourceClaimStatuses) ||
		!reflect.DeepEqual(old.Status.ExtendedResourceClaimStatus, pod.Status.ExtendedResourceClaimStatus) {
		actions |= queue.UpdatePodGeneratedResourceClaim
	}
	if actions == 0 && (decisive || !maps.Equal(old.Annotations, pod.Annotations) || old.Generation != pod.Generation ||
		len(old.Spec.SchedulingGates) != len(pod.Spec.SchedulingGates)) {
		actions = queue.Update
	}
	return actions
}

func lessRequested(old, pod *v1.Pod) bool {
	requests := rules.Requests(pod)
	for name, amount := range rules.Requests(old) {
		if now := requests[name]; now.Cmp(amount) < 0 {
			return true
		}
	}
	return false
}

// dismiss takes a pod out of the queue, and out of the books as one that waits.
func (s *Scheduler) dismiss(uid types.UID) {
	s.queue.Remove(uid)
	delete(s.decided.waiting, uid)
	s.unnominate(uid)
	delete(s.unserved, uid)
}

// unnominate takes a pod's nomination away, which may let others go to that node.
func (s *Scheduler) unnominate(uid types.UID) {
	if p := s.cluster.Nominated(uid); p != nil {
		s.cluster.Unnominate(uid)
		s.left(p, s.cluster.Node(p.Nominated), nil)
	}
}

// placedPod takes in a pod that has a node, or has ended.
func (s *Scheduler) placedPod(pod *v1.Pod) {
	s.compare(pod)
	if b := s.placements[pod.UID]; b != nil {
		if pod.Spec.NodeName == b.Node && !rules.IsTerminal(pod) {
			s.confirm(b)
		} else { // somebody else has bound it, or it has ended
			s.abandon(pod.UID, errBoundElsewhere)
		}
	}
	if nominated := s.cluster.Nominated(pod.UID); nominated != nil && nominated.Nominated != pod.Spec.NodeName {
		s.unnominate(pod.UID)
	}
	s.dismiss(pod.UID)
	before := s.cluster.Pod(pod.UID)
	var was cluster.Pod // SetPod may change it
	var at *cluster.Node
	if before != nil {
		was, at = *before, before.Node
	}
	after := s.setPod(pod)
	switch {
	case before == nil && after != nil:
		s.came(after, pod)
	case before != nil && after == nil:
		s.left(&was, at, pod)
	case before != nil && before != after:
		s.changedPlaced(&was, at, after, pod)
	}
}

// setPod takes a pod in, and holds a victim for one that leaves until the watch says so itself.
func (s *Scheduler) setPod(pod *v1.Pod) *cluster.Pod {
	p := s.cluster.SetPod(pod)
	if !s.victims[pod.UID] {
		return p
	}
	if p == nil || pod.DeletionTimestamp != nil {
		delete(s.victims, pod.UID)
		return p
	}
	if p.Node != nil {
		p = s.replaceAs(p, true)
	}
	return p
}

// gonePod forgets a pod that was deleted.
func (s *Scheduler) gonePod(last *v1.Pod, uid types.UID) {
	if s.objects != nil {
		s.objects.PodGone(uid)
	}
	s.abandon(uid, errGone)
	s.dismiss(uid)
	delete(s.victims, uid)
	if p := s.cluster.Pod(uid); p != nil {
		n := p.Node
		s.cluster.RemovePod(uid)
		s.left(p, n, last)
	}
}

// watchedNode takes in a node that the API shows.
func (s *Scheduler) watchedNode(node *v1.Node, old *v1.Node) {
	if s.objects != nil {
		s.objects.Node(node)
	}
	var before *cluster.Node
	if n := s.cluster.Node(node.Name); n != nil {
		was := *n
		before = &was
	}
	n := s.cluster.SetNode(node)
	s.nodeChanged(before, n, old, node)
}

// goneNode forgets a node. Pods that were on their way to it are decided anew.
func (s *Scheduler) goneNode(name string, last *v1.Node) {
	if s.objects != nil {
		s.objects.NodeGone(name)
	}
	n := s.cluster.Node(name)
	if n == nil {
		return
	}
	before := n.Copy(nil)
	for _, b := range s.placements {
		if b.Node == name {
			s.withdraw(b, errNodeGone)
		}
	}
	s.cluster.RemoveNode(name)
	s.conditionNews = true
	s.happened(queue.Event{Resource: queue.Node, Action: queue.Delete, Label: "NodeDelete", NodeBefore: before, Old: orNil(last)})
}
