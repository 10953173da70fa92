package simulate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
)

// deploy is kubectl apply -f.
func (w *World) deploy(files Files) (*Done, error) {
	if w.options.Read == nil {
		return nil, fmt.Errorf("%s: no files can be read here", strings.Join(files, ", "))
	}
	set, err := w.options.Read(files)
	if err != nil {
		return nil, err
	}
	return w.Apply(set)
}

// Apply applies manifests as kubectl apply does: new objects are created; existing workloads are
// scaled or, if their template changed, rolled out at once.
func (w *World) Apply(set *manifest.Set) (*Done, error) {
	done := &Done{}
	set.JobGroups = w.gangs
	set.Expand(int64(w.options.Seed))
	w.catalog = merged(w.set, set)
	w.load(set)
	w.identifyClaims()
	for _, n := range set.Nodes {
		w.applyNode(n)
	}
	known := map[types.UID]bool{} // workloads whose expanded pods are skipped
	for _, d := range set.Deployments {
		w.applyWorkload(&workload{"Deployment", d, &d.Spec.Template, d.Spec.Replicas}, set, known)
	}
	for _, s := range set.StatefulSets {
		w.applyWorkload(&workload{"StatefulSet", s, &s.Spec.Template, s.Spec.Replicas}, set, known)
	}
	for _, j := range set.Jobs {
		if old, _ := w.workloadNamed("job/"+j.Name, j.Namespace); old == nil {
			w.set.Jobs = append(w.set.Jobs, j)
			continue
		}
		known[j.UID] = true
		done.Notes = append(done.Notes, fmt.Sprintf("job %s/%s is there already and is left as it is", j.Namespace, j.Name))
	}
	for _, d := range set.DaemonSets {
		known[d.UID] = true // its pods are made here, for the nodes of the world
		w.applyDaemonSet(d)
	}
	if w.halted() {
		return nil, w.Err()
	}
	for _, p := range set.Pods {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil && known[ref.UID] {
			continue
		}
		if w.halted() {
			return nil, w.Err()
		}
		if there := w.pods[Name{p.Namespace, p.Name}]; there != nil && w.openGates(there, p) {
			continue
		} else if there != nil {
			done.Notes = append(done.Notes, fmt.Sprintf("pod %s/%s is there already and is left as it is", p.Namespace, p.Name))
			continue
		}
		if w.create(p.DeepCopy()) == nil {
			done.Notes = append(done.Notes, w.timeline[len(w.timeline)-1].Message)
		}
	}
	w.countBudgets()
	return done, nil
}

// applyDaemonSet takes in a new DaemonSet, or rolls out one that is there if its template changed.
func (w *World) applyDaemonSet(d *appsv1.DaemonSet) {
	if old, _ := w.workloadNamed("daemonset/"+d.Name, d.Namespace); old != nil {
		if reflect.DeepEqual(old.template.Spec, d.Spec.Template.Spec) {
			return
		}
		for _, p := range w.podsOf(old) {
			w.drop(p, ByRollout, "DaemonSet/"+d.Name)
		}
		d.UID = old.object.GetUID()
		w.set.DaemonSets = slices.DeleteFunc(w.set.DaemonSets, func(o *appsv1.DaemonSet) bool { return o == old.object })
	}
	w.set.DaemonSets = append(w.set.DaemonSets, d)
	for _, name := range w.nodeNames() {
		if w.halted() {
			return
		}
		if manifest.RunsDaemon(d, w.machines[name].object) {
			p := w.podOf(d, "DaemonSet", &d.Spec.Template)
			pinTo(p, name)
			w.create(p)
		}
	}
}

// openGates removes scheduling gates from a pod that is applied without them. The API allows no
// other change of gates.
func (w *World) openGates(p *pod, applied *v1.Pod) bool {
	if p.NodeName != "" || len(applied.Spec.SchedulingGates) >= len(p.object.Spec.SchedulingGates) {
		return false
	}
	object := *p.object
	object.Spec.SchedulingGates = applied.Spec.SchedulingGates
	p.object, p.Pod = &object, w.c.Pending(&object)
	if w.pending[p.UID] == p {
		w.show(cycle.Pods, &object)
	} else if p.fresh != nil {
		p.fresh = &object
	}
	return true
}

func (w *World) applyNode(n *v1.Node) {
	if m := w.machines[n.Name]; m != nil {
		w.change(n.Name, func(old *v1.Node) {
			for key, value := range n.Labels {
				metav1.SetMetaDataLabel(&old.ObjectMeta, key, value)
			}
			old.Spec.Taints, old.Spec.Unschedulable = n.Spec.Taints, n.Spec.Unschedulable
		})
		return
	}
	w.addMachine(n)
	if w.health != nil {
		w.health.see(w, w.machines[n.Name])
	}
	w.tell(Event{Kind: "NodeAdded", Node: n.Name})
}

// applyWorkload updates an existing workload, or adds a new one. It adds to known the owners whose
// expanded pods must not be created.
func (w *World) applyWorkload(l *workload, set *manifest.Set, known map[types.UID]bool) {
	old, _ := w.workloadNamed(strings.ToLower(l.kind)+"/"+l.object.GetName(), l.object.GetNamespace())
	switch o := l.object.(type) {
	case *appsv1.Deployment:
		if old == nil {
			w.set.Deployments = append(w.set.Deployments, o)
		}
		for _, r := range set.ReplicaSets {
			if ref := metav1.GetControllerOfNoCopy(r); ref == nil || ref.UID != o.UID {
				continue
			}
			if old == nil || !reflect.DeepEqual(old.template.Spec, l.template.Spec) {
				w.set.ReplicaSets = append(w.set.ReplicaSets, r)
			} else {
				known[r.UID] = true
			}
		}
	case *appsv1.StatefulSet:
		if old == nil {
			w.set.StatefulSets = append(w.set.StatefulSets, o)
		} else if reflect.DeepEqual(old.template.Spec, l.template.Spec) {
			known[o.UID] = true
		}
	}
	switch {
	case old == nil:
	case reflect.DeepEqual(old.template.Spec, l.template.Spec):
		w.setReplicas(old, int(*l.replicas))
	default:
		for _, p := range w.podsOf(old) {
			w.drop(p, ByRollout, l.kind+"/"+l.object.GetName())
		}
	}
}

// merged adds the namespaces and classes of b, the newer set, to a, and returns a catalog of them.
func merged(a, b *manifest.Set) *admission.Catalog {
	a.Namespaces = append(a.Namespaces, b.Namespaces...)
	a.PriorityClasses = append(a.PriorityClasses, b.PriorityClasses...)
	a.RuntimeClasses = append(a.RuntimeClasses, b.RuntimeClasses...)
	return admission.NewCatalog(a.Namespaces, a.PriorityClasses, a.RuntimeClasses)
}
