package live

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/controller/eventlog"
	"github.com/berth-k8s/berth/queue"
)

// sayAgain is after what time the same is said of a pod again. A pod that waits with many others is tried whenever one of them
// could go; to say each time that it could not would bury what is new.
const sayAgain = 30 * time.Second

// report writes why the pod is not placed: as an event and, if it is news, as its condition.
func (s *Scheduler) report(item *queue.Item, reason, message string, nominate *string) {
	pod, now := item.Pod, time.Now()
	if item.Message != message || now.Sub(item.MessageAt) >= sayAgain {
		item.Message, item.MessageAt = message, now
		s.events.add(pod.Spec.SchedulerName, reference(pod), v1.EventTypeWarning, "FailedScheduling", truncated(message))
	}
	condition := &v1.PodCondition{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: reason, Message: message, ObservedGeneration: pod.Generation,
	}
	isNews := news(pod, condition)
	if !isNews && (nominate == nil || *nominate == pod.Status.NominatedNodeName) {
		return
	}
	s.helpers.do(func(ctx context.Context) {
		if err := s.writeStatus(ctx, pod, condition, nominate); err != nil {
			klog.FromContext(ctx).V(2).Info("Status not written", "pod", klog.KObj(pod), "err", err)
		}
	})
}

// truncated cuts a message to what an event may say.
func truncated(message string) string {
	const longest, rest = 1024, " ..."
	if len(message) <= longest {
		return message
	}
	return message[:longest-len(rest)] + rest
}

func news(pod *v1.Pod, c *v1.PodCondition) bool {
	c.LastTransitionTime = metav1.Now()
	for i := range pod.Status.Conditions {
		if old := &pod.Status.Conditions[i]; old.Type == c.Type {
			if old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
			return old.Status != c.Status || old.Reason != c.Reason || old.Message != c.Message
		}
	}
	return true
}

// writeStatus patches the state of the pod that was decided: a condition, its nominated node, or both. If the pod has changed, the
// newest state is patched as long as it still waits: the patch must never undo what a binding wrote.
func (s *Scheduler) writeStatus(ctx context.Context, pod *v1.Pod, c *v1.PodCondition, nominate *string) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pods := s.client.CoreV1().Pods(pod.Namespace)
	status := map[string]any{}
	if c != nil {
		status["conditions"] = []v1.PodCondition{*c}
	}
	if nominate != nil {
		status["nominatedNodeName"] = *nominate
	}
	version := pod.ResourceVersion
	for {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "resourceVersion": version}, "status": status})
		if err != nil {
			return err
		}
		_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if !apierrors.IsConflict(err) {
			return err
		}
		newest, err := pods.Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil || newest.UID != pod.UID || newest.Spec.NodeName != "" || newest.DeletionTimestamp != nil {
			return err
		}
		version = newest.ResourceVersion
	}
}

// drain is how long a scheduler that stops goes on writing events.
const drain = 2 * time.Second

// eventLogs writes events, each in the name of the profile that it is of.
type eventLogs struct {
	client kubernetes.Interface
	busy   func() bool

	mu      sync.Mutex
	logs    map[string]*eventlog.Log
	begin   func(*eventlog.Log) // set while they are written
	running sync.WaitGroup
}

// open makes the log of a profile.
func (e *eventLogs) open(profile string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.logs[profile] == nil {
		log := eventlog.New(e.client, profile)
		log.Busy, log.Drain = e.busy, drain
		e.logs[profile] = log
		if e.begin != nil {
			e.begin(log)
		}
	}
}

func (e *eventLogs) add(profile string, about v1.ObjectReference, kind, reason, message string) {
	e.mu.Lock()
	log := e.logs[profile]
	e.mu.Unlock()
	if log != nil {
		log.Add(about, kind, reason, message)
	}
}

// run writes events until the context ends.
func (e *eventLogs) run(ctx context.Context) {
	e.mu.Lock()
	e.begin = func(log *eventlog.Log) { e.running.Go(func() { log.Run(ctx) }) }
	for _, log := range e.logs {
		e.begin(log)
	}
	e.mu.Unlock()
	<-ctx.Done()
	e.mu.Lock()
	e.begin = nil
	e.mu.Unlock()
	e.running.Wait()
}
