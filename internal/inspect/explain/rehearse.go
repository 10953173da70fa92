// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
)

// The search tries edits with the engine only. Before a suggestion is printed, its commands run in
// a twin of the world: admission, quotas and limit ranges may refuse the pod there, controllers may
// not roll out a template, and other pods may take the capacity.

const (
	// RehearsedPods bounds the total size of all twins for one result. A twin of 100,000 pods on
	// nodes takes about two seconds.
	RehearsedPods = 200_000
	// pendingPods is the weight of a pending pod, because each twin tries it.
	pendingPods = 20
	// rehearsedMissing bounds the missing pods created in a twin: tenants may request any number.
	rehearsedMissing = 100
	leastSize        = 1000 // minimum size of a twin
	// leastRehearsals is the guaranteed number of twins.
	leastRehearsals = 2
	// rehearsalTime is the virtual time for rollouts, terminating victims and back-off.
	rehearsalTime = 15 * time.Minute
)

// Size returns the size of a twin of the world for RehearsedPods.
func Size(w *simulate.World) int {
	return max(leastSize, w.Cluster().Len()+w.CountPods()+pendingPods*len(w.Queue()))
}

// candidate is a suggestion before its rehearsal.
type candidate struct {
	Suggestion
	edits []*edit
}

// rehearse applies the edits in a twin of the world. It returns the reason why neither the pod nor
// its replacement runs there, or "".
func (s *search) rehearse(edits []*edit) (reason string) {
	w, err := s.w.Twin()
	if err != nil {
		return err.Error()
	}
	for _, e := range edits {
		if e.set != nil {
			e.set(w.Trial()) // before the first attempt, because no event would requeue the pod afterwards
		}
	}
	w.MakeMissing(rehearsedMissing)
	*s.budget -= s.size
	w.Settle()
	k := keeperOf(w, s.original)
	before := k.stateOf(w)
	var kinds []string
	var alter alterations
	for _, e := range edits {
		switch {
		case e.pod != nil:
			kinds, alter = append(kinds, e.Kind), append(alter, e.pod)
		case e.node != nil:
			w.ChangeNode(e.node.name, e.node.alter)
		case e.add != nil:
			w.AddNode(e.add, s.csiNodeLike(e))
		case e.delete != nil:
			for _, p := range e.delete {
				if _, there := w.Find(p.Namespace(), p.Name()); !there {
					continue // a taint or a preemptor has removed the pod already
				}
				if _, err := w.Do(&simulate.Operation{Delete: &simulate.Delete{Object: "pod/" + p.Name(), Namespace: p.Namespace()}}); err != nil {
					return err.Error()
				}
			}
		}
	}

	var notes []string
	if len(alter) > 0 {
		for _, e := range edits {
			if e.class != nil {
				if _, err := w.Apply(manifest.Assemble("", []metav1.Object{e.class.DeepCopy()})); err != nil {
					return err.Error()
				}
			}
		}
		if notes, err = k.execute(w, k.changeSteps(kinds, alter.alter)); err != nil {
			return err.Error()
		}
	}
	w.AdvanceUntilQuiet(rehearsalTime)
	if err := w.Err(); err != nil {
		return err.Error()
	}
	return k.whyNotRunning(w, before, notes)
}

// isRehearsed reports whether the world can apply the edits. The world has no volume provisioners,
// so only the engine tries changes of volumes. It also has no controllers for workloads that were
// not read, and for unknown kinds.
func (s *search) isRehearsed(edits []*edit) bool {
	if !slices.ContainsFunc(edits, func(e *edit) bool { return e.set == nil }) {
		return false
	}
	k := keeperOf(s.w, s.original)
	return !slices.ContainsFunc(edits, func(e *edit) bool {
		return e.pod != nil && (k.changeSteps([]string{e.Kind}, e.pod) == nil || k.holds != nil && k.holds.Object == nil)
	})
}

