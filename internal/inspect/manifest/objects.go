package manifest

import (
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Objects returns all objects of the set, kind by kind in the order of Kinds. The slice is
// the caller's, the objects are not.
func (s *Set) Objects() (all []metav1.Object) {
	for _, k := range ordered {
		all = append(all, k.list(s)...)
	}
	return all
}

// OfKind lists the objects of a kind.
func (s *Set) OfKind(kind string) []metav1.Object { return kinds[kind].list(s) }

// Controllers lists the objects of the controllers that make pods.
func (s *Set) Controllers() (all []metav1.Object) {
	for _, name := range []string{"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job", "ReplicationController"} {
		all = append(all, s.OfKind(name)...)
	}
	return all
}

// Newest returns the latest time in nodes and pods, which is about when the set was written.
// It is zero if they have none. It trusts all clocks; package simulate knows which of them
// are ahead.
func (s *Set) Newest() (newest time.Time) {
	later := func(t metav1.Time) {
		if t.After(newest) {
			newest = t.Time
		}
	}

	for _, n := range s.Nodes {
		// Creation times are written by the API server, the other times by
		// components.
		later(n.CreationTimestamp)
		for i := range n.Status.Conditions {
			later(n.Status.Conditions[i].LastHeartbeatTime)
			later(n.Status.Conditions[i].LastTransitionTime)
		}
	}

	for _, p := range s.Pods {
		later(p.CreationTimestamp)
		later(conditionTime(p))
	}
	return newest
}

// conditionTime is when a condition of the pod last changed; zero if it has none.
func conditionTime(p *v1.Pod) (newest metav1.Time) {
	for i := range p.Status.Conditions {
		if t := p.Status.Conditions[i].LastTransitionTime; t.After(newest.Time) {
			newest = t
		}
	}
	return newest
}
