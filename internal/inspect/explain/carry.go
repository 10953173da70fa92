// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// This file derives the kubectl commands for a durable change of a pod: a change of the object
// holding the pod's template, with the command required by its kind. Most fields of a pod, and the
// template of a Job, are immutable; the object is then recreated.

// keeper identifies the object that holds the template of a pod. Changes of other objects do not
// last.
//
//	pod of a ReplicaSet of a Deployment   made: ReplicaSet   holds: Deployment
//	pod of a Job of a CronJob             made: Job          holds: CronJob
//	pod of a StatefulSet                  made, holds: StatefulSet
//	bare pod                              both nil
type keeper struct {
	pod *v1.Pod
	// made is the controller that created the pod. holds is the object with the template: made
	// itself or its controller. Both are nil for a pod without a controller.
	made, holds *simulate.Owner
	// above, if any, controls the holder and may revert it, such as an operator.
	above *simulate.Owner
}

// keeperOf finds the keeper of a pod's template, as far as the world includes the objects.
func keeperOf(w *simulate.World, p *v1.Pod) keeper {
	k := keeper{pod: p, made: w.ControllerOf(p)}
	switch {
	case k.made == nil:
		return k
	case k.made.Kind == "Job":
		k.holds = k.made
		if cron := w.ControlledBy(p.Namespace, k.made); cron != nil && cron.Kind == "CronJob" {
			k.holds = cron
			return k
		}
	default:
		k.holds = w.OwnerOf(p)
	}
	k.above = w.ControlledBy(p.Namespace, k.holds)
	return k
}

// holderRef names the object holding the template; empty for a pod without a controller.
func (k keeper) holderRef() string {
	if k.holds == nil {
		return ""
	}
	return k.holds.Ref()
}

// changeNote describes in one sentence where to change the pod.
func (k keeper) changeNote() string {
	switch {
	case k.holds == nil:
		return "The pod has no controller. Most fields of a pod cannot be changed: where a command says replace, it recreates the pod."
	case k.above != nil:
		return fmt.Sprintf("The pod's template is in %s, which %s controls and may set back.", k.holderRef(), k.above.Ref())
	case k.isPaused():
		return fmt.Sprintf("The pod's template is in %s, whose rollout is paused: the commands resume it.", k.holderRef())
	}
	if partition, held := k.heldByPartition(); held {
		return fmt.Sprintf("The pod's template is in %s, whose partition keeps it from this pod: the commands lower it to %d.",
			k.holderRef(), partition)
	}
	return fmt.Sprintf("The pod's template is in %s.", k.holderRef())
}

// inPlace lists the changes accepted by the API server for a pod without a node: removed gates and
// added tolerations.
var inPlace = []string{"RemoveGate", "Tolerate"}

// step is one kubectl command, printed by the command line and executed by a rehearsal.
type step struct {
	verb       verb
	kind, name string
	patch      string // a strategic merge patch
}

type verb int

const (
	patchObject    verb = iota
	deletePod           // if it still exists
	recreateObject      // deletes the object, and creates it with the patch
)

