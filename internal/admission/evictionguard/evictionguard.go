// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package evictionguard

import (
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// WebhookName is the name of the guard's webhook in its configuration.
const WebhookName = "evictions.admission.berth.dev"

// Annotations of a pod with a held eviction, and of an eviction.
const (
	// RequestedAnnotation holds the time of the first refused eviction, in RFC 3339.
	RequestedAnnotation = "berth.dev/eviction-requested"
	// RepeatedAnnotation holds the time of a later refused eviction, and is seldom older than
	// repeatsAfter while the evictor retries.
	RepeatedAnnotation = "berth.dev/eviction-repeated"
	// StatusAnnotation holds the controller's status: Held, Admitted or Denied, and a message.
	StatusAnnotation = "berth.dev/eviction-status"
	// ReplacedAnnotation on an Eviction states that a replacement is ready, so that the eviction is
	// not held.
	ReplacedAnnotation = "berth.dev/replaced"
)

// The beginnings of a status.
const (
	Held     = "held: "
	Admitted = "admitted: "
	Denied   = "denied: "
)

const (
	// DefaultDeadline is shorter than the deadlines of common evictors. It is also the longest one.
	DefaultDeadline = 10 * time.Minute
	// ShortestDeadline is long enough for a controller that restarts to answer.
	ShortestDeadline = time.Minute
)

const (
	// answersWithin is the time within which the controller reports a status. Without a status, no
	// controller is running, and evictions are admitted.
	answersWithin = 30 * time.Second
	// skew is the accepted difference between the clocks of two webhooks.
	skew = time.Minute
	// repeatsAfter bounds the writes for a pod whose evictor retries.
	repeatsAfter = 30 * time.Second
	// RepeatsWithin is the age of the last request after which the evictor has probably given up.
	RepeatsWithin = time.Minute
)

// Holds reports whether evictions of the pod may be held. These are ready pods of ReplicaSets,
// which Berth can replace before they leave, and by the options also pods of other controllers and
// bare pods, but not of DaemonSets and nodes.
func (o *Options) Holds(pod *v1.Pod) bool {
	if pod.DeletionTimestamp != nil || rules.IsTerminal(pod) || !rules.HasReadyCondition(pod) {
		return false
	}
	kind := rules.ControllerKind(pod)
	return kind == rules.ReplicaSet || o.holdsOthers() && kind != rules.DaemonSet && kind != rules.Node
}

// HeldSince returns the time of the first refused eviction of a pod that the guard may hold, and
// the controller's status without its prefix.
func HeldSince(pod *v1.Pod) (since time.Time, status string, ok bool) {
	since, err := time.Parse(time.RFC3339, pod.Annotations[RequestedAnnotation])
	status, held := strings.CutPrefix(pod.Annotations[StatusAnnotation], Held)
	return since, status, err == nil && (held || status == "") && pod.DeletionTimestamp == nil && !rules.IsTerminal(pod)
}

// Requested returns the time of the pod's first refused eviction. It ignores times in the future,
// and times so old that the evictor has given up.
func Requested(pod *v1.Pod, now time.Time, deadline time.Duration) (at time.Time, ok bool) {
	at, err := time.Parse(time.RFC3339, pod.Annotations[RequestedAnnotation])
	return at, err == nil && !at.After(now.Add(skew)) && now.Sub(at) < 2*deadline
}

// LastRequested returns the time of the pod's last recorded eviction; first is the first one.
func LastRequested(pod *v1.Pod, now, first time.Time) time.Time {
	at, err := time.Parse(time.RFC3339, pod.Annotations[RepeatedAnnotation])
	if err != nil || at.Before(first) || at.After(now.Add(skew)) {
		return first
	}
	return at
}

// Records returns the annotations that record a refused eviction; nil removes an annotation. A
// denial ends the request: the next eviction is held again.
func (v *Verdict) Records(now time.Time) map[string]any {
	at := now.UTC().Format(time.RFC3339)
	switch {
	case v.Deny:
		return map[string]any{RequestedAnnotation: nil, RepeatedAnnotation: nil, StatusAnnotation: nil}
	case v.First:
		return map[string]any{RequestedAnnotation: at, RepeatedAnnotation: nil, StatusAnnotation: nil}
	case v.Again:
		return map[string]any{RepeatedAnnotation: at}
	}
	return nil
}

// Verdict is the decision about an eviction of a guarded pod.
type Verdict struct {
	Admit  bool
	Deny   bool   // refused after the deadline; ends the request
	First  bool   // not admitted, and the request must be recorded in the pod
	Again  bool   // not admitted, and the time of the request should be recorded in the pod
	Reason string // of an admission, for metrics: controller, deadline or unanswered
	// Message explains a refusal.
	Message string
}

// Judge decides about an eviction of a guarded pod. first is the time at which the caller first saw
// an eviction of this pod, which bounds the delay if another client keeps rewriting the annotation,
// unless annotations may also deny evictions. alive is the time at which the caller last saw a new
// status of any pod.
func (o *Options) Judge(pod *v1.Pod, now, first, alive time.Time) Verdict {
	at, ok := Requested(pod, now, o.Deadline)
	again := now.Sub(LastRequested(pod, now, at)) >= repeatsAfter
	status, deadline := pod.Annotations[StatusAnnotation], o.Deadline
	if o.chooses(Deny) {
		deadline += answersWithin // the controller denies before this replica admits
	}

	switch {
	case ok && strings.HasPrefix(status, Denied) && o.chooses(Deny):
		return Verdict{Deny: true, Message: strings.TrimPrefix(status, Denied)}
	case !o.chooses(Deny) && now.Sub(first) >= deadline, ok && now.Sub(at) >= deadline:
		return Verdict{Admit: true, Reason: "deadline"}
	case !ok:
		return Verdict{First: true, Message: undecided(pod)}
	case strings.HasPrefix(status, Admitted):
		return Verdict{Admit: true, Reason: "controller"}
	case status == "" && min(now.Sub(at), now.Sub(alive)) >= answersWithin:
		return Verdict{Admit: true, Reason: "unanswered"}
	case status == "":
		return Verdict{Again: again, Message: undecided(pod)}
	}
	return Verdict{Again: again, Message: strings.TrimPrefix(status, Held) + "; retry"}
}

// undecided is the message of a refusal before the controller has reported a status.
func undecided(pod *v1.Pod) string {
	if rules.ControllerKind(pod) == rules.ReplicaSet {
		return "starting a replacement first; retry"
	}
	return "checking whether a replacement fits; retry"
}
