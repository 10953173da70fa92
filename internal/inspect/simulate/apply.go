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

// How kubectl apply changes the world. The order of the steps in applySet matters: what the
// manifests name is first compared with what exists, then expanded to pods, and only then
// shown to the core, so that existing workloads keep their pods and new ones get theirs.

// applyFiles reads manifests and applies them, as kubectl apply -f does. Only a world whose
// options have Read can read files.
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

// applySet applies manifests as kubectl apply does: new objects are created; existing
// workloads are scaled or, if their template changed, rolled out at once. The set is
// expanded, and its workloads belong to the world afterwards. What kubectl would leave alone
// is noted in the result.
func (o *operations) applySet(set *manifest.Set) (*Done, error) {
	done := &Done{}
	set.JobGroups = o.gangs
	// Before the expansion: the pods are made from the workloads' final templates and replica
	// counts.
	there := o.workloads.takeOver(set)
	set.Expand(int64(o.options.Seed))
	o.pods.catalog = mergeSets(o.workloads.set, set)
	// Claims, templates and budgets have to exist before the pods that need them are created
	// below.
	o.loadApplied(set)
	o.claims.identifyClaims()
	o.budgets.countBudgets()
	// Those of earlier operations are not of this one.
	o.pods.refusals = nil
	for _, n := range set.Nodes {
		if o.nodes.applyNode(n) {
			done.Notes = append(done.Notes,
				fmt.Sprintf("node %s is there already: kubectl apply does not change its status, such as its capacity", n.Name))
		}
	}
	for _, object := range workloadsOf(set) {
		// An existing workload is updated and reuses its pods. Jobs cannot be changed, so an
		// existing one is only marked as known, and its expanded pods are not created.
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
	// Expansion makes a ReplicaSet for each Deployment. Where the Deployment existed,
	// updateWorkload has dealt with its pods, and those that were expanded from the manifest
	// must not be added to them.
	for _, r := range set.ReplicaSets {
		if owner := metav1.GetControllerOfNoCopy(r); owner != nil && known[owner.UID] {
			known[r.UID] = true
		}
	}
	// The expansion knows only the nodes of the manifests. DaemonSets cover all nodes of the
	// world.
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
		// The expanded pods can be hundreds of thousands, so the limits apply in between.
		if o.allowed.mustStop() {
			return nil, o.allowed.ended
		}
		// Pods cannot be changed by kubectl apply, except for the removal of scheduling
		// gates.
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

// mergeSets adds the namespaces and classes of b, the newer set, to a, and returns a catalog
// of both. It changes a. Where both have an object of one name, both stay in the list, the
// newer one behind.
func mergeSets(a, b *manifest.Set) *admission.Catalog {
	a.Namespaces = append(a.Namespaces, b.Namespaces...)
	a.PriorityClasses = append(a.PriorityClasses, b.PriorityClasses...)
	a.RuntimeClasses = append(a.RuntimeClasses, b.RuntimeClasses...)
	return admission.NewCatalog(a.Namespaces, a.PriorityClasses, a.RuntimeClasses)
}
