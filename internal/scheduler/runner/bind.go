// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/kube/eventlog"
	"github.com/berth-k8s/berth/internal/kube/loglimit"
)

const (
	// readWithin bounds a read request, and the first attempt of a binding, because the connection
	// may be dead, and the next attempt may get a different connection.
	readWithin = 30 * time.Second
	// writtenWithin bounds any other write request. It exceeds the API server's own limit for any
	// request (--request-timeout, a minute). The API server waits up to 30 s for an unreachable
	// webhook; if the write were canceled earlier, every retry would fail alike. Two such requests
	// together get twice this limit.
	writtenWithin = 65 * time.Second
	// finishWithin bounds the time in which a stopping scheduler finishes work in progress,
	// including plugins. By default, the kubelet grants 30 s for the whole shutdown.
	finishWithin = 25 * time.Second
)

// firstPause and lastPause are the limits of the pause between attempts. bindTries is the maximum
// number of attempts for a binding without a final response (isAnswered).
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	bindTries  = 3
)

// binder binds pods. A worker calls bindPod for each pod.
//
// After an error, the resources of the pod on the node are released only when it is certain that
// the pod will not be bound to the node: because of the API server's response, because of the state
// of the pod, or because so much time has passed that a binding without a response can no longer be
// carried out.
type binder struct {
	client   kubernetes.Interface
	observer cycle.Observer
	see      func(cycle.Event)                        // passes an event to the core
	post     func(context.Context, *v1.Binding) error // posts one binding
	workers  *workers                                 // run bindPod; a stand-in replaces a worker whose plugin takes long
	plugins  *pluginCalls
	life     *lifetime
	unread   loglimit.Line // logs pods that cannot be read
}

// bindPod binds the pod to its node, and then calls the PostBind plugins. Their errors are ignored,
// because the pod is bound.
func (b *binder) bindPod(ctx context.Context, a cycle.Bind) cycle.Outcome {
	b.observer.Binding(1)
	err := b.sendBinding(ctx, a)
	b.observer.Binding(-1)
	if err != nil {
		return outcomeOf(err)
	}
	for _, p := range a.By.PostBind {
		done := b.plugins.startTiming(a.Attempt, p.Name(), plugins.PostBind)
		back := b.workers.lendWorker(ctx)
		_, err := callGuarded(b.plugins, p, func() (none struct{}, err error) { p.PostBind(ctx, a.Attempt); return none, nil })
		back()
		done(err == nil)
	}
	return cycle.Outcome{}
}

// sendBinding binds the pod to its node. If it returns an error, the pod is not on the node, unless
// the scheduler stops before that is known. If the response to a binding does not show whether the
// binding was carried out, the pod is read.
//
// For example, the first request times out, and the API server carries it out a second later. The
// pod is read and still has an empty node name, so the binding is sent again and refused because
// the pod is bound by then. Another read shows the right node: the binding has succeeded.
// kube-scheduler would report a failure, forget the assumed pod and wait for the watch to correct
// it.
func (b *binder) sendBinding(ctx context.Context, a cycle.Bind) error {
	attempt := a.Attempt
	began := time.Now()
	for try := 1; ; try++ {
		own, err := b.tryToBind(ctx, a, try)
		refused, again := err, false
		if err != nil && own {
			err = fmt.Errorf("binding rejected: %w", err)
		}
		if err != nil { // even after a 404, which a proxy may receive when it repeats the request
			has, lookErr := b.hasNode(ctx, attempt, err)
			if lookErr != nil {
				err = lookErr
			}
			if has {
				err, refused = nil, nil
			}
			again = !has && lookErr == nil && own && !isAnswered(err) && try < bindTries
		}

		if refused != nil {
			b.observer.BindRefused(string(apierrors.ReasonForError(refused)))
		}
		if again && b.life.sleepAbout(firstPause<<try) {
			continue
		}
		b.observer.Ran(attempt.Profile, plugins.Bind, err == nil, time.Since(began))
		if log := klog.FromContext(ctx).V(2); log.Enabled() {
			log.Info("Binding ended", "pod", klog.KObj(attempt.Pod), "node", attempt.Node, "took", time.Since(began), "err", err)
		}
		return err
	}
}

