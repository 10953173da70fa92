// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package simulate

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/inspect/manifest"
	"github.com/berth-k8s/berth/internal/world"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
	"github.com/berth-k8s/berth/internal/world/workload"
)

// Loading of objects other than nodes and pods: the manifests' objects when the world is opened
// (showSet), and later additions by kubectl apply (loadApplied). The core receives each object as a
// watch event, and computes everything else from these events.

// showSet shows the core all objects except nodes and pods. Pod groups are last, because they take
// the priority of their class from the catalog; composite groups precede the groups in them.
func (s *scheduler) showSet(set *manifest.Set, catalog *admission.Catalog) {
	// Record all objects in the API, including kinds irrelevant to the core. Nodes, pods and
	// workloads are recorded when they are added.
	for _, object := range set.Objects() {
		switch object.(type) {
		case *v1.Node, *v1.Pod:
		default:
			if workload.Of(object) == nil {
				s.follow(object, false)
			}
		}
	}

	for _, of := range []struct {
		kind cycle.Kind
		name string
	}{
		{cycle.Namespaces, "Namespace"}, {cycle.Services, "Service"}, {cycle.ReplicationControllers, "ReplicationController"},
		{cycle.ReplicaSets, "ReplicaSet"}, {cycle.StatefulSets, "StatefulSet"}, {cycle.DisruptionBudgets, "PodDisruptionBudget"},
		{cycle.Volumes, "PersistentVolume"}, {cycle.Claims, "PersistentVolumeClaim"}, {cycle.StorageClasses, "StorageClass"},
		{cycle.CSINodes, "CSINode"}, {cycle.CSIDrivers, "CSIDriver"}, {cycle.CSICapacities, "CSIStorageCapacity"},
		{cycle.VolumeAttachments, "VolumeAttachment"}, {cycle.ResourceSlices, "ResourceSlice"}, {cycle.ResourceClaims, "ResourceClaim"},
		{cycle.DeviceClasses, "DeviceClass"}, {cycle.DeviceTaintRules, "DeviceTaintRule"}, {cycle.PriorityClasses, "PriorityClass"},
	} {
		for _, object := range set.OfKind(of.name) {
			s.showObject(of.kind, object)
		}
	}
	s.showComposites(set.CompositePodGroups, catalog)
	s.showGroups(set.PodGroups, catalog)
}

// loadApplied shows the core the result of kubectl apply, which preserves fields written by
// controllers to existing objects. Manifests usually lack the status and a volume's binding. Shown
// unchanged, they would unbind the claims in use.
func (o *operations) loadApplied(set *manifest.Set) {
	applied := *set
	applied.PersistentVolumeClaims = slices.DeleteFunc(slices.Clone(set.PersistentVolumeClaims),
		func(claim *v1.PersistentVolumeClaim) bool {
			_, there := o.scheduler.c.Claims.Get(claim.Namespace, claim.Name)
			return there
		})

	applied.ResourceClaims = slices.DeleteFunc(slices.Clone(set.ResourceClaims), func(claim *resourcev1.ResourceClaim) bool {
		_, there := o.scheduler.c.ResourceClaims.Get(claim.Namespace, claim.Name)
		return there
	})

	// A volume is replaced except for its binding to a claim.
	for _, volume := range set.PersistentVolumes {
		if was, there := o.scheduler.c.Volumes.Get("", volume.Name); there {
			volume.UID, volume.Spec.ClaimRef, volume.Status = was.UID, was.Spec.ClaimRef, was.Status
		}
	}

	for _, g := range set.PodGroups {
		if was := o.scheduler.groupNamed(g.Namespace, g.Name); was != nil && was.Object != nil {
			g.UID, g.Status = was.Object.UID, was.Object.Status
		}
	}

	// With the identity and status copied above, the core sees an update of the same object rather
	// than another object of that name.
	o.scheduler.showSet(&applied, o.pods.catalog)
	o.scheduler.findStalled(o.workloads.set.Whole)
	// New quotas count existing pods of their namespace. A pod refused by a quota is charged
	// nowhere and does not count.
	var charged []*v1.Pod
	for _, p := range o.pods.byName() {
		if p.charged {
			charged = append(charged, p.object)
		}
	}

	o.bounds.addLimits(set.ResourceQuotas, set.LimitRanges, charged)
}

