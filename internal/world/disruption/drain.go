// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Presence indicates whether an object exists, if this is known.
type Presence int

// The values of Presence. Unknown means that objects of this kind were not read.
const (
	Unknown Presence = iota
	There
	Gone
)

// DrainRules are the flags of kubectl drain that determine which pods leave. The zero value is
// kubectl's default.
type DrainRules struct {
	// Pods selects the pods to drain; nil selects all pods.
	Pods                                        labels.Selector
	IgnoreDaemonSets, DeleteEmptyDirData, Force bool
	// Undisturbed, which kubectl lacks, refuses pods that Berth's own goals do not move; see
	// WhyUndisturbed.
	Undisturbed bool
	// Overdue limits how long after its DeletionTimestamp a drain waits for a pod; 0 means without
	// limit.
	Overdue time.Duration
}

// Ruling is the drain's decision on a pod. At most one of Leaves, Waited and Fault is set. If none
// of them is set, the pod stays, and the drain can succeed nevertheless.
type Ruling struct {
	// Leaves is set if the pod is evicted. Waited is set if the pod is already terminating, so that
	// the drain waits for its end.
	Leaves, Waited bool
	// Orphan is set if the pod is not recreated although it has a controller, because its DaemonSet
	// does not exist.
	Orphan bool
	// Fault is kubectl's reason for refusing to begin the drain, with the flag that overrides the
	// refusal.
	Fault string
	// Ignored is the reason why a drain ignores a pod.
	Ignored string
}

// Judge decides about one pod of a node. It applies kubectl's filters in kubectl's order: selector,
// overdue deletion, DaemonSet, static pod, local storage, no controller; Undisturbed is last. The
// first filter that keeps the pod decides. daemonSet reports whether a DaemonSet exists.
func (r *DrainRules) Judge(p *v1.Pod, now time.Time, daemonSet func(namespace, name string) Presence) Ruling {
	if r.Pods != nil && !r.Pods.Matches(labels.Set(p.Labels)) {
		return Ruling{}
	}
	deleted := p.DeletionTimestamp
	if deleted != nil && r.Overdue > 0 && now.Sub(deleted.Time) > r.Overdue {
		return Ruling{}
	}

	// Terminal pods run nothing that could be lost, so most filters let them pass.
	owner, ended, orphan := metav1.GetControllerOfNoCopy(p), rules.IsTerminal(p), false
	if IsDaemonSet(owner) && !ended {
		orphan = daemonSet(p.Namespace, owner.Name) == Gone
		switch {
		case orphan && !r.Force:
			return Ruling{Fault: fmt.Sprintf("daemonsets.apps %q not found (use --force to override)", owner.Name)}
		case orphan:
		case !r.IgnoreDaemonSets:
			return Ruling{Fault: "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)"}
		default:
			return Ruling{Ignored: "ignoring DaemonSet-managed Pods"}
		}
	}

	_, mirror := p.Annotations[v1.MirrorPodAnnotationKey]
	local := slices.ContainsFunc(p.Spec.Volumes, func(v v1.Volume) bool { return v.EmptyDir != nil })
	switch {
	case mirror:
		return Ruling{Ignored: "a static pod of its node"}
	case local && !ended && !r.DeleteEmptyDirData:
		return Ruling{Fault: "cannot delete Pods with local storage (use --delete-emptydir-data to override)"}
	case owner == nil && !ended && !r.Force:
		return Ruling{Fault: "cannot delete Pods that declare no controller (use --force to override)"}
	}
	if r.Undisturbed && !ended && deleted == nil {
		if why := WhyUndisturbed(p, now, false); why != "" {
			return Ruling{Fault: why}
		}
	}
	return Ruling{Leaves: deleted == nil, Waited: deleted != nil, Orphan: orphan}
}

// IsDaemonSet reports whether a controller is a DaemonSet of apps/v1: kinds of that name in other
// groups are ordinary controllers.
func IsDaemonSet(owner *metav1.OwnerReference) bool {
	return owner != nil && owner.Kind == "DaemonSet" && owner.APIVersion == appsv1.SchemeGroupVersion.String()
}