// changeSteps returns the commands that apply alter to the pod, or to the template for its
// replacement. It returns nil if kubectl cannot make the change. kinds are the kinds of the
// changes.
func (k keeper) changeSteps(kinds []string, alter func(*v1.Pod)) []step {
	own := patchOf(k.pod, alter)
	fitting := !slices.ContainsFunc(kinds, func(kind string) bool { return !slices.Contains(inPlace, kind) })
	switch {
	case own == "":
		return nil
	case k.holds == nil && fitting || slices.Equal(kinds, []string{"RemoveGate"}): // gates are removed from the pod, not from its template
		return []step{{patchObject, "pod", k.pod.Name, own}}
	case k.holds == nil:
		return []step{{recreateObject, "pod", k.pod.Name, own}}
	}

	// Only some controllers replace a pending pod when its template changes.
	template := k.templatePatch(alter, own)
	steps := []step{{patchObject, strings.ToLower(k.holds.Kind), k.holds.Name, k.workloadPatch(template)}}
	drop := step{verb: deletePod, kind: "pod", name: k.pod.Name}
	switch k.holds.Kind {
	case "Deployment":
		return steps
	case "DaemonSet":
		if set, ok := k.holds.Object.(*appsv1.DaemonSet); ok && set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			return append(steps, drop)
		}
		return steps
	case "StatefulSet", "ReplicaSet", "ReplicationController":
		return append(steps, drop)
	case "CronJob":
		steps[0].patch = `{"spec":{"jobTemplate":` + inTemplate(template) + `}}`
		return append(steps, k.recreateJob(template)...)
	case "Job": // its template is immutable
		return k.recreateJob(template)
	}
	return nil // not a built-in kind
}

// commandOf formats steps for a shell.
func (k keeper) commandOf(steps []step) string {
	var commands []string
	for _, s := range steps {
		switch at := fmt.Sprintf("%s %s -n %s", s.kind, s.name, k.pod.Namespace); s.verb {
		case patchObject:
			commands = append(commands, "kubectl patch "+at+" -p "+shellQuote(s.patch))
		case deletePod:
			commands = append(commands, "kubectl delete "+at+" --ignore-not-found")
		case recreateObject:
			commands = append(commands, "kubectl get "+at+" -o json | kubectl patch --local -f - --type strategic -p "+
				shellQuote(s.patch)+" -o json | kubectl replace --force -f -")
		}
	}
	return strings.Join(commands, " && ")
}

// changeCommand returns changeSteps as a shell command.
func (k keeper) changeCommand(kinds []string, alter func(*v1.Pod)) string {
	return k.commandOf(k.changeSteps(kinds, alter))
}

// inTemplate turns the patch of a pod into one of a workload's template.
func inTemplate(patch string) string { return `{"spec":{"template":` + patch + `}}` }

// workloadPatch patches the workload's template and propagates the change to the pod: it resumes a
// paused Deployment, and lowers the partition of a StatefulSet to the pod's ordinal.
func (k keeper) workloadPatch(template string) string {
	if k.isPaused() {
		return `{"spec":{"paused":false,"template":` + template + `}}`
	}
	if partition, held := k.heldByPartition(); held {
		return fmt.Sprintf(`{"spec":{"template":%s,"updateStrategy":{"rollingUpdate":{"partition":%d}}}}`, template, partition)
	}
	return inTemplate(template)
}

// isPaused reports whether the pod's Deployment is paused and therefore does not roll out its
// template.
func (k keeper) isPaused() bool {
	d, ok := k.holds.Object.(*appsv1.Deployment)
	return ok && d.Spec.Paused
}

// heldByPartition reports whether the pod's StatefulSet creates the pod from the old template, and
// returns the highest partition at which it would use the new template.
func (k keeper) heldByPartition() (partition int, held bool) {
	set, ok := k.holds.Object.(*appsv1.StatefulSet)
	if !ok || set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return 0, false
	}
	ordinal := workload.OrdinalOf(set, k.pod.Name)
	return ordinal - workload.FirstOrdinal(set), workload.KeepsRevision(set, ordinal)
}

// recreateJob recreates the Job, because its template is immutable. The API server derives the
// labels and the selector from the new Job's UID.
func (k keeper) recreateJob(template string) []step {
	const again = `{"spec":{"selector":null,"template":{"metadata":{"labels":` +
		`{"controller-uid":null,"batch.kubernetes.io/controller-uid":null}}}}}`
	patch, err := strategicpatch.MergeStrategicMergeMapPatchUsingLookupPatchMeta(podSchema, parseFields(again),
		parseFields(inTemplate(template)))
	if err != nil {
		return nil
	}
	return []step{{recreateObject, "job", k.made.Name, jsonOf(patch)}}
}