// execute applies steps to a world, as kubectl would to a cluster.
func (k keeper) execute(w *simulate.World, steps []step) (notes []string, err error) {
	for _, s := range steps {
		object, err := k.objectOf(w, s)
		switch {
		case err != nil:
			return nil, err
		case object == nil && s.verb == deletePod:
			continue
		case object == nil:
			return nil, fmt.Errorf("%s %s was not read", s.kind, s.name)
		}

		if s.verb != patchObject {
			if _, err := w.Do(&simulate.Operation{Delete: &simulate.Delete{Object: s.kind + "/" + s.name, Namespace: k.pod.Namespace}}); err != nil {
				return nil, err
			}
			object.SetUID("")
			object.SetResourceVersion("")
			if pod, ok := object.(*v1.Pod); ok && s.verb == recreateObject {
				pod.Status = v1.PodStatus{} // with the names of its claims
			}
		}
		if s.verb == deletePod {
			continue
		}
		done, err := w.Apply(manifest.Assemble("", []metav1.Object{object}))
		if err != nil {
			return nil, err
		}
		notes = append(notes, done.Notes...)
	}
	return notes, nil
}

// objectOf returns the object of a step with its patch applied; nil if the world lacks it.
func (k keeper) objectOf(w *simulate.World, s step) (metav1.Object, error) {
	var object metav1.Object
	switch {
	case s.kind == "pod":
		found, ok := w.Find(k.pod.Namespace, s.name)
		if !ok {
			return nil, nil
		}
		object = found.Object
		if s.verb != deletePod {
			object = k.pod // the twin may have nominated a node for it, or refused it
		}
	case k.holds.Object != nil && strings.EqualFold(k.holds.Kind, s.kind):
		object = k.holds.Object
	case k.made.Object != nil && strings.EqualFold(k.made.Kind, s.kind):
		object = k.made.Object
	default:
		return nil, nil
	}

	if s.patch == "" {
		return object, nil
	}
	before, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	after := reflect.New(reflect.TypeOf(object).Elem()).Interface().(metav1.Object)
	merged, err := strategicpatch.StrategicMergePatch(before, []byte(s.patch), after)
	if err != nil {
		return nil, err
	}
	return after, json.Unmarshal(merged, after)
}

// podsBefore are a workload's pods before a change.
type podsBefore struct {
	running map[types.UID]bool
	pending int
}

// stateOf returns the workload's pods.
func (k keeper) stateOf(w *simulate.World) (of podsBefore) {
	of.running = map[types.UID]bool{}
	for _, f := range w.InNamespace(k.pod.Namespace) {
		switch {
		case !k.isOurs(w, f.Object):
		case isRunning(f):
			of.running[f.Object.UID] = true
		case f.Pod != nil && f.Pod.NodeName == "":
			of.pending++
		}
	}
	return of
}

// isOurs reports whether a pod is the keeper's pod, or belongs to its workload.
func (k keeper) isOurs(w *simulate.World, p *v1.Pod) bool {
	if k.made == nil {
		return p.Name == k.pod.Name
	}
	owner := w.OwnerOf(p)
	return owner != nil && (owner.Ref() == k.holds.Ref() || owner.Ref() == k.made.Ref())
}

func isRunning(f simulate.Found) bool {
	return f.Refused == "" && f.Pod != nil && f.Pod.NodeName != "" && !f.Pod.Terminating
}

// whyNotRunning returns why the commands did not help, or "" if they did. It looks for the pod
// itself and, if the pod was replaced, for a new running pod. More pods must run than before. After
// a rollout, the same number of running pods is enough if fewer pods are pending.
func (k keeper) whyNotRunning(w *simulate.World, before podsBefore, notes []string) string {
	if f, ok := w.Find(k.pod.Namespace, k.pod.Name); ok && f.Object.UID == k.pod.UID && isRunning(f) {
		return ""
	}
	why, now := "", k.stateOf(w)
	fresh := slices.ContainsFunc(slices.Collect(maps.Keys(now.running)), func(uid types.UID) bool { return !before.running[uid] })
	more := len(now.running) - len(before.running)
	for _, f := range w.InNamespace(k.pod.Namespace) {
		switch {
		case !k.isOurs(w, f.Object):
		case f.Refused != "":
			why = f.Refused
		case why == "" && !isRunning(f) && f.Message != "":
			why = f.Message
		}
	}

	switch {
	case more > 0 || more == 0 && fresh && now.pending < before.pending:
		return ""
	case len(notes) > 0:
		return notes[0]
	case why != "":
		return why
	}
	return "the pod would still not run"
}
