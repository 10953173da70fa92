// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"encoding/json"
	"slices"
	"strconv"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// Namespace annotations with tolerations as JSON, as used by kube-apiserver's plugin
// PodTolerationRestriction.
const (
	DefaultTolerationsAnnotation = "scheduler.alpha.kubernetes.io/defaultTolerations"
	AllowedTolerationsAnnotation = "scheduler.alpha.kubernetes.io/tolerationsWhitelist"
)

// namespaceTolerations gives a pod the default tolerations of its namespace or, if the namespace
// has no such annotation, of the cluster. An empty annotation means no tolerations. The defaults
// are merged with the pod's own tolerations: if one toleration covers another, only the wider one
// is kept.
func namespaceTolerations(r *request) error {
	defaults, set, err := annotatedTolerations(r.namespace, DefaultTolerationsAnnotation)
	if err != nil {
		return err
	}
	if !set {
		defaults = r.DefaultTolerations
	}
	if len(defaults) > 0 {
		r.pod.Spec.Tolerations = mergeTolerations(r.pod.Spec.Tolerations, defaults)
	}
	return nil
}

// allowedTolerations refuses a pod with a toleration beyond the list allowed in its namespace.
// Tolerations added by admission also count, so a list must include the tolerations of lost nodes.
// Existing tolerations stay, regardless of the current list: on an update only new tolerations
// count, and on a terminating pod none.
func allowedTolerations(r *request) error {
	if r.old != nil && r.pod.DeletionTimestamp != nil {
		return nil
	}
	before := newTolerationSet(nil)
	if r.old != nil {
		before = newTolerationSet(r.old.Spec.Tolerations)
	}
	var allowed *tolerationSet
	scope := ""
	for i := range r.pod.Spec.Tolerations {
		t := &r.pod.Spec.Tolerations[i]
		if before.has(t) {
			continue
		}
		// Parse the list only for the first new toleration, so that pods without new tolerations
		// are not refused for a malformed annotation.
		if allowed == nil {
			list, of, err := allowList(r)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return nil
			}
			allowed, scope = newTolerationSet(list), of
		}
		if !allowed.covers(t) {
			return newRefusal("spec.tolerations",
				"pod tolerations (possibly merged with namespace default tolerations) conflict with its %s whitelist", scope)
		}
	}

	return nil
}

// allowList returns the tolerations allowed for the pod, and the scope of this setting; an empty
// list allows all.
func allowList(r *request) (allowed []v1.Toleration, scope string, err error) {
	allowed, set, err := annotatedTolerations(r.namespace, AllowedTolerationsAnnotation)
	if !set {
		return r.AllowedTolerations, "cluster", err
	}
	return allowed, "namespace", err
}

// annotatedTolerations parses a list from an annotation. set reports whether it is present: an
// empty annotation is an empty list. Invalid JSON refuses the pod, since the intent is unknown.
func annotatedTolerations(namespace *v1.Namespace, annotation string) (tolerations []v1.Toleration, set bool, err error) {
	text, set := namespace.Annotations[annotation]
	if text == "" {
		return nil, set, nil
	}
	if err := json.Unmarshal([]byte(text), &tolerations); err != nil {
		return nil, true, newRefusal("metadata.namespace",
			"namespace %s: annotation %s: %v; must be a JSON list of tolerations", namespace.Name, annotation, err)
	}
	return tolerations, true, nil
}

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

	seconds := ptr.Deref(configured, defaultSeconds)
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

// memoryPressure admits pods to nodes short of memory, except BestEffort pods. The admitted pods
// requested their memory, so they are not the cause of the shortage. kube-apiserver has this rule
// in a plugin disabled by default (PodTolerationRestriction); Berth always applies it.
func memoryPressure(r *request) error {
	if rules.IsBestEffort(r.pod) {
		return nil
	}
	// Like upstream, merge the toleration, because a covering toleration makes it superfluous.
	r.pod.Spec.Tolerations = mergeTolerations(r.pod.Spec.Tolerations, []v1.Toleration{{
		Key: v1.TaintNodeMemoryPressure, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule,
	}})
	return nil
}

// extendedResources lets a pod that requests special hardware run on the nodes reserved for that
// hardware. Such nodes have a taint with the resource's name as its key. It is kube-apiserver's
// plugin ExtendedResourceToleration, disabled by default there.
//
// For example, a request of example.com/gpu adds the toleration example.com/gpu:NoSchedule,
// regardless of the taint's value.
func extendedResources(r *request) error {
	var names []string
	for _, container := range slices.Concat(r.pod.Spec.Containers, r.pod.Spec.InitContainers) {
		for name := range container.Resources.Requests {
			if rules.IsExtendedResource(name) {
				names = append(names, string(name))
			}
		}
	}
	// Sort the names, because requests are maps and the result must not depend on their order.
	slices.Sort(names)
	names = slices.Compact(names)
	if len(names) > 0 {
		r.pod.Spec.Tolerations = setTolerations(r.pod.Spec.Tolerations, names)
	}
	return nil
}

// setTolerations adds a toleration for each of the keys, or replaces existing tolerations that
// differ only in seconds. It does not modify the given list.
func setTolerations(list []v1.Toleration, keys []string) []v1.Toleration {
	same, without := map[string][]int{}, map[string]bool{} // by key: tolerations like the added one, and whether one has no seconds
	for i := range list {
		t := &list[i]
		if t.Operator == v1.TolerationOpExists && t.Effect == v1.TaintEffectNoSchedule && t.Value == "" {
			same[t.Key] = append(same[t.Key], i)
			without[t.Key] = without[t.Key] || t.TolerationSeconds == nil
		}
	}

	result := slices.Clone(list)
	for _, key := range keys {
		wanted := v1.Toleration{Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoSchedule}
		switch {
		case without[key]:
			continue
		case len(same[key]) == 0:
			result = append(result, wanted)
		}
		for _, i := range same[key] {
			result[i] = wanted
		}
	}
	return result
}
