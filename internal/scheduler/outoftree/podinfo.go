// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// podInfo is a pod with derived data for plugins, computed once on demand: most plugins read
// neither terms nor resources of most pods. It never changes, and any goroutine may read it; an
// updated pod gets a new podInfo.
type podInfo struct {
	pod       *v1.Pod
	terms     func() *terms
	resources func() fwk.PodResource
}

// terms holds a pod's affinity terms, parsed. Like upstream, a list with an invalid term is empty.
type terms struct {
	affinity, antiAffinity                   []fwk.AffinityTerm
	preferredAffinity, preferredAntiAffinity []fwk.WeightedAffinityTerm
}

var _ fwk.PodInfo = &podInfo{}

// newPodInfo returns the podInfo of a pod. The pod must not be changed afterwards.
func newPodInfo(pod *v1.Pod) *podInfo {
	return &podInfo{
		pod:       pod,
		terms:     sync.OnceValue(func() *terms { return termsOf(pod) }),
		resources: sync.OnceValue(func() fwk.PodResource { return resourcesOf(pod) }),
	}
}

// termsOf parses the affinity terms. Like upstream, it drops errors: the API server has validated
// the terms.
func termsOf(pod *v1.Pod) *terms {
	t, a := &terms{}, pod.Spec.Affinity
	if a == nil {
		return t
	}
	t.affinity, _ = fwk.GetAffinityTerms(pod, fwk.GetPodAffinityTerms(a))
	t.antiAffinity, _ = fwk.GetAffinityTerms(pod, fwk.GetPodAntiAffinityTerms(a))
	if a.PodAffinity != nil {
		t.preferredAffinity, _ = fwk.GetWeightedAffinityTerms(pod, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a.PodAntiAffinity != nil {
		t.preferredAntiAffinity, _ = fwk.GetWeightedAffinityTerms(pod, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return t
}

// resourcesOf computes the pod's requests: exactly, and with scoring's defaults for pods without
// CPU or memory requests.
func resourcesOf(pod *v1.Pod) fwk.PodResource {
	score := rules.ScoreRequestsPlaced(pod)
	cpu, memory := score[v1.ResourceCPU], score[v1.ResourceMemory]
	requests := &resources{cluster.NewResources(rules.RequestsPlaced(pod))}
	return fwk.PodResource{Resource: requests, Non0CPU: cpu.MilliValue(), Non0Mem: memory.Value()}
}

// GetPod and its siblings implement fwk.PodInfo.
func (p *podInfo) GetPod() *v1.Pod                                  { return p.pod }
func (p *podInfo) GetRequiredAffinityTerms() []fwk.AffinityTerm     { return p.terms().affinity }
func (p *podInfo) GetRequiredAntiAffinityTerms() []fwk.AffinityTerm { return p.terms().antiAffinity }
func (p *podInfo) CalculateResource() fwk.PodResource               { return p.resources() }
func (p *podInfo) GetPreferredAffinityTerms() []fwk.WeightedAffinityTerm {
	return p.terms().preferredAffinity
}
func (p *podInfo) GetPreferredAntiAffinityTerms() []fwk.WeightedAffinityTerm {
	return p.terms().preferredAntiAffinity
}

// hasAffinity reports whether the pod has affinity or anti-affinity terms of any kind.
func hasAffinity(pod *v1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil)
}

// hasRequiredAntiAffinity reports whether the pod may keep other pods away from its topology
// domain.
func hasRequiredAntiAffinity(pod *v1.Pod) bool {
	a := pod.Spec.Affinity
	return a != nil && a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0
}

// queued is a pending pod as seen by a plugin at QueueSort. Members of pod groups are also queued
// one by one.
type queued struct{ item *queue.Item }

var _ fwk.QueuedEntityInfo = queued{}

// GetPodInfo is, like upstream's, not part of the interface: plugins comparing more than priorities
// and times find it by a type assertion. Each call creates a new PodInfo, which is cheap because
// its data is computed on demand.
func (q queued) GetPodInfo() fwk.PodInfo { return newPodInfo(q.item.Pod) }

// Type and its siblings implement fwk.QueuedEntityInfo.
func (q queued) Type() fwk.EntityKeyType             { return fwk.PodKeyType }
func (q queued) GetPriority() int32                  { return corev1.PodPriority(q.item.Pod) }
func (q queued) GetTimestamp() time.Time             { return q.item.Returned }
func (q queued) GetAttempts() int                    { return q.item.Attempts }
func (q queued) GetBackoffExpiration() time.Time     { return q.item.Ready() }
func (q queued) GetUnschedulableCount() int          { return q.item.Rejected }
func (q queued) GetConsecutiveErrorsCount() int      { return q.item.Failed }
func (q queued) GetGatingPlugin() string             { return q.item.Gate }
func (q queued) GetPendingPlugins() sets.Set[string] { return sets.New(q.item.Pending...) }

// GetGatingPluginEvents is empty: gated pods are retried on the events registered by the plugin.
func (q queued) GetGatingPluginEvents() []fwk.ClusterEvent { return nil }

// GetUnschedulablePlugins returns the plugins that rejected the pod in its last attempt.
func (q queued) GetUnschedulablePlugins() sets.Set[string] { return sets.New(q.item.Rejectors...) }

// GetInitialAttemptTimestamp returns a copy of the time when the pod first passed all gates; nil
// before that.
func (q queued) GetInitialAttemptTimestamp() *time.Time {
	if q.item.Admitted.IsZero() {
		return nil
	}
	return new(q.item.Admitted)
}