// tryToBind calls the Bind plugins in order, until one binds the pod or fails. If all of them skip
// the pod, Berth's DefaultBinder sends the binding, and own is true. The UID makes the API server
// refuse the binding for another pod of the same name.
func (b *binder) tryToBind(ctx context.Context, a cycle.Bind, try int) (own bool, err error) {
	attempt := a.Attempt
	for _, binder := range a.By.Bind {
		done := b.plugins.startTiming(attempt, binder.Name(), plugins.Bind)
		passed, err := b.askBinder(ctx, binder, attempt)
		done(err == nil)
		if !passed || err != nil {
			return false, err
		}
	}

	if !a.By.Default {
		return false, errors.New("no plugin binds the pod")
	}
	limit := writtenWithin
	if try == 1 {
		limit = readWithin
	}

	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	done := b.plugins.startTiming(attempt, "DefaultBinder", plugins.Bind)
	err = b.post(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: attempt.Pod.Namespace, Name: attempt.Pod.Name, UID: attempt.Pod.UID},
		Target:     v1.ObjectReference{Kind: "Node", Name: attempt.Node},
	})

	done(err == nil)
	return true, err
}

// askBinder calls an out-of-tree Bind plugin. If the plugin takes long, a stand-in replaces this
// worker in the meantime.
func (b *binder) askBinder(ctx context.Context, binder cycle.Binder, attempt *cycle.Attempt) (passed bool, err error) {
	defer b.workers.lendWorker(ctx)()
	return callGuarded(b.plugins, binder, func() (bool, error) { return binder.Bind(ctx, attempt) })
}

// hasNode reads the pod after a binding has failed with bindErr, and reports whether the pod is on
// its node nevertheless. It returns an error if the pod will not get the node, or if the scheduler
// stops. While the API server is unreachable, hasNode retries, so that the resources on the node
// stay reserved. If the read is refused, the response to the binding counts; if there was none,
// hasNode retries until the binding can no longer be carried out. If the pod exists and has no
// node, bound is false and err is nil, and the binding may be retried.
func (b *binder) hasNode(ctx context.Context, attempt *cycle.Attempt, bindErr error) (bound bool, err error) {
	err = errors.New("the scheduler stops")
	began := time.Now()
	b.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		pod, failed := b.client.CoreV1().Pods(attempt.Pod.Namespace).Get(ctx, attempt.Pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(failed):
			err = cycle.ErrGone
		case failed != nil && isAnswered(failed):
			if b.unread.Due() {
				klog.FromContext(ctx).Error(failed, "A pod cannot be read to find out whether it was bound", "pod",
					klog.KObj(attempt.Pod), "node", attempt.Node)
			}
			err = fmt.Errorf("%w; could not check whether the pod was bound nevertheless: %w", bindErr, failed)
			return isAnswered(bindErr) || time.Since(began) >= writtenWithin
		case failed != nil:
			return false
		case pod.UID != attempt.Pod.UID:
			err = cycle.ErrGone
		case pod.Spec.NodeName == attempt.Node:
			bound, err = true, nil
		case pod.Spec.NodeName != "":
			err = cycle.ErrBoundElsewhere
			// The core gets the pod immediately, without waiting for the watch.
			b.see(cycle.Read{Pod: pod})
		case pod.DeletionTimestamp != nil:
			err = cycle.ErrGone
		default:
			err = nil
		}
		return true
	})

	return bound, err
}

// isAnswered reports whether the outcome of a request is final: the API server has carried it out,
// or will always refuse it. After the reasons below, the request may have been carried out, or may
// succeed when it is repeated. A lost connection has the reason Unknown, and after a timeout in the
// API server, etcd may still carry out the request.
func isAnswered(err error) bool {
	if err == nil {
		return true
	}
	switch apierrors.ReasonForError(err) {
	case metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout, metav1.StatusReasonTooManyRequests,
		metav1.StatusReasonInternalError, metav1.StatusReasonServiceUnavailable:
		return false
	}
	return true
}

// drain bounds the time in which a stopping scheduler writes events, after finishWithin. Both
// together fit into the 30 s that the kubelet grants by default.
const drain = 2 * time.Second

// recordBinding emits the event of a bound pod, with the same reason and message as upstream. A pod
// is bound only once, so the event is never repeated (Once).
func (s *Scheduler) recordBinding(a *cycle.Attempt) {
	regarding := cycle.Reference(a.Pod)
	s.events.Record(eventlog.Event{
		Component: a.Profile, Regarding: regarding, Type: v1.EventTypeNormal, Reason: "Scheduled",
		Message: "Successfully assigned " + regarding.Namespace + "/" + regarding.Name + " to " + a.Node, Once: true,
	})
}
