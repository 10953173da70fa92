// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	corev1 "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-k8s/berth/internal/engine/queue"
)

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
func (q queued) GetTimestamp() time.Time             { return q.item.Returned() }
func (q queued) GetAttempts() int                    { return q.item.Attempts }
func (q queued) GetBackoffExpiration() time.Time     { return q.item.Ready() }
func (q queued) GetUnschedulableCount() int          { return q.item.Rejections() }
func (q queued) GetConsecutiveErrorsCount() int      { return q.item.Errors() }
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
	first := q.item.Admitted
	return &first
}
