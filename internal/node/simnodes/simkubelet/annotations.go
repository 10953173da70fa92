// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simkubelet

import (
	"cmp"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	prefix = "berth.dev/"

	// LabelSimulated marks simulated nodes, as opposed to machines.
	LabelSimulated = prefix + "simulated"

	// These annotations apply to a node. The value HeartbeatStopped of AnnotationHeartbeat silences
	// the node, until the time in AnnotationHeartbeatUntil if present.
	AnnotationHeartbeat      = prefix + "heartbeat"
	AnnotationHeartbeatUntil = prefix + "heartbeat-until"
	HeartbeatStopped         = "stopped"
	// AnnotationConditions lists the conditions that a node reports, for example
	// "MemoryPressure=True,Ready=False".
	AnnotationConditions = prefix + "conditions"

	// These annotations of a pod set the running time of containers, their exit code, the time they
	// take to end after SIGTERM, the running time of each init container, and the result of every
	// readiness probe.
	AnnotationRunFor         = prefix + "run-for"
	AnnotationExitCode       = prefix + "exit-code"
	AnnotationTerminateAfter = prefix + "terminate-after"
	AnnotationInitFor        = prefix + "init-for"
	AnnotationReady          = prefix + "ready"
)

// forEver is the running time of a process that does not end by itself.
const forEver time.Duration = -1

// script is the behavior of a pod's processes. It is parsed again each time, since annotations may
// change while the pod runs.
type script struct {
	// runFor and exitCode apply to containers whose command line does not show how they end. If an
	// annotation sets either (given is true), both apply to all containers.
	runFor         time.Duration
	exitCode       int32
	given          bool
	terminateAfter time.Duration
	initFor        time.Duration
	// ready overrides the readiness probes if it is not nil.
	ready *bool
	// bad describes the first malformed annotation, which is ignored.
	bad error
}

// scriptOf determines the behavior of a pod's processes: a Job's pod ends by itself, any other runs
// until deleted, and annotations override both.
func (s *Shape) scriptOf(pod *v1.Pod) script {
	sc := script{runFor: forEver, terminateAfter: s.TerminateAfter}
	// Otherwise a Job without annotations would never complete.
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" {
		sc.runFor = s.JobRunFor
	}

	sc.parseDuration(pod, AnnotationRunFor, &sc.runFor)
	sc.parseDuration(pod, AnnotationTerminateAfter, &sc.terminateAfter)
	sc.parseDuration(pod, AnnotationInitFor, &sc.initFor)
	_, runFor := pod.Annotations[AnnotationRunFor]
	_, exitCode := pod.Annotations[AnnotationExitCode]
	// given is true even if the value is malformed, because the intent is clear.
	sc.given = runFor || exitCode

	if text, ok := pod.Annotations[AnnotationExitCode]; ok {
		code, err := strconv.ParseInt(text, 10, 32)
		if err != nil || code < 0 || code > 255 {
			sc.addFault(AnnotationExitCode, text, "must be a number from 0 to 255")
		} else {
			sc.exitCode = int32(code)
		}
	}

	if text, ok := pod.Annotations[AnnotationReady]; ok {
		ready, err := strconv.ParseBool(text)
		if err != nil {
			sc.addFault(AnnotationReady, text, "must be true or false")
		} else {
			sc.ready = &ready
		}
	}

	return sc
}

// endingFor returns the way a container ends by itself. Annotations on the pod override command
// lines.
func (sc *script) endingFor(c *v1.Container) ending {
	if e, known := endingOf(c); known && !sc.given {
		return e
	}
	return ending{sc.runFor, sc.exitCode}
}

// initEnding returns an init container's ending: after initFor and with success, unless its command
// line implies another one. AnnotationInitFor may lengthen the running time implied by a command
// line, but never shorten it.
func (sc *script) initEnding(c *v1.Container) ending {
	if e, known := endingOf(c); known {
		if e.runFor != forEver {
			e.runFor = max(e.runFor, sc.initFor)
		}
		return e
	}
	return ending{runFor: sc.initFor}
}

// parseDuration parses an annotation; a malformed one leaves the old value.
func (sc *script) parseDuration(pod *v1.Pod, key string, into *time.Duration) {
	text, ok := pod.Annotations[key]
	if !ok {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		sc.addFault(key, text, "must be a duration such as 30s or 5m")
		return
	}
	*into = d
}

// addFault keeps the first fault.
func (sc *script) addFault(key, value, allowed string) {
	sc.bad = cmp.Or(sc.bad, fmt.Errorf("annotation %s: %q: %s", key, value, allowed))
}

// silentUntil reports whether an annotation stops a node's heartbeat, and when it resumes; the zero
// time means never. A malformed time is ignored: the node stays silent.
func silentUntil(node *v1.Node, now time.Time) (bool, time.Time) {
	if node.Annotations[AnnotationHeartbeat] != HeartbeatStopped {
		return false, time.Time{}
	}
	until, err := time.Parse(time.RFC3339, node.Annotations[AnnotationHeartbeatUntil])
	if err != nil {
		return true, time.Time{}
	}
	return now.Before(until), until
}

// Conditions are node conditions by type, in the annotation's form. A nil map is empty.
type Conditions map[v1.NodeConditionType]v1.ConditionStatus

// ParseConditions parses "Type=Status[,Type=Status...]". An empty string yields no conditions. If a
// type is repeated, its last status is used.
func ParseConditions(text string) (Conditions, error) {
	conditions := Conditions{}
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		kind, status, ok := strings.Cut(part, "=")
		if !ok || !isConditionType(kind) {
			return nil, fmt.Errorf("condition %q: must be TYPE=True, TYPE=False or TYPE=Unknown", part)
		}
		switch v1.ConditionStatus(status) {
		case v1.ConditionTrue, v1.ConditionFalse, v1.ConditionUnknown:
			conditions[v1.NodeConditionType(kind)] = v1.ConditionStatus(status)
		default:
			return nil, fmt.Errorf("condition %s: status %q: must be True, False or Unknown", kind, status)
		}
	}

	return conditions, nil
}

// isConditionType accepts letters and digits after a capital letter, like Kubernetes' own types.
func isConditionType(s string) bool {
	for i, r := range s {
		upper, lower := r >= 'A' && r <= 'Z', r >= 'a' && r <= 'z'
		if i == 0 && !upper || !upper && !lower && (r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// String formats the conditions for the annotation, sorted by type.
func (c Conditions) String() string {
	parts := make([]string, 0, len(c))
	for kind, status := range c {
		parts = append(parts, string(kind)+"="+string(status))
	}
	sort.Strings(parts)
	return strings.Join(parts, ",")
}
