// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package admission

import (
	"fmt"
	"maps"
	"slices"

	nodev1 "k8s.io/api/node/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

// runtimeClass adds the class's overhead, node selector and tolerations to the pod. It is
// kube-apiserver's plugin RuntimeClass. It refuses a conflicting pod rather than correcting it.
func runtimeClass(r *request) error {
	class, err := classOf(r)
	if class == nil || err != nil {
		return err
	}

	spec := &r.pod.Spec
	if class.Overhead != nil {
		if len(spec.Overhead) > 0 && !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, spec.Overhead) {
			return newRefusal("spec.overhead", mismatch)
		}
		spec.Overhead = class.Overhead.PodFixed.DeepCopy()
	}

	if class.Scheduling == nil {
		return nil
	}
	// Sort the keys, so that several conflicts always produce the same message.
	for _, key := range slices.Sorted(maps.Keys(class.Scheduling.NodeSelector)) {
		value := class.Scheduling.NodeSelector[key]
		if own, set := spec.NodeSelector[key]; set && own != value {
			return newRefusal("spec.nodeSelector["+key+"]",
				"conflict: runtimeClass.scheduling.nodeSelector[%s] = %s; pod.spec.nodeSelector[%s] = %s", key, value, key, own)
		}
		if spec.NodeSelector == nil {
			spec.NodeSelector = map[string]string{}
		}
		spec.NodeSelector[key] = value
	}

	spec.Tolerations = mergeTolerations(spec.Tolerations, class.Scheduling.Tolerations)
	return nil
}

// checkOverhead refuses a pod whose overhead differs from its class's, for example because a
// webhook changed it. The overhead counts against quotas and nodes, so it must be the class's.
func checkOverhead(r *request) error {
	class, err := classOf(r)
	switch own := r.pod.Spec.Overhead; {
	case err != nil:
		return err
	// Only a class may add overhead to a pod.
	case class == nil || class.Overhead == nil:
		if own != nil {
			return newRefusal("spec.overhead", "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
		}
	case !apiequality.Semantic.DeepEqual(class.Overhead.PodFixed, own):
		return newRefusal("spec.overhead", mismatch)
	}
	return nil
}

// mismatch is kube-apiserver's message.
const mismatch = "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"

// classOf returns the pod's class; nil if the pod does not name one. A nonexistent class refuses
// the pod.
func classOf(r *request) (*nodev1.RuntimeClass, error) {
	name := r.pod.Spec.RuntimeClassName
	if name == nil {
		return nil, nil
	}
	class, err := r.RuntimeClass(*name)
	if err != nil {
		return nil, fmt.Errorf("runtime class %s: %w", *name, err)
	}
	if class == nil {
		return nil, newRefusal("spec.runtimeClassName", "pod rejected: RuntimeClass %q not found", *name)
	}
	return class, nil
}
