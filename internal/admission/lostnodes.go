// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"strconv"

	v1 "k8s.io/api/core/v1"
)

// Annotations of a namespace that set how long its pods stay on a not-ready or unreachable node,
// overriding the cluster's default. A pod's own toleration takes precedence over both.
const (
	NotReadySecondsAnnotation    = "berth.dev/not-ready-seconds"
	UnreachableSecondsAnnotation = "berth.dev/unreachable-seconds"
)

// defaultSeconds is kube-apiserver's default for both taints (DefaultTolerationSeconds).
const defaultSeconds = 300

// lostNodes adds tolerations that let a pod stay on a lost node for a while. A pod's own toleration
// takes precedence if its key is this taint's or empty, and its effect is NoExecute or empty. It is
// kube-apiserver's plugin DefaultTolerationSeconds, plus the namespace's annotation:
//
//	pod's own toleration > namespace's annotation > Config > 300 s
func lostNodes(r *request) error {
	if err := lostNode(r, v1.TaintNodeNotReady, r.NotReadySeconds, NotReadySecondsAnnotation); err != nil {
		return err
	}
	return lostNode(r, v1.TaintNodeUnreachable, r.UnreachableSeconds, UnreachableSecondsAnnotation)
}

// lostNode adds the toleration for one of the two taints. The namespace's annotation takes
// precedence over the configuration. It refuses the pod if the annotation is not a number, since a
// wrong value would be noticed only when a node fails.
func lostNode(r *request, taint string, configured *int64, annotation string) error {
	for _, t := range r.pod.Spec.Tolerations {
		if (t.Key == taint || t.Key == "") && (t.Effect == v1.TaintEffectNoExecute || t.Effect == "") {
			return nil
		}
	}

	seconds := int64(defaultSeconds)
	if configured != nil {
		seconds = *configured
	}

	if text, set := r.namespace.Annotations[annotation]; set {
		value, err := strconv.ParseInt(text, 10, 64)
		if err != nil || value < 0 {
			return newRefusal("metadata.namespace",
				"namespace %s: annotation %s: %q: must be a number of seconds, zero or more", r.namespace.Name, annotation, text)
		}
		seconds = value
	}

	r.pod.Spec.Tolerations = append(r.pod.Spec.Tolerations, v1.Toleration{
		Key: taint, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: &seconds,
	})
	return nil
}