// findStalled finds the storage classes without a working provisioner. whole is set if the whole
// cluster was read.
func (s *scheduler) findStalled(whole bool) {
	s.controllers.Stalled = plugins.StalledClasses(s.c, s.clock.time(), whole)
}

// claims creates claims for volumes and devices. It acts for the API server, which sets defaults,
// and for the controllers of ephemeral volumes and claim templates. The embedded Claims creates and
// deletes the claims of a pod; the other methods handle all claims of the cluster.
type claims struct {
	claimcontrollers.Claims
	scheduler *scheduler
}

// templateNamed returns a device claim template by name.
func (c *claims) templateNamed(namespace, name string) (*resourcev1.ResourceClaimTemplate, bool) {
	return world.Get[*resourcev1.ResourceClaimTemplate](c.scheduler.api, namespace, name)
}

// identifyClaims assigns a UID to new claims and the default storage class to those without one,
// like the API server. It is called after claims or storage classes are added, and visits all
// claims. It skips claims with a UID or a volume.
func (c *claims) identifyClaims() {
	c.StorageClass = admission.DefaultStorageClass(c.scheduler.c.StorageClasses.All())
	for _, claim := range c.scheduler.c.Claims.All() {
		if claim.UID == "" && claim.Spec.VolumeName == "" {
			claim = claim.DeepCopy()
			if c.StorageClass != nil {
				admission.Claim(claim, c.StorageClass)
			}
			claim.UID = types.UID("claim/" + claim.Namespace + "/" + claim.Name)
			c.scheduler.showObject(cycle.Claims, claim)
		}
	}
}

// addClaims adds claims that do not exist yet and reports whether it added any. The caller must
// then identify the new ones.
func (c *claims) addClaims(list []*v1.PersistentVolumeClaim) (added bool) {
	for _, claim := range list {
		if _, there := c.scheduler.c.Claims.Get(claim.Namespace, claim.Name); !there {
			c.scheduler.showObject(cycle.Claims, claim)
			added = true
		}
	}
	return added
}

// Admission of manifest pods. Pods stored by an API server are used unchanged; all new pods go
// through admission, which fills in defaults, priority and overhead, or refuses them.

// existsAlready reports whether an input pod exists: it is bound, or an API server has stored it.
// All other pods are new and subject to quotas.
func existsAlready(p *v1.Pod) bool { return p.Spec.NodeName != "" || admission.Stored(p) }

// chargeExisting charges existing pods to the quotas before any new pod, because the input may list
// new pods before existing ones.
func (s *pods) chargeExisting(list []*v1.Pod) {
	for _, p := range list {
		if existsAlready(p) && len(s.bounds.quotas[p.Namespace]) > 0 {
			if admitted, err := s.admitPod(p); err == nil { // admitAll reports errors
				s.bounds.chargePod(admitted, false)
			}
		}
	}
}

// admitAll admits the set's pods as an API server would or already did. Pods are admitted
// independently of each other, so admission runs in parallel, one batch ahead. Admitted pods enter
// the world on one goroutine in the order of the set, because quotas depend on the order.
//
//	ready  |--admit--|--enter--|         |--enter--|
//	next             |--admit--|--wait---|--admit--|
func (s *pods) admitAll(set *manifest.Set, discard bool, allowed *allowed) error {
	s.chargeExisting(set.Pods)
	ready, next := newBatch(), newBatch()
	ready.begin(s, set.Pods, 0)
	for first := 0; first < len(set.Pods); first += admittedAtATime {
		ready.Wait()
		// Other goroutines admit the batch next while this one enters the batch ready. Then the two
		// are swapped.
		next.begin(s, set.Pods, first+admittedAtATime)
		err := s.enterBatch(set, first, ready, discard)
		if err == nil && allowed.mustStop() {
			err = allowed.ended
		}
		if err != nil {
			// No goroutine may keep reading the set after the return.
			next.Wait()
			return err
		}
		ready, next = next, ready
	}
	return nil
}

// batch is a group of pods admitted together. Its slices are reused. Each worker writes results
// only at its own indexes; they are read after Wait.
type batch struct {
	sync.WaitGroup
	pods     []*v1.Pod // pods before admission
	admitted []*v1.Pod
	errs     []error
}

