package agent

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
)

// statuses writes the pods' statuses to the API: the newest of each, until it is there. While the
// API server cannot be reached they wait; what is then written is the state at that time.
type statuses struct {
	client kubernetes.Interface
	target func(*worker) *v1.Pod
	queue  workqueue.TypedRateLimitingInterface[*worker]

	mu sync.Mutex
	// want is what has not been written yet, by worker; a worker has an entry only until then.
	want map[*worker]*wish
}

// wish is what is to be written about a pod.
type wish struct {
	status v1.PodStatus
	set    bool
	// remove: the pod is to be deleted, after its status was written.
	remove bool
}

// statusWriters is how many statuses are written concurrently, so that a write that hangs delays
// few.
const statusWriters = 8

func newStatuses(client kubernetes.Interface, target func(*worker) *v1.Pod) *statuses {
	return &statuses{
		client: client, target: target, want: map[*worker]*wish{},
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[*worker](100*time.Millisecond, 5*time.Second)),
	}
}

func (s *statuses) change(w *worker, change func(*wish)) {
	s.mu.Lock()
	if s.want[w] == nil {
		s.want[w] = &wish{}
	}
	change(s.want[w])
	s.mu.Unlock()
	s.queue.Add(w)
}

func (s *statuses) set(w *worker, status v1.PodStatus) {
	s.change(w, func(x *wish) { x.status, x.set = status, true })
}

// renew writes the status of a pod to an object that is new: the one reported last, if no newer one
// waits to be written.
func (s *statuses) renew(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.mu.Lock()
	reported := w.reported
	w.mu.Unlock()
	if reported == nil {
		return
	}
	if s.want[w] == nil {
		s.want[w] = &wish{}
	}
	if x := s.want[w]; !x.set {
		x.status, x.set = *reported, true
	}
	s.queue.Add(w)
}

// remove deletes the pod from the API: everything of it has ended here.
func (s *statuses) remove(w *worker) { s.change(w, func(x *wish) { x.remove = true }) }

// again checks for something to write that could not be written before.
func (s *statuses) again(w *worker) { s.queue.Add(w) }

// drop cancels what was to be written: the pod is gone.
func (s *statuses) drop(w *worker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.want, w)
}

// idle reports whether everything is in the API.
func (s *statuses) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.want) == 0
}

func (s *statuses) run(ctx context.Context) {
	var writers sync.WaitGroup
	for range statusWriters {
		writers.Go(func() {
			for {
				w, stop := s.queue.Get()
				if stop {
					return
				}
				if err := s.write(ctx, w); err != nil && ctx.Err() == nil {
					klog.V(2).InfoS("Could not write a pod's status; it is tried again", "pod", klog.KObj(w.object()), "err", err)
					s.queue.AddRateLimited(w)
				} else {
					s.queue.Forget(w)
				}
				s.queue.Done(w)
			}
		})
	}
	<-ctx.Done()
	s.queue.ShutDown()
	writers.Wait()
}

// requestTimeout bounds one request: longer than the API server takes for any (--request-timeout, a
// minute). A webhook that is gone takes up to 30 s of that, and what is given up earlier is not
// carried out, however often it is tried: a pod that has ended would never be deleted.
const requestTimeout = 65 * time.Second

func (s *statuses) write(ctx context.Context, w *worker) error {
	s.mu.Lock()
	x := s.want[w]
	if x == nil {
		s.mu.Unlock()
		return nil
	}
	wanted := *x
	s.mu.Unlock()
	pod := s.target(w)
	if pod == nil {
		return nil // a mirror that does not exist yet; once it does, the status is written
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if wanted.set {
		if err := s.update(ctx, pod, wanted.status); err != nil {
			return err
		}
	}
	if wanted.remove {
		if err := deletePod(ctx, s.client, pod); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.want[w] == x && apiequality.Semantic.DeepEqual(x.status, wanted.status) && x.remove == wanted.remove {
		delete(s.want, w)
	} else if s.want[w] != nil {
		s.queue.Add(w)
	}
	return nil
}

// update writes the pod's status. If someone else wrote in between, it reads that and applies the
// status on top of it.
func (s *statuses) update(ctx context.Context, pod *v1.Pod, status v1.PodStatus) error {
	client := s.client.CoreV1().Pods(pod.Namespace)
	for {
		merged := mergeStatus(pod.Status, status)
		if apiequality.Semantic.DeepEqual(merged, pod.Status) {
			return nil
		}
		next := pod.DeepCopy()
		next.Status = merged
		_, err := client.UpdateStatus(ctx, next, metav1.UpdateOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return err
		}
		fresh, err := client.Get(ctx, pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && fresh.UID != pod.UID {
			return nil
		}
		if err != nil {
			return err
		}
		pod = fresh
	}
}

// mergeStatus is the node's status on top of the API's: conditions and fields of others are kept.
func mergeStatus(have, want v1.PodStatus) v1.PodStatus {
	out := *want.DeepCopy()
	out.NominatedNodeName = have.NominatedNodeName
	out.ResourceClaimStatuses = have.ResourceClaimStatuses
	out.ExtendedResourceClaimStatus = have.ExtendedResourceClaimStatus
	if have.StartTime != nil {
		out.StartTime = have.StartTime
	}
	if lifecycle.Terminal(have.Phase) && out.Phase != have.Phase {
		out.Phase, out.Reason, out.Message = have.Phase, have.Reason, have.Message
	}
	var conditions []v1.PodCondition
	for _, c := range have.Conditions {
		if !ours(c.Type, want.Conditions) {
			conditions = append(conditions, c)
		}
	}
	for _, c := range want.Conditions {
		if ours(c.Type, want.Conditions) {
			conditions = append(conditions, c)
		}
	}
	out.Conditions = conditions
	return out
}

// ours reports whether a condition is the node's own, or its reason for ending the pod.
func ours(t v1.PodConditionType, want []v1.PodCondition) bool {
	if t != v1.DisruptionTarget {
		return lifecycle.Owned(t)
	}
	for _, c := range want {
		if c.Type == t {
			return c.Reason == v1.PodReasonTerminationByKubelet
		}
	}
	return false
}

// deletePod deletes this pod, and no other one that has taken its name.
func deletePod(ctx context.Context, client kubernetes.Interface, pod *v1.Pod) error {
	now := int64(0)
	uid := types.UID(pod.UID)
	err := client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid},
	})
	if apierrors.IsConflict(err) { // with another pod of that name, or for a reason that passes
		now, readErr := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
		if readErr == nil && now.UID == uid {
			return err
		}
		err = readErr
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
