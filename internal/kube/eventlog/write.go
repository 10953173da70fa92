// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package eventlog

import (
	"cmp"
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	recordutil "k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/pacing"
)

// toEvent converts an event to the API's type. Like in client-go, an event about an object without
// namespace is written to the namespace default.
func (l *Log) toEvent(e *queued) *v1.Event {
	component := cmp.Or(e.Component, l.component)
	return &v1.Event{
		ObjectMeta: metav1.ObjectMeta{
			Name:        recordutil.GenerateEventName(e.Regarding.Name, e.at.UnixNano()),
			Namespace:   cmp.Or(e.Regarding.Namespace, metav1.NamespaceDefault),
			Annotations: e.Annotations,
		},
		InvolvedObject:      e.Regarding,
		Type:                e.Type,
		Reason:              e.Reason,
		Message:             e.Message,
		Source:              v1.EventSource{Component: component, Host: l.Host},
		ReportingController: component,
		ReportingInstance:   l.Host,
		FirstTimestamp:      e.at,
		LastTimestamp:       e.at,
		Count:               1,
	}
}

// writeCorrelated writes an event after correlation: it creates the event, increments the count of
// an existing event, or drops the event because its object has had too many events.
func (l *Log) writeCorrelated(ctx context.Context, e *queued) {
	result, err := l.correlator.EventCorrelate(l.toEvent(e))
	if err != nil || result.Skip {
		return
	}
	event := result.Event
	l.retrySend(ctx, event, func(ctx context.Context) error {
		if event.Count == 1 {
			return l.createEvent(ctx, event)
		}
		_, err := l.client.CoreV1().Events(event.Namespace).Patch(ctx, event.Name, types.StrategicMergePatchType,
			result.Patch, metav1.PatchOptions{})
		if apierrors.IsNotFound(err) { // the existing event has expired, or its creation was refused
			return l.createEvent(ctx, event)
		}
		return err
	})
}

// createEvent writes a new event.
func (l *Log) createEvent(ctx context.Context, event *v1.Event) error {
	if l.Create != nil {
		return l.Create(ctx, event)
	}
	_, err := l.client.CoreV1().Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	return err
}

// retrySend sends an event until it is written, or maxTries attempts have failed. The pause between
// attempts grows by a second each time, up to longestPause.
func (l *Log) retrySend(ctx context.Context, event *v1.Event, send func(context.Context) error) {
	for try := 1; ; try++ {
		once, cancel := context.WithTimeout(ctx, within)
		err := send(once)
		cancel()
		if err == nil {
			return
		}

		klog.FromContext(ctx).V(2).Info("Event not written", "reason", event.Reason, "about",
			klog.KRef(event.InvolvedObject.Namespace, event.InvolvedObject.Name), "err", err)
		if try >= maxTries(err) || !pacing.Sleep(ctx, min(time.Duration(try)*time.Second, longestPause)) {
			return
		}
	}
}

// maxTries returns the number of attempts for an event after this error. If the event already
// exists, there are no further attempts: the event was created, and the response was lost.
func maxTries(err error) int {
	var answer apierrors.APIStatus
	if !errors.As(err, &answer) {
		return unanswered
	}
	// A busy API server may accept the event later. There are fewer attempts than without a
	// response, because the API server is evidently reachable.
	if code := answer.Status().Code; code >= 500 || code == 429 {
		return refused
	}
	return 1
}