// newBatch returns an empty batch.
func newBatch() *batch {
	return &batch{admitted: make([]*v1.Pod, admittedAtATime), errs: make([]error, admittedAtATime)}
}

// begin starts admitting a batch of pods from index first; the last batch may be smaller or empty.
// The batch must not be used until Wait has returned.
func (b *batch) begin(s *pods, all []*v1.Pod, first int) {
	b.pods = all[min(first, len(all)):min(first+admittedAtATime, len(all))]
	n := runtime.GOMAXPROCS(0)
	for worker := range n {
		b.Go(func() {
			for i := worker; i < len(b.pods); i += n {
				b.admitted[i], b.errs[i] = s.admitPod(b.pods[i])
			}
		})
	}
}

// enterBatch adds the pods of a batch; first is the index of its first pod in the set. It stops at
// the first refusal. The exception is a pod with a controller in a whole cluster, which is skipped:
// in real clusters, controllers may fail to create pods.
func (s *pods) enterBatch(set *manifest.Set, first int, b *batch, discard bool) error {
	for i, pod := range b.pods {
		if b.errs[i] != nil && set.Whole && metav1.GetControllerOf(pod) != nil {
			continue // its controller would be refused repeatedly; see shortfalls.refusalOf
		}
		if b.errs[i] != nil {
			return refusalError(set, first+i, b.errs[i])
		}

		refused := ""
		if !existsAlready(pod) {
			s.claims.MakeFor(b.admitted[i])
			refused = s.bounds.chargePod(b.admitted[i], true)
		}
		s.enterPod(b.admitted[i], refused)
		if discard {
			b.pods[i] = nil
		} else if s.lasting && admission.Stored(pod) && isComplete(pod) {
			b.pods[i] = b.admitted[i] // for twins
		}
	}
	return nil
}

// refusalError returns the reason for a refusal with the pod's position in the manifests, or the
// position of its workload's template for an expanded pod.
func refusalError(set *manifest.Set, i int, err error) error {
	file, line := set.PodAt(i)
	e := &manifest.Error{File: file, Line: line, Text: fmt.Sprintf("pod %s/%s: %v", set.Pods[i].Namespace, set.Pods[i].Name, err)}
	var refused *admission.Refusal
	if errors.As(err, &refused) {
		e.Field = refused.Field
	}
	return e
}

// admittedAtATime is the size of a batch. It bounds memory use, because the pods of two batches are
// held twice, as given and as admitted. A batch is large enough to make the cost of starting
// workers negligible.
const admittedAtATime = 2048

// readmitPod admits a pod stored by an API server. A pod with a resourceVersion or a node has
// passed that server's admission, so readmitPod only fills in defaults. A pending pod with only a
// UID goes through admission to fill in missing fields. Refusals are ignored, because other rules
// may have applied at creation.
func (s *pods) readmitPod(p *v1.Pod) *v1.Pod {
	if !isComplete(p) {
		if again, err := admission.Create(s.admission, s.catalog, p); err == nil {
			return again
		}
	}
	p = p.DeepCopy()
	admission.Default(p)
	return p
}

// isComplete reports whether a pod has passed an API server's admission, except for newer defaults.
func isComplete(p *v1.Pod) bool { return p.Spec.NodeName != "" || p.ResourceVersion != "" }

// admitPod admits a pod as an API server would or already did. It does not modify the argument.
// Several goroutines call it concurrently; it only reads shared state.
func (s *pods) admitPod(p *v1.Pod) (*v1.Pod, error) {
	if s.twin && admission.Stored(p) && isComplete(p) {
		return p, nil // already admitted for the first world
	}
	if admission.Stored(p) {
		p = s.readmitPod(p)
	} else {
		if len(s.bounds.ranges[p.Namespace]) > 0 {
			p = p.DeepCopy()
			admission.Default(p) // first, so that a container's limit sets its request instead of the range's default
			s.bounds.fillDefaults(p)
		}
		var err error
		if p, err = admission.Create(s.admission, s.catalog, p); err != nil {
			return nil, err
		}
	}
	// The UID derives from the name, so it is the same in every run.
	p.UID = cmp.Or(p.UID, types.UID(p.Namespace+"/"+p.Name))
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.NewTime(s.clock.start)
	}
	return p, nil
}
