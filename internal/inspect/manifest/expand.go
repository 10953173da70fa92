// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package manifest

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Expand creates the missing pods of workloads like their controllers would. It covers Deployments
// (by adding ReplicaSets), ReplicaSets, ReplicationControllers, StatefulSets (with the claims of
// their volumes), DaemonSets and Jobs. A StatefulSet's terminated pod is replaced. In the order of
// Pods, new pods take the position of their workload. Names are generated from the seed: the same
// input and seed give the same pods.
//
// Some controllers would create pods only after other pods run: an ordered StatefulSet creates its
// pods one by one, and a Job only as many as its parallelism allows. A StatefulSet is expanded
// completely, since the placement of all its pods matters; a Job is not.
//
// For example, a Deployment web with 3 replicas in a hand-written file gives
//
//	ReplicaSet web-<hash>            hash as the Deployment controller computes it
//	Pod web-<hash>-<five letters>    three of them, pending, owned by the ReplicaSet
func (s *Set) Expand(seed int64) {
	s.defaultReplicas()
	e := &expansion{
		set:     s,
		rng:     rand.New(rand.NewPCG(uint64(seed), 0)),
		names:   map[types.NamespacedName]bool{},
		byOwner: map[rules.Owner][]*v1.Pod{},
		byName:  map[ownerName][]*v1.Pod{},
		gone:    map[*v1.Pod]bool{},
	}

	for _, pod := range s.Pods {
		e.names[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = true
		if ref := metav1.GetControllerOfNoCopy(pod); ref != nil {
			owner := rules.OwnerOf(pod)
			e.byOwner[owner] = append(e.byOwner[owner], pod)
			name := ownerName{rules.KindOf(ref), types.NamespacedName{Namespace: pod.Namespace, Name: ref.Name}}
			e.byName[name] = append(e.byName[name], pod)
		}
	}

	// Deployments first: they create ReplicaSets, which create pods.
	e.expandDeployments()
	for i, rs := range s.ReplicaSets {
		e.expandReplicas(expanded{workload.Of(rs), s.places["ReplicaSet"][i]})
	}
	for i, rc := range s.ReplicationControllers {
		e.expandReplicas(expanded{workload.Of(rc), s.places["ReplicationController"][i]})
	}
	e.statefulSets()
	e.daemonSets()
	e.expandJobs()
	e.mergePods()
}

// defaultReplicas sets unset numbers of replicas to one. Before Expand they stay unset, because a
// workload reapplied without a number keeps its current number: kubectl apply changes only fields
// in the manifest.
func (s *Set) defaultReplicas() {
	for _, object := range s.Controllers() {
		if replicas := workload.ReplicasOf(object); replicas != nil {
			rules.SetDefault(replicas, 1)
		}
	}
}

// expansion is the state of Expand: the pods of the input, and the pods to add and to remove.
type expansion struct {
	set     *Set
	rng     *rand.Rand
	names   map[types.NamespacedName]bool // names of all pods, old and new
	byOwner map[rules.Owner][]*v1.Pod     // pods of the input by controller
	// byName indexes the same pods by kind and name of the controller, for workloads from
	// hand-written files without a UID.
	byName map[ownerName][]*v1.Pod
	made   []madePod        // new pods
	gone   map[*v1.Pod]bool // pods of the input deleted by their controllers
}

// ownerName identifies a controller by kind, namespace and name.
type ownerName struct {
	schema.GroupKind
	types.NamespacedName
}

// madePod is a pod with the place that determines its position in Pods.
type madePod struct {
	pod *v1.Pod
	at  place
}

// expanded is a workload and its place in the input.
type expanded struct {
	*workload.Workload
	at place
}

// ownedPods returns the workload's pods in the input. For a workload from a hand-written file,
// which lacks a UID, it finds the pods by name, assigns a UID, and makes the pods refer to it.
func (e *expansion) ownedPods(w expanded) []*v1.Pod {
	if w.Object.GetUID() != "" {
		return e.byOwner[w.Owner()]
	}
	name, kind := types.NamespacedName{Namespace: w.Object.GetNamespace(), Name: w.Object.GetName()}, w.Kind.GroupKind()
	w.Object.SetUID(uidOf(w.Kind.Kind, w.Object))
	pods := e.byName[ownerName{kind, name}]
	for _, pod := range pods {
		adopt(pod, w.Object.GetUID())
	}
	return pods
}

// adopt makes an object refer to its controller by the new UID. It copies the list of references,
// which may be shared with other objects.
func adopt(object metav1.Object, uid types.UID) {
	refs := slices.Clone(object.GetOwnerReferences())
	for i := range refs {
		if refs[i].Controller != nil && *refs[i].Controller {
			refs[i].UID = uid
		}
	}
	object.SetOwnerReferences(refs)
}

// uidOf returns a reproducible UID, so that results can be compared. It is a UUID of version 8,
// which has implementation-defined content.
func uidOf(kind string, object metav1.Object) types.UID {
	sum := sha256.Sum256([]byte(kind + "/" + object.GetNamespace() + "/" + object.GetName()))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // UUID version 8
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}

// activePods returns the pods counted by a controller, which are neither terminated nor
// terminating. It does not modify the list.
func activePods(pods []*v1.Pod) []*v1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(pod *v1.Pod) bool {
		return rules.IsTerminal(pod) || rules.IsTerminating(pod)
	})
}

