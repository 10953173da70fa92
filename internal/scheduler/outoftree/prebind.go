// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"errors"
	"sync"

	fwk "k8s.io/kube-scheduler/framework"
)

// preBinding is a pod between its first PreBind and its binding. Until the binding begins, a plugin
// can cancel it, for instance to preempt the pod. The first call of CancelPod or MarkPrebound wins.
// The methods may be called from any goroutine. The methods endPod and MarkPrebound accept a nil
// receiver, which is a pod without PreBind plugins.
type preBinding struct {
	forget func() // removes the pod from handle.preBinding; nil if it is not in it

	mu       sync.Mutex
	cancels  []context.CancelCauseFunc // of the plugins' contexts; several may run concurrently
	binding  bool                      // about to be bound
	canceled error                     // reason for canceling the pod; nil: not canceled
}

var _ fwk.PodInPreBind = &preBinding{}

// toPreBind records that PreBind will follow. From then on plugins may run concurrently, and must
// not change the session.
func (y *session) toPreBind() {
	if y.prebind != nil {
		return
	}
	y.prebind = &preBinding{}
	if y.f.handle != nil {
		uid := y.pod.UID
		y.f.handle.preBinding.Store(uid, y.prebind)
		y.prebind.forget = func() { y.f.handle.preBinding.Delete(uid) }
	}
}

// beginPlugin returns the context of a plugin's PreBind, which ends when the pod is canceled. If
// the pod is already canceled, beginPlugin returns the reason as an error, and the plugin must not
// be called.
func (b *preBinding) beginPlugin(ctx context.Context) (context.Context, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancels = append(b.cancels, cancel)
	return ctx, b.canceled
}

// cancelAll ends the contexts of the running plugins, and is called with the lock held.
func (b *preBinding) cancelAll(why error) {
	for _, cancel := range b.cancels {
		cancel(why)
	}
}

// CancelPod implements fwk.PodInPreBind. It returns false if the binding has already begun. The
// first reason counts.
func (b *preBinding) CancelPod(reason string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.binding {
		return false
	}
	if b.canceled == nil {
		b.canceled = errors.New(reason)
	}
	b.cancelAll(b.canceled)
	return true
}

// MarkPrebound implements fwk.PodInPreBind. It records that the pod is about to be bound: from then
// on CancelPod is too late. It returns false if the pod was canceled. A pod without PreBind plugins
// cannot be canceled.
func (b *preBinding) MarkPrebound() bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.canceled != nil {
		return false
	}
	b.binding = true
	return true
}

// cause returns the reason why the pod was canceled, or nil.
func (b *preBinding) cause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.canceled
}

// endPod forgets the pod, and ends the contexts of its plugins.
func (b *preBinding) endPod() {
	if b == nil {
		return
	}
	if b.forget != nil {
		b.forget()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cancelAll(context.Canceled)
}