// podSchema defines how to merge lists in a pod template: containers by name, tolerations as a
// whole.
var podSchema = func() strategicpatch.LookupPatchMeta {
	schema, err := strategicpatch.NewPatchMetaFromStruct(podInTemplate{})
	if err != nil {
		panic(err)
	}
	return schema
}()

// podInTemplate has the patched fields of a workload. Its tags must match the API's.
type podInTemplate struct {
	Spec struct {
		Template v1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// templatePatch returns the patch of the pod's template, without additions of the API server to the
// pod, such as its priority and further tolerations. If the template was not read, or if it differs
// from the pod (see sameContainers), it returns the pod's own patch (own) without the fields set by
// admission.
func (k keeper) templatePatch(alter func(*v1.Pod), own string) string {
	bare := func(p *v1.Pod) { p.Spec.Priority, p.Spec.PreemptionPolicy = nil, nil } // admission sets them
	if k.made.Template == nil || !sameContainers(&k.made.Template.Spec, &k.pod.Spec) {
		patch := parseFields(own)
		if spec, ok := patch["spec"].(map[string]any); ok {
			delete(spec, "priority")
			delete(spec, "preemptionPolicy")
		}
		return jsonOf(patch)
	}
	template := (&v1.Pod{ObjectMeta: k.made.Template.ObjectMeta, Spec: k.made.Template.Spec}).DeepCopy()
	bare(template)
	return cmp.Or(patchOf(template, func(p *v1.Pod) { alter(p); bare(p) }), own)
}

// sameContainers reports whether both specs have the same containers at the same positions, the
// same number of topology spread constraints, and the same affinity. An edit identifies elements of
// these lists by index.
func sameContainers(a, b *v1.PodSpec) bool {
	sameName := func(a, b v1.Container) bool { return a.Name == b.Name }
	return slices.EqualFunc(a.Containers, b.Containers, sameName) && slices.EqualFunc(a.InitContainers, b.InitContainers, sameName) &&
		len(a.TopologySpreadConstraints) == len(b.TopologySpreadConstraints) && reflect.DeepEqual(a.Affinity, b.Affinity)
}

// patchOf returns the strategic merge patch for the change; empty if no patch achieves it. It
// applies the patch to verify the result: some lists cannot be patched as intended.
func patchOf(p *v1.Pod, alter func(*v1.Pod)) string {
	after := p.DeepCopy()
	alter(after)
	made := mergePatch(p, after, v1.Pod{})
	if len(made) == 0 || string(made) == "{}" {
		return ""
	}
	short := jsonOf(withoutOrder(parseFields(string(made))))
	merged, err := strategicpatch.StrategicMergePatch([]byte(jsonOf(p)), []byte(short), v1.Pod{})
	var got v1.Pod
	if err != nil || json.Unmarshal(merged, &got) != nil || !reflect.DeepEqual(parseFields(jsonOf(&got)), parseFields(jsonOf(after))) {
		return ""
	}
	return short
}

// withoutOrder removes the list order directives ($setElementOrder) from value, in place: they
// double the length of a command and do not matter here.
func withoutOrder(value any) any {
	switch v := value.(type) {
	case map[string]any:
		maps.DeleteFunc(v, func(key string, _ any) bool { return strings.HasPrefix(key, "$setElementOrder/") })
		for key := range v {
			v[key] = withoutOrder(v[key])
		}
	case []any:
		for i := range v {
			v[i] = withoutOrder(v[i])
		}
	}
	return value
}

// parseFields parses a JSON object; nil for anything else.
func parseFields(document string) (fields map[string]any) {
	_ = json.Unmarshal([]byte(document), &fields)
	return fields
}

// jsonOf formats a value as JSON; empty if marshalling fails.
func jsonOf(document any) string {
	out, _ := json.Marshal(document)
	return string(out)
}

// shellQuote quotes a word for a POSIX shell.
func shellQuote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
