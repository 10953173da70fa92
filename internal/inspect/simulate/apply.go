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

// Simulation of kubectl apply. The order of the steps in applySet matters: the manifests are first
// compared with existing objects, then expanded to pods, and only then shown to the core, so that
// existing workloads keep their pods and new ones get theirs.

// applyFiles reads manifests and applies them like kubectl apply -f. It requires a world with Read
// set in its options.
func (o *operations) applyFiles(files Files) (*Done, error) {
	if o.options.Read == nil {
		return nil, fmt.Errorf("%s: no files can be read here", strings.Join(files, ", "))
	}
	set, err := o.options.Read(files, o.workloads.set)
	if err != nil {
		return nil, err
	}
	return o.applySet(set)
}

// applySet applies manifests like kubectl apply: it creates new objects, and scales existing
// workloads or, if their template changed, rolls them out immediately. It expands the set, and the
// world takes over its workloads. The result notes changes kubectl would not make.
func (o *operations) applySet(set *manifest.Set) (*Done, error) {
	done := &Done{}
	set.JobGroups = o.gangs
	// This must precede the expansion, which creates pods from the workloads' final templates and
	// replica counts.
	there := o.workloads.takeOver(set)
	set.Expand(int64(o.options.Seed))
	o.pods.catalog = mergeSets(o.workloads.set, set)
	// Claims, templates and budgets must exist before the pods that need them are created below.
	o.loadApplied(set)
	o.claims.identifyClaims()
	o.budgets.countBudgets()
	// Drop the refusals of earlier operations.
	o.pods.refusals = nil
	for _, n := range set.Nodes {
		if o.nodes.applyNode(n) {
			done.Notes = append(done.Notes,
				fmt.Sprintf("node %s is there already: kubectl apply does not change its status, such as its capacity", n.Name))
		}
	}
	for _, object := range workloadsOf(set) {
		// An existing workload is updated and reuses its pods. Jobs are immutable, so an existing
		// Job is only marked as known and its expanded pods are not created.
		if was := there[object]; was != nil {
			o.controllers.updateWorkload(was, workload.Of(object), set)
		} else if job, ok := object.(*batchv1.Job); ok && o.workloads.table().Named(rules.Job, job.Namespace, job.Name) != nil {
			there[object] = workload.Of(object)
			done.Notes = append(done.Notes, fmt.Sprintf("job %s/%s is there already and is left as it is", job.Namespace, job.Name))
		} else {
			o.workloads.keepWorkload(object)
			if d, ok := object.(*appsv1.Deployment); ok {
				o.workloads.replaceReplicaSets(d, set)
			}
		}
	}
	known := map[types.UID]bool{} // owners whose expanded pods are not created
	for object := range there {
		known[object.GetUID()] = true
	}
	// Expansion creates a ReplicaSet for each Deployment. For an existing Deployment,
	// updateWorkload has already handled the pods, so the pods expanded from the manifest must not
	// be added.
	for _, r := range set.ReplicaSets {
		if owner := metav1.GetControllerOfNoCopy(r); owner != nil && known[owner.UID] {
			known[r.UID] = true
		}
	}
	// Expansion knows only the nodes in the manifests, but DaemonSets cover all nodes of the world.
	for _, d := range set.DaemonSets {
		if known[d.UID] = true; there[d] == nil {
			o.controllers.makeDaemons(d) // for the nodes of the world
		}
	}
	if o.allowed.mustStop() {
		return nil, o.allowed.ended
	}
	for _, p := range set.Pods {
		if ref := metav1.GetControllerOfNoCopy(p); ref != nil && known[ref.UID] {
			continue
		}
		// Expansion may create hundreds of thousands of pods, so check the limits in the loop.
		if o.allowed.mustStop() {
			return nil, o.allowed.ended
		}
		// kubectl apply cannot change pods, except to remove scheduling gates.
		if there := o.pods.named[Name{p.Namespace, p.Name}]; there != nil && o.pods.openGates(there, p) {
			continue
		} else if there != nil {
			done.Notes = append(done.Notes, fmt.Sprintf("pod %s/%s is there already and is left as it is", p.Namespace, p.Name))
			continue
		}
		o.pods.createPod(p.DeepCopy(), false)
	}
	done.Notes = append(done.Notes, o.pods.refusals...)
	return done, nil
}

// mergeSets adds the namespaces and classes of the newer set b to a and returns a catalog of both.
// It modifies a. Of two objects with the same name, the list keeps both, the newer one last.
func mergeSets(a, b *manifest.Set) *admission.Catalog {
	a.Namespaces = append(a.Namespaces, b.Namespaces...)
	a.PriorityClasses = append(a.PriorityClasses, b.PriorityClasses...)
	a.RuntimeClasses = append(a.RuntimeClasses, b.RuntimeClasses...)
	return admission.NewCatalog(a.Namespaces, a.PriorityClasses, a.RuntimeClasses)
}
