// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// shrinker searches for the smallest world with a difference.
type shrinker struct {
	// differences returns the differences in a world.
	differences func(*World) []Difference
	// budget is the remaining number of smaller worlds to try.
	budget int

	world *World
	found Difference
}

// Shrink removes objects from a world, and then fields of objects, as long as a difference of the
// same kind remains. It returns the remaining world and its difference.
func Shrink(ctx context.Context, w *World, d Difference, only []string) (*World, Difference) {
	if d.Plugin != "" {
		only = []string{d.Plugin}
	}
	s := &shrinker{budget: 4000, world: w, found: d, differences: func(w *World) []Difference {
		_, found, err := Compare(ctx, w, only)
		if err != nil {
			return nil // an object or field needed by another one is missing
		}
		return found
	}}
	return s.shrinkWorld()
}

func (s *shrinker) shrinkWorld() (*World, Difference) {
	s.dropPending()
	for again := true; again; {
		again = s.dropObjects()
		again = s.dropArguments() || again
	}
	for again := true; again; {
		again = s.dropFields()
	}
	return s.world, s.found
}

// keepIfSame makes a world the current world if it has the same difference.
func (s *shrinker) keepIfSame(smaller *World) bool {
	if s.budget--; s.budget < 0 || len(smaller.Nodes) == 0 {
		return false
	}
	for _, d := range s.differences(smaller) {
		if d.Plugin == s.found.Plugin && d.What == s.found.What && d.Pod == s.found.Pod {
			s.world, s.found = smaller, d
			return true
		}
	}
	return false
}

// dropPending removes all pending pods except the pod with the difference, unless the difference
// depends on pods placed before.
func (s *shrinker) dropPending() {
	smaller := *s.world
	smaller.Pending = slices.DeleteFunc(slices.Clone(smaller.Pending), func(p *v1.Pod) bool { return p.Name != s.found.Pod })
	s.keepIfSame(&smaller)
}

func (s *shrinker) dropObjects() (any bool) {
	for _, object := range s.world.listObjects() {
		if p, ok := object.(*v1.Pod); ok && p.Name == s.found.Pod {
			continue
		}
		any = s.keepIfSame(s.world.withoutObject(object)) || any
	}
	return any
}

func (s *shrinker) dropArguments() (any bool) {
	for _, plugin := range slices.Sorted(maps.Keys(s.world.Args)) {
		smaller := *s.world
		smaller.Args = maps.Clone(smaller.Args)
		delete(smaller.Args, plugin)
		any = s.keepIfSame(&smaller) || any
	}
	for _, drop := range []func(*World){
		func(w *World) { w.Weights = nil }, func(w *World) { w.Unscored = nil },
		func(w *World) { w.Unfiltered = nil }, func(w *World) { w.FilterOrder = nil },
	} {
		smaller := *s.world
		if drop(&smaller); countSettings(s.world) > countSettings(&smaller) {
			any = s.keepIfSame(&smaller) || any
		}
	}
	return any
}

// dropFields removes fields and list items from every object.
func (s *shrinker) dropFields() (any bool) {
	for _, object := range s.world.listObjects() {
		for again := true; again; {
			again = false
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				break
			}
			for _, path := range listPaths(nil, fields) {
				smaller, ok := withoutPart(object, fields, path)
				if ok && s.keepIfSame(s.world.withReplaced(object, smaller)) {
					object, again, any = smaller, true, true
					break
				}
			}
		}
	}

	return any
}

// needed lists fields that are never removed, such as required fields.
var needed = map[any]bool{
	"metadata": true, "name": true, "namespace": true, "uid": true, "topologyKey": true, "whenUnsatisfiable": true,
	"maxSkew": true, "operator": true,
	"weight": true, "key": true, "creationTimestamp": true, "nodeName": true, "effect": true, "allocatable": true,
}

// listPaths lists the paths to all fields and list items of an object, the shortest path first.
func listPaths(to []any, part any) (list [][]any) {
	switch p := part.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(p)) {
			if !needed[key] {
				list = append(list, append(slices.Clone(to), key))
			}
			list = append(list, listPaths(append(slices.Clone(to), key), p[key])...)
		}
	case []any:
		for i := range p {
			list = append(list, append(slices.Clone(to), i))
			list = append(list, listPaths(append(slices.Clone(to), i), p[i])...)
		}
	}
	slices.SortStableFunc(list, func(a, b []any) int { return len(a) - len(b) })
	return list
}

// withoutPart returns the object without the field or item at the end of the path. ok is false if
// the removal changes nothing.
func withoutPart(object runtime.Object, fields map[string]any, path []any) (smaller runtime.Object, ok bool) {
	rest := runtime.DeepCopyJSON(fields)
	removePart(rest, path)
	smaller = newOf(object)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(rest, smaller); err != nil {
		return nil, false
	}
	return smaller, !semanticEqual(object, smaller)
}

func removePart(part any, path []any) any {
	switch p := part.(type) {
	case map[string]any:
		key := path[0].(string)
		if len(path) == 1 {
			delete(p, key)
		} else {
			p[key] = removePart(p[key], path[1:])
		}
		return p
	case []any:
		i := path[0].(int)
		if len(path) == 1 {
			return slices.Delete(p, i, i+1)
		}
		p[i] = removePart(p[i], path[1:])
		return p
	}

	return part
}

// countSettings returns the number of non-default settings in a world's profile, without arguments.
func countSettings(w *World) int {
	return len(w.Weights) + len(w.Unscored) + len(w.Unfiltered) + len(w.FilterOrder)
}
