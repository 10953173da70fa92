package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	internalapi "k8s.io/cri-api/pkg/apis"

	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
	"github.com/berth-k8s/berth/internal/node/agent/metrics"
	"github.com/berth-k8s/berth/internal/node/agent/pressure"
)

// measure creates the components that measure the node and evict pods when it runs short.
func (a *Agent) measure(ctx context.Context) (err error) {
	a.collector = metrics.New(ctx, metrics.Options{
		Node: a.config.NodeName, Tree: a.cgroups.tree, Pods: a.ActivePods, Volumes: a.volumes.Usage,
		RootDir: a.config.RootDir, LogDir: a.config.PodLogDir,
		Runtime: struct {
			internalapi.RuntimeService
			internalapi.ImageManagerService
		}{a.runtime.Runtime, a.runtime.Images},
	})
	a.garbage = &pressure.Garbage{Runtime: a.runtime.Runtime, Images: a.runtime.Images}
	alarm := a.cgroups.tree.Alarm(ctx)
	a.watcher, err = pressure.New(a.config.Eviction, pressure.Node{
		Stats: a.collector, Pods: a.ActivePods, Evict: a.evict, Gone: a.evictedGone,
		Images: a.garbage.RemoveImages, Containers: a.garbage.RemoveContainers,
		Event: func(pod *v1.Pod, annotations map[string]string, kind, reason, message string) {
			about := a.nodeReference()
			if pod != nil {
				about = a.reference(pod, "")
			}
			a.tell(eventlog.Event{About: about, Annotations: annotations, Type: kind, Reason: reason, Message: message})
		},
		Changed: a.reportNode, Nudge: alarm.C(), Arm: alarm.Arm,
	})
	return err
}

func (a *Agent) runPressure(ctx context.Context) {
	var garbage sync.WaitGroup
	defer garbage.Wait()
	garbage.Go(func() { a.garbage.Run(ctx) })
	a.watcher.Run(ctx)
}

func (a *Agent) pressures() []v1.NodeConditionType { return a.watcher.Conditions() }

// pressureConditions are the node's pressure conditions, with the kubelet's texts. Changes since
// the last report are reported by events.
func (a *Agent) pressureConditions(node *v1.Node) (all []v1.NodeCondition) {
	pressed := a.pressures()
	for _, kind := range []v1.NodeConditionType{v1.NodeMemoryPressure, v1.NodeDiskPressure, v1.NodePIDPressure} {
		status := v1.ConditionFalse
		if slices.Contains(pressed, kind) {
			status = v1.ConditionTrue
		}
		texts := pressure.Condition(kind, status == v1.ConditionTrue)
		all = append(all, v1.NodeCondition{Type: kind, Status: status, Reason: texts.Reason, Message: texts.Message})
		i := slices.IndexFunc(node.Status.Conditions, func(c v1.NodeCondition) bool { return c.Type == kind })
		if i >= 0 && node.Status.Conditions[i].Status != status {
			a.nodeEvent(texts.Event)
		}
	}
	return all
}

// nodeEvent reports a change of the node's state.
func (a *Agent) nodeEvent(reason string) {
	a.eventAboutNode(v1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", a.config.NodeName, reason))
}

// eventAboutNode reports an event about the node itself.
func (a *Agent) eventAboutNode(kind, reason, message string) {
	a.tell(eventlog.Event{About: a.nodeReference(), Type: kind, Reason: reason, Message: message})
}

// nodeReference is the node as the kubelet's events refer to it: `kubectl describe node` finds them
// by the name in place of the UID.
func (a *Agent) nodeReference() v1.ObjectReference {
	return v1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: a.config.NodeName, UID: types.UID(a.config.NodeName)}
}

func (a *Agent) evict(_ context.Context, e pressure.Eviction) error {
	why := lifecycle.Ending{
		Phase: v1.PodFailed, Reason: pressure.Reason, Message: e.Message, By: time.Now().Add(time.Duration(e.Grace) * time.Second),
	}
	if e.Disruption {
		why.Condition = &v1.PodCondition{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonTerminationByKubelet, Message: e.Message,
		}
	}
	if a.Evict(e.Pod.UID, why) {
		a.kubelet.Evicted(e.Signal)
	}
	return nil
}

// evictedGone reports whether nothing of the pod runs, and its volumes are freed.
func (a *Agent) evictedGone(uid types.UID) bool {
	w := a.pods.get(uid)
	if w == nil {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.released
}
