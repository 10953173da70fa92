package explain

import (
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
)

// keeper keeps the template that a pod is made from. What is changed elsewhere does not last.
type keeper struct {
	pod *v1.Pod
	// made is the controller that made the pod, and holds has the template: the same, or what made
	// the controller in turn. Both are nil for a pod without controller.
	made, holds *simulate.Owner
	// above, if any, controls the holder and may set it back.
	above *simulate.Owner
}

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

// holderRef names the object that keeps the template; empty for a pod without controller.
func (k keeper) holderRef() string {
	if k.holds == nil {
		return ""
	}
	return k.holds.Ref()
}

// changeNote says where changes of the pod are made.
func (k keeper) changeNote() string {
	switch {
	case k.holds == nil:
		return "The pod has no controller. Most fields of a pod cannot be changed: where a command says replace, it recreates the pod."
	case k.above != nil:
		return fmt.Sprintf("The pod's template is in %s, which %s controls and may set back.", k.holderRef(), k.above.Ref())
	}
	return fmt.Sprintf("The pod's template is in %s.", k.holderRef())
}

// inPlace are the changes that the API server accepts in a pod that has no node: of tolerations and
// gates it accepts some.
var inPlace = []string{"RemoveGate", "Tolerate"}

// changeCommand returns what carries out the changes that alter makes to the pod, with kubectl
// alone, so that the pod runs; empty if that takes more.
func (k keeper) changeCommand(kinds []string, alter func(*v1.Pod)) string {
	own := patchOf(k.pod, alter)
	fitting := !slices.ContainsFunc(kinds, func(kind string) bool { return !slices.Contains(inPlace, kind) })
	switch {
	case own == "":
		return ""
	case k.holds == nil && fitting || slices.Equal(kinds, []string{"RemoveGate"}): // a gate is removed from each pod
		return k.patchCommand("pod", k.pod.Name, own)
	case k.holds == nil:
		return k.recreateCommand("pod", k.pod.Name, own)
	}

	template := k.templatePatch(alter, own)
	switch k.holds.Kind {
	case "Deployment":
		return k.patchCommand("deployment", k.holds.Name, inTemplate(template))
	case "DaemonSet":
		roll := k.patchCommand("daemonset", k.holds.Name, inTemplate(template))
		if set, ok := k.holds.Object.(*appsv1.DaemonSet); ok && set.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType {
			roll += k.deleteCommand()
		}
		return roll
	case "StatefulSet", "ReplicaSet", "ReplicationController": // these do not replace a pending pod
		return k.patchCommand(strings.ToLower(k.holds.Kind), k.holds.Name, inTemplate(template)) + k.deleteCommand()
	case "CronJob":
		return k.patchCommand("cronjob", k.holds.Name, `{"spec":{"jobTemplate":`+inTemplate(template)+`}}`) + " && " +
			k.recreateJob(template)
	case "Job":
		return k.recreateJob(template)
	}
	return "" // of a kind that is not Kubernetes' own
}

func inTemplate(patch string) string { return `{"spec":{"template":` + patch + `}}` }

func (k keeper) patchCommand(kind, name, patch string) string {
	return fmt.Sprintf("kubectl patch %s %s -n %s -p %s", kind, name, k.pod.Namespace, shellQuote(patch))
}

func (k keeper) deleteCommand() string {
	return fmt.Sprintf(" && kubectl delete pod %s -n %s --ignore-not-found", k.pod.Name, k.pod.Namespace)
}

func (k keeper) recreateCommand(kind, name, patch string) string {
	return fmt.Sprintf("kubectl get %s %s -n %s -o json | kubectl patch --local -f - --type strategic -p %s -o json | "+
		"kubectl replace --force -f -",
		kind, name, k.pod.Namespace, shellQuote(patch))
}

// recreateJob creates the Job anew, for its template cannot be changed. The labels and the selector
// that name the Job's UID are left to the API server.
func (k keeper) recreateJob(template string) string {
	const anew = `{"spec":{"selector":null,"template":{"metadata":{"labels":` +
		`{"controller-uid":null,"batch.kubernetes.io/controller-uid":null}}}}}`
	patch, err := strategicpatch.MergeStrategicMergeMapPatchUsingLookupPatchMeta(podSchema, parseFields(anew),
		parseFields(inTemplate(template)))
	if err != nil {
		return ""
	}
	return k.recreateCommand("job", k.made.Name, jsonOf(patch))
}

var podSchema = func() strategicpatch.LookupPatchMeta {
	schema, err := strategicpatch.NewPatchMetaFromStruct(podInTemplate{})
	if err != nil {
		panic(err)
	}
	return schema
}()

// podInTemplate has the fields of a workload that are patched.
type podInTemplate struct {
	Spec struct {
		Template v1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// templatePatch is the patch of the pod's template: what the API server adds to a pod, such as its
// priority and further tolerations, does not belong into it. Where the template was not read, or
// differs in what the change is about, it is that of the pod.
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
	patch := patchOf(template, func(p *v1.Pod) { alter(p); bare(p) })
	if patch == "" {
		return own
	}
	return patch
}

// sameContainers reports whether changes that are made to items by their position mean the same in
// both.
func sameContainers(a, b *v1.PodSpec) bool {
	names := func(list []v1.Container) (names []string) {
		for i := range list {
			names = append(names, list[i].Name)
		}
		return names
	}
	return slices.Equal(names(a.Containers), names(b.Containers)) && slices.Equal(names(a.InitContainers), names(b.InitContainers)) &&
		len(a.TopologySpreadConstraints) == len(b.TopologySpreadConstraints) && reflect.DeepEqual(a.Affinity, b.Affinity)
}

// patchOf is the strategic merge patch that makes the change; empty if there is none that does.
func patchOf(p *v1.Pod, alter func(*v1.Pod)) string {
	after := p.DeepCopy()
	alter(after)
	made := mergePatch(p, after, v1.Pod{})
	before, err := json.Marshal(p)
	if err != nil || len(made) == 0 || string(made) == "{}" {
		return ""
	}
	short := jsonOf(withoutOrder(parseFields(string(made))))
	merged, err := strategicpatch.StrategicMergePatch(before, []byte(short), v1.Pod{})
	var got v1.Pod
	if err != nil || json.Unmarshal(merged, &got) != nil || !reflect.DeepEqual(parseFields(jsonOf(&got)), parseFields(jsonOf(after))) {
		return ""
	}
	return short
}

// withoutOrder removes what says in which order the items of a list are to stand.
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

func parseFields(document string) (fields map[string]any) {
	_ = json.Unmarshal([]byte(document), &fields)
	return fields
}

func jsonOf(document any) string {
	out, err := json.Marshal(document)
	if err != nil {
		return ""
	}
	return string(out)
}

// shellQuote is a word for a shell.
func shellQuote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }
