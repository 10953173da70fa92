package simulate

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// applyFiles is kubectl apply -f.
func (w *World) applyFiles(files Files) (*Done, error) {
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
	there := w.workloads.takeOver(set)
	set.Expand(int64(w.options.Seed))
	w.pods.catalog = mergeSets(w.workloads.set, set)
	w.loadApplied(set)
	w.claims.identifyClaims()
	w.budgets.countBudgets()
	w.pods.refusals = nil
	for _, n := range set.Nodes {
		if w.nodes.applyNode(n) {
			done.Notes = append(done.Notes,
				fmt.Sprintf("node %s is there already: kubectl apply does not change its status, such as its capacity", n.Name))
		}
	}
	for _, object := range workloadsOf(set) {
		if was := there[object]; was != nil {
			w.controllers.updateWorkload(was, workload.Of(object), set)
		} else if job, ok := object.(*batchv1.Job); ok && w.workloads.Named(rules.Job, job.Namespace, job.Name) != nil {
			there[object] = workload.Of(object)
			done.Notes = append(done.Notes, fmt.Sprintf("job %s/%s is there already and is left as it is", job.Namespace, job.Name))
		} else {
			w.workloads.keepWorkload(object)
			if d, ok := object.(*appsv1.Deployment); ok {
				w.workloads.replaceReplicaSets(d, set)
			}
		}
	}
	known := map[types.UID]bool{} // owners whose expanded pods are not created
	for object := range there {
		known[object.GetUID()] = true
	}
	for _, r := range set.ReplicaSets {
		if owner := metav1.GetControllerOfNoCopy(r); owner != nil && known[owner.UID] {
			known[r.UID] = true
		}
	}
	for _, d := range set.DaemonSets {
		if known[d.UID] = true; there[d] == nil {
			w.controllers.makeDaemons(d) // for the nodes of the world
		}
	}
	if w.allowed.mustStop() {
		return nil, w.allowed.ended
	}
	for _, p := range set.Pods {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil && known[ref.UID] {
			continue
		}
		if w.allowed.mustStop() {
			return nil, w.allowed.ended
		}
		if there := w.pods.named[Name{p.Namespace, p.Name}]; there != nil && w.pods.openGates(there, p) {
			continue
		} else if there != nil {
			done.Notes = append(done.Notes, fmt.Sprintf("pod %s/%s is there already and is left as it is", p.Namespace, p.Name))
			continue
		}
		w.pods.createPod(p.DeepCopy(), false)
	}
	done.Notes = append(done.Notes, w.pods.refusals...)
	return done, nil
}

// mergeSets adds the namespaces and classes of b, the newer set, to a, and returns a catalog of
// them.
func mergeSets(a, b *manifest.Set) *admission.Catalog {
	a.Namespaces = append(a.Namespaces, b.Namespaces...)
	a.PriorityClasses = append(a.PriorityClasses, b.PriorityClasses...)
	a.RuntimeClasses = append(a.RuntimeClasses, b.RuntimeClasses...)
	return admission.NewCatalog(a.Namespaces, a.PriorityClasses, a.RuntimeClasses)
}
