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
	"github.com/berth-k8s/berth/internal/kube/loglimit"
)

const (
	// readWithin bounds a read request and the first try of a binding: its connection may be dead,
	// and the next try may get another one.
	readWithin = 30 * time.Second
	// writtenWithin bounds any other write request, and exceeds the time limit of the API server
	// for any of them (--request-timeout, a minute). An unreachable webhook takes up to 30 s of
	// that, and a write given up earlier is never carried out, however often it is retried. Work
	// with two such requests gets twice this limit.
	writtenWithin = 65 * time.Second
	// finishWithin bounds the unfinished work of a stopping scheduler, plugins included. The
	// kubelet grants 30 s by default for that and for the rest of the shutdown.
	finishWithin = 25 * time.Second
)

// Pauses between tries, and the number of tries for a binding that the API server was unable to
// take.
const (
	firstPause = 100 * time.Millisecond
	lastPause  = 5 * time.Second
	bindTries  = 3
)

// binder binds pods on the goroutines of workers, with one call of bindPod for each.
//
// Whatever goes wrong, a pod's room is released only once it is certain that the pod will not get
// its node: the API server's response rules it out, the pod itself shows it, or enough time has
// passed that an unanswered binding can no longer be carried out.
type binder struct {
	client   kubernetes.Interface
	observer cycle.Observer
	see      func(cycle.Event)                        // leaves an event for the core
	post     func(context.Context, *v1.Binding) error // posts one binding
	workers  *workers                                 // run bindPod; a worker is replaced while its plugin takes long
	plugins  *pluginCalls
	life     *lifetime
	unread   loglimit.Line // logs pods that cannot be read
}

// bindPod binds the pod to its node and then calls the plugins at PostBind. A plugin failing there
// changes nothing: the pod is bound.
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

// Reasons why a binding is not, or was not, carried out.
var (
	errGone           = errors.New("the pod was deleted")
	errBoundElsewhere = errors.New("the pod was bound by another client")
)

// sendBinding binds the pod to its node. Without an error, the pod is on the node; with one, it is
// not. If the response to a binding leaves that open, the pod is read before its room is released.
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
		if err != nil && !(own && apierrors.IsNotFound(err)) { // a plugin may report another missing object
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
			log.Info("Bound", "pod", klog.KObj(attempt.Pod), "node", attempt.Node, "took", time.Since(began), "err", err)
		}
		return err
	}
}

// tryToBind calls the bind plugins in order. own reports that they all passed, and Berth's
// DefaultBinder was tried. The UID in the binding makes the API server refuse it for another pod of
// the same name.
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

// askBinder calls an out-of-tree plugin to bind the pod. Until it returns, another worker takes
// this worker's place.
func (b *binder) askBinder(ctx context.Context, binder cycle.Binder, attempt *cycle.Attempt) (passed bool, err error) {
	defer b.workers.lendWorker(ctx)()
	return callGuarded(b.plugins, binder, func() (bool, error) { return binder.Bind(ctx, attempt) })
}

// hasNode reads whether the pod is on its node in spite of an error. A returned error means that
// the pod will not get the node. The room is kept as long as the API server is unreachable and the
// outcome therefore unknown. If the read is refused, the response to the binding counts; without
// one, the room is kept for as long as the binding can still be carried out. has and err are both
// zero for an existing pod without a node: the binding may be retried.
func (b *binder) hasNode(ctx context.Context, attempt *cycle.Attempt, why error) (has bool, err error) {
	err = errors.New("the scheduler stops")
	began := time.Now()
	b.life.retryUntilStopped(ctx, func(ctx context.Context) bool {
		pod, failed := b.client.CoreV1().Pods(attempt.Pod.Namespace).Get(ctx, attempt.Pod.Name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(failed):
			err = errGone
		case failed != nil && isAnswered(failed):
			if b.unread.Due() {
				klog.FromContext(ctx).Error(failed, "A pod cannot be read to find out whether it was bound", "pod",
					klog.KObj(attempt.Pod), "node", attempt.Node)
			}
			err = fmt.Errorf("%w; whether the pod has its node in spite of that cannot be read: %w", why, failed)
			return isAnswered(why) || time.Since(began) >= writtenWithin
		case failed != nil:
			return false
		case pod.UID != attempt.Pod.UID:
			err = errGone
		case pod.Spec.NodeName == attempt.Node:
			has, err = true, nil
		case pod.Spec.NodeName != "":
			err = errBoundElsewhere
			// The core learns the pod's node immediately, without waiting for its watch.
			b.see(cycle.Read{Pod: pod})
		case pod.DeletionTimestamp != nil:
			err = errGone
		default:
			err = nil
		}
		return true
	})

	return has, err
}

// isAnswered reports whether the API server has carried out a request, or never will. The reasons
// below leave that open, or allow the same request to succeed later: a lost connection yields the
// reason Unknown, and a timeout at the API server may end a request that etcd carries out.
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