// addPod adds a named pod.
func (e *expansion) addPod(pod *v1.Pod, at place) {
	e.names[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = true
	e.made = append(e.made, madePod{pod, at})
}

// removePod removes a pod of the input, which frees its name. mergePods omits it.
func (e *expansion) removePod(pod *v1.Pod) {
	delete(e.names, types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
	e.gone[pod] = true
}

// addNamed names a pod like the API server's generateName, by five letters after a prefix, and adds
// it. The letters are from upstream's rand.String and form no words; a taken name is retried.
func (e *expansion) addNamed(pod *v1.Pod, prefix string, at place) {
	pod.GenerateName = prefix
	// A name has at most 63 characters, so the prefix is truncated.
	const most, letters = 63, "bcdfghjklmnpqrstvwxz2456789"
	base := prefix[:min(len(prefix), most-5)]
	for {
		name := []byte(base)
		for range 5 {
			name = append(name, letters[e.rng.IntN(len(letters))])
		}
		if pod.Name = string(name); !e.names[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] {
			break
		}
	}
	e.addPod(pod, at)
}

// mergePods merges the new pods in the order of the input. Pods of one workload have one place, and
// the stable sort keeps their order of creation.
func (e *expansion) mergePods() {
	s := e.set
	all := make([]madePod, 0, len(s.Pods)+len(e.made))
	for i, pod := range s.Pods {
		if !e.gone[pod] {
			all = append(all, madePod{pod, s.places["Pod"][i]})
		}
	}
	all = append(all, e.made...)
	slices.SortStableFunc(all, func(a, b madePod) int { return int(a.at.order) - int(b.at.order) })
	s.Pods, s.places["Pod"] = make([]*v1.Pod, len(all)), make([]place, len(all))
	for i, m := range all {
		s.Pods[i], s.places["Pod"][i] = m.pod, m.at
	}
}

// expandDeployments provides each Deployment with ReplicaSets for all its replicas: the ReplicaSets
// in the input, or a new one. If the ReplicaSets have fewer replicas than the Deployment, as while
// scaling up, the newest gets the missing replicas. If they have more, as during a rollout, they
// stay unchanged.
func (e *expansion) expandDeployments() {
	s := e.set
	byOwner, byName := map[rules.Owner][]*appsv1.ReplicaSet{}, map[types.NamespacedName][]*appsv1.ReplicaSet{}
	for _, rs := range s.ReplicaSets {
		// Match by UID or by name: Deployments of hand-written files lack a UID.
		if ref := metav1.GetControllerOfNoCopy(rs); rules.KindOf(ref) == rules.Deployment {
			byOwner[rules.OwnerOf(rs)] = append(byOwner[rules.OwnerOf(rs)], rs)
			name := types.NamespacedName{Namespace: rs.Namespace, Name: ref.Name}
			byName[name] = append(byName[name], rs)
		}
	}

	for i, d := range s.Deployments {
		own := byOwner[rules.AsOwner(rules.Deployment, d)]
		// Hand-written files lack UIDs: find the ReplicaSets by name, and make them refer to the
		// new UID.
		if d.UID == "" {
			own = byName[types.NamespacedName{Namespace: d.Namespace, Name: d.Name}]
			d.UID = uidOf("Deployment", d)
			for _, rs := range own {
				adopt(rs, d.UID)
			}
		}
		// A Deployment without any ReplicaSet is new.
		if len(own) == 0 {
			s.ReplicaSets = append(s.ReplicaSets, workload.NewReplicaSet(d))
			s.places["ReplicaSet"] = append(s.places["ReplicaSet"], s.places["Deployment"][i])
			continue
		}
		// If the Deployment was scaled up, its ReplicaSets may not have followed yet.
		missing := *d.Spec.Replicas
		for _, rs := range own {
			missing -= *rs.Spec.Replicas
		}
		if missing > 0 {
			newest := slices.MaxFunc(own,
				func(a, b *appsv1.ReplicaSet) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
			newest.Spec.Replicas = new(*newest.Spec.Replicas + missing)
		}
	}
}

// expandReplicas creates the pods missing from a workload. It adopts the existing pods of a
// workload being deleted, but creates none.
func (e *expansion) expandReplicas(w expanded) {
	own := activePods(e.ownedPods(w))
	if w.Object.GetDeletionTimestamp() != nil {
		return
	}
	for range min(int(*w.Replicas), workload.Most) - len(own) {
		e.addNamed(w.NewPod(), w.Object.GetName()+"-", w.at)
	}
}

// daemonSets creates the missing pods of all DaemonSets: one pod for each eligible node of the
// input that lacks one. A terminating pod still counts for its node, because the controller waits
// for its end.
func (e *expansion) daemonSets() {
	for i, set := range e.set.DaemonSets {
		// A DaemonSet being deleted creates no pods.
		if set.DeletionTimestamp != nil {
			continue
		}
		w := expanded{workload.Of(set), e.set.places["DaemonSet"][i]}
		served := map[string]bool{}
		for _, pod := range e.ownedPods(w) {
			if !rules.IsTerminal(pod) {
				served[workload.DaemonNode(pod)] = true
			}
		}

		// Parse the template once for all nodes.
		wants := workload.NodesOf(set)
		for _, node := range e.set.Nodes {
			if !served[node.Name] && wants(node) {
				e.addNamed(workload.DaemonPod(set, node.Name), set.Name+"-", w.at)
			}
		}
	}
}

// statefulSets creates the missing pods of all StatefulSets, each named after its ordinal, and
// their claims. Like the controller, it reuses existing claims, so that a pod keeps its volume.
func (e *expansion) statefulSets() {
	class := admission.DefaultStorageClass(e.set.StorageClasses)
	claims := map[types.NamespacedName]bool{}
	for _, claim := range e.set.PersistentVolumeClaims {
		claims[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = true
	}
	for i, set := range e.set.StatefulSets {
		if set.DeletionTimestamp != nil {
			continue
		}
		w := expanded{workload.Of(set), e.set.places["StatefulSet"][i]}
		for _, pod := range e.ownedPods(w) { // the loop below looks up the remaining pods by name
			if rules.IsTerminal(pod) && !rules.IsTerminating(pod) && len(pod.Finalizers) == 0 {
				e.removePod(pod) // the controller replaces it under the same name
			}
		}
		// Create the lowest missing ordinals: pods are identified by name, whatever created them.
		first := workload.FirstOrdinal(set)
		for ordinal := first; ordinal < first+min(int(*set.Spec.Replicas), workload.Most); ordinal++ {
			pod, own := workload.StatefulPod(set, ordinal)
			if e.names[types.NamespacedName{Namespace: set.Namespace, Name: pod.Name}] {
				continue
			}
			e.addPod(pod, w.at)
			for _, claim := range own {
				id := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
				// Two sets share a claim's name only by mistake; create the claim once.
				if !claims[id] {
					claims[id] = true
					admission.Claim(claim, class)
					e.set.PersistentVolumeClaims = append(e.set.PersistentVolumeClaims, claim)
					e.set.places["PersistentVolumeClaim"] = append(e.set.places["PersistentVolumeClaim"], w.at)
				}
			}
		}
	}
}

// expandJobs creates the pods that the Job controller would create now: up to the parallelism and
// the remaining completions. It omits successors of running pods, and skips Jobs that are
// suspended, finished or managed by another controller.
func (e *expansion) expandJobs() {
	for i, job := range e.set.Jobs {
		w := expanded{workload.Of(job), e.set.places["Job"][i]}
		pods := e.ownedPods(w)
		// ownedPods has adopted the pods nevertheless, so that they have an owner.
		if !workload.MakesPods(job) {
			continue
		}

		// Create the group before the pods, which refer to it.
		var member *v1.PodSchedulingGroup
		if group := e.groupOf(job, pods); group != "" {
			member = &v1.PodSchedulingGroup{PodGroupName: &group}
		}

		if *job.Spec.CompletionMode == batchv1.IndexedCompletion {
			// Each pod of an Indexed Job has an index and is named after it.
			for _, index := range workload.NextIndexes(job, pods) {
				pod := jobPod(job, member)
				workload.SetIndex(pod, job.Name, index)
				e.addNamed(pod, pod.GenerateName, w.at)
			}
			continue
		}

		for range workload.MissingPods(job, pods) {
			e.addNamed(jobPod(job, member), job.Name+"-", w.at)
		}
	}
}

// jobPod returns a pod created by the Job controller as a member of the job's group. If member is
// nil, the job has no group, and the pod keeps its template's value.
func jobPod(job *batchv1.Job, member *v1.PodSchedulingGroup) *v1.Pod {
	pod := workload.JobPod(job)
	if member != nil {
		pod.Spec.SchedulingGroup = member.DeepCopy()
	}
	return pod
}
