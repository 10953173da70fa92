// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// YAML formats a world as documents for kubectl apply, followed by the scheduler configuration.
func (w *World) YAML() string {
	var b strings.Builder
	for _, object := range w.listObjects() {
		fmt.Fprintf(&b, "---\n%s", toYAML(object))
	}
	for _, plugin := range slices.Sorted(maps.Keys(w.Args)) {
		text, _ := yaml.Marshal(w.Args[plugin])
		fmt.Fprintf(&b, "--- # arguments of %s\n%s", plugin, text)
	}
	if len(w.Weights)+len(w.Unscored)+len(w.Unfiltered)+len(w.FilterOrder) > 0 {
		fmt.Fprintf(&b, "--- # weights %v, not at score: %v, not at filter: %v, order at filter: %v\n", w.Weights,
			w.Unscored, w.Unfiltered, w.FilterOrder)
	}
	return b.String()
}

// toYAML formats an object without status fields that are empty in every world.
func toYAML(object runtime.Object) []byte {
	object = object.DeepCopyObject()
	if kinds, _, err := clientscheme.Scheme.ObjectKinds(object); err == nil {
		object.GetObjectKind().SetGroupVersionKind(kinds[0])
	}

	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return []byte("# " + err.Error() + "\n")
	}

	if status, ok := fields["status"].(map[string]any); ok {
		delete(status, "nodeInfo")
		delete(status, "daemonEndpoints")
		if len(status) == 0 {
			delete(fields, "status")
		}
	}

	text, err := yaml.Marshal(fields)
	if err != nil {
		return []byte("# " + err.Error() + "\n")
	}
	return text
}

// withReplaced returns the world with one object replaced.
func (w *World) withReplaced(old, other runtime.Object) *World {
	changed := *w
	changed.Others = replaceIn(w.Others, old, other)
	changed.Nodes = replaceIn(w.Nodes, old, other)
	changed.Placed = replaceIn(w.Placed, old, other)
	changed.Nominated = replaceIn(w.Nominated, old, other)
	changed.Pending = replaceIn(w.Pending, old, other)
	return &changed
}

func replaceIn[T runtime.Object](list []T, old, other runtime.Object) []T {
	list = slices.Clone(list)
	for i := range list {
		if runtime.Object(list[i]) == old {
			list[i] = other.(T)
		}
	}
	return list
}

func newOf(o runtime.Object) runtime.Object {
	return reflect.New(reflect.TypeOf(o).Elem()).Interface().(runtime.Object)
}

func semanticEqual(a, b runtime.Object) bool { return equality.Semantic.DeepEqual(a, b) }
