// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// attempt caches everything known about one pod's devices. It is valid for one attemptKey, that is,
// until its source objects change. Filter, Score and Reserve of one decision share it. The pod's
// next decision reuses it, unless objects have changed or the plugin has been called for another
// pod in between.
type attempt struct {
	d   *DynamicResources
	c   *cluster.Cluster
	key attemptKey
	pod *v1.Pod

	// err and rejection, if set, rule out all nodes. All other fields are then empty.
	err       error
	rejection *Rejection

	// claims are the claims named by the pod, followed by the claim for its extended resources, if
	// any.
	claims   []*resourcev1.ResourceClaim
	extended *resourcev1.ResourceClaim
	// holders are the consumers of the claims: the pod, or its pod group.
	holders []resourcev1.ResourceClaimConsumerReference
	// classes provide the pod's extended resources; the entry is nil for a resource without a
	// class.
	classes map[v1.ResourceName]*resourcev1.DeviceClass
	// reachable holds the node selector of each allocated claim with devices limited to some nodes.
	reachable []nodeTerms
	// open are the claims not allocated yet, and shape is their content. With extended resources
	// both depend on the node's size.
	open  []*resourcev1.ResourceClaim
	shape *deviceShape
	// expressions belong to the open claims and their classes.
	expressions *expressionSet
	bySize      map[*cluster.Size]*extendedOffer
	limit       searchLimit
	whatIf      int64 // cost of the searches in experiments, limited separately
	before      int64 // cost spent before the filter's call
	guest       bool  // the pod is nominated, and another pod is decided
	// alternatives is set if a request lists alternatives. The nodes are then scored by the
	// alternatives chosen on them.
	alternatives bool

	mutex    sync.Mutex
	shared   *grounds                         // grounds of all slices, if nodes share devices; made on demand
	undo     []func()                         // discards the findings since the filter's call
	found    int                              // number of nodes with a known offer
	failures map[individual]*claimAllocations // results of nodes with failed searches
	// unavailable reports for each of claims, by index, whether some node cannot reach the devices
	// of the allocated claim.
	unavailable []atomic.Bool
}

// attemptKey identifies the state behind an attempt, which is valid while its key is unchanged. The
// numbers are versions of the cluster's tables. The key excludes nodes: findings about a node are
// checked against the node.
type attemptKey struct {
	c                       *cluster.Cluster
	uid                     types.UID
	class                   *cluster.PodClass
	claims, slices, classes uint64
	groups                  uint64
}

// offer is a node's offer to the pod. If there is a rejection, all other fields are empty.
type offer struct {
	rejection *Rejection
	// results are the allocations for the open claims, in their order, or nil.
	results []resourcev1.AllocationResult
	// extended is the claim for extended resources as needed on this node, or nil.
	extended *resourcev1.ResourceClaim
	mappings []v1.ContainerExtendedResourceRequest
}

// attemptFor returns the pod's attempt, reusing the previous one if it is still valid.
func (d *DynamicResources) attemptFor(c *cluster.Cluster, p *cluster.Pod) *attempt {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	of := keyOf(c, p)
	if d.last == nil || d.last.key != of {
		d.last = d.newAttempt(c, p, of)
	}
	return d.last
}

func keyOf(c *cluster.Cluster, p *cluster.Pod) attemptKey {
	return attemptKey{c, p.UID(), p.Class, c.ResourceClaims.Version, c.ResourceSlices.Version, c.DeviceClasses.Version, c.PodGroups.Version}
}

// newAttempt reads the node-independent facts about the pod, and stops at the first reason to
// reject all nodes. The caller holds the mutex.
func (d *DynamicResources) newAttempt(c *cluster.Cluster, p *cluster.Pod, of attemptKey) *attempt {
	a := &attempt{d: d, c: c, key: of, pod: p.Object()}
	a.limit.most = int64((d.filterTimeout + searchCost - 1) / searchCost)
	if a.claims, a.holders, a.rejection = claimsOf(c, a.pod); a.rejection != nil {
		return a
	}

	// The update must precede the lookup of the claim for extended resources in the index.
	d.index.followCluster(c)
	a.classes = extendedRequests(c, a.pod)
	if a.extended = d.extendedClaim(a.pod, a.classes); a.extended != nil {
		a.claims, a.holders = append(a.claims, a.extended), append(a.holders, podAsHolder(a.pod))
	}

	a.reachable, a.unavailable = make([]nodeTerms, len(a.claims)), make([]atomic.Bool, len(a.claims))
	for i, claim := range a.claims {
		a.alternatives = a.alternatives || slices.ContainsFunc(claim.Spec.Devices.Requests,
			func(r resourcev1.DeviceRequest) bool { return r.Exactly == nil })
		if allocation := claim.Status.Allocation; allocation != nil {
			if a.reachable[i], a.err = reachOfAllocation(allocation); a.err != nil {
				return a
			}
			continue
		}
		// The list open has the order of claims, because offers list their results in this order.
		a.open = append(a.open, claim)
		if claim == a.extended {
			continue
		}
		if a.rejection, a.err = checkRequests(c, claim); a.rejection != nil || a.err != nil {
			return a
		}
	}

	// Too many expressions are refused before any expression is compiled.
	var long bool
	if a.expressions, long = d.sets.setOf(c, a.open); long {
		a.rejection = rejectUnresolvable(codeClaimTooLong,
			"resource claims select devices by more expressions, or longer ones, than are evaluated")
		return a
	}

	switch {
	// The claims' content depends on the node's size, so extendedAt determines the shape.
	case a.extended != nil:
		a.bySize = map[*cluster.Size]*extendedOffer{}
	case len(a.open) > 0:
		a.shape = d.shapes.shapeOf(c, a.open)
	}
	return a
}

// reachOfAllocation returns the terms of the nodes that can reach the devices; nil means all nodes.
// An invalid selector is an error, as in upstream, and fails the attempt.
func reachOfAllocation(allocation *resourcev1.AllocationResult) (nodeTerms, error) {
	if allocation.NodeSelector == nil {
		return nil, nil
	}
	if _, err := nodeaffinity.NewNodeSelector(allocation.NodeSelector); err != nil {
		return nil, err
	}
	return readNodeTerms(allocation.NodeSelector), nil
}

// claimsOf looks up the claims named by the pod, and the consumer to reserve each for. claims and
// holders are both in the spec's order. The messages are upstream's.
func claimsOf(c *cluster.Cluster, pod *v1.Pod) (
	claims []*resourcev1.ResourceClaim, holders []resourcev1.ResourceClaimConsumerReference, rejection *Rejection,
) {
	group := claimingGroup(c, pod)
	for i := range pod.Spec.ResourceClaims {
		name, generated, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		switch {
		case errors.Is(err, resourceclaim.ErrClaimNotFound):
			return nil, nil, rejectUnresolvable(codeClaimNotCreated, "%v", err)
		case err != nil:
			return nil, nil, rejectUnresolvable(codeClaimUnsupported, "%v", err)
		case name == nil: // the controller found that no claim is needed
			continue
		}
		claim, ok := c.ResourceClaims.Get(pod.Namespace, *name)
		if !ok {
			return nil, nil, rejectUnresolvable(codeClaimNotFound, "could not find ResourceClaim %q", pod.Namespace+"/"+*name)
		}

		if claim.DeletionTimestamp != nil {
			return nil, nil, rejectUnresolvable(codeClaimDeleted, "resourceclaim %q is being deleted", claim.Name)
		}
		if generated {
			if err := wasMadeFor(pod, group, claim); err != nil {
				return nil, nil, rejectUnresolvable(codeClaimOfOtherPod, "%v", err)
			}
		}
		holder, err := resourceclaim.BindTo(pod, group, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, nil, rejectUnresolvable(codeClaimUnsupported, "%v", err)
		}
		claims, holders = append(claims, claim), append(holders, holder)
	}
	return claims, holders, nil
}

// checkRequests checks that every class named in the claim's requests exists. The allocator would
// fail on a missing class without naming it to the pod's author.
func checkRequests(c *cluster.Cluster, claim *resourcev1.ResourceClaim) (*Rejection, error) {
	for i := range claim.Spec.Devices.Requests {
		request := &claim.Spec.Devices.Requests[i]
		if request.Exactly == nil && len(request.FirstAvailable) == 0 {
			return rejectUnresolvable(codeDeviceRequestUnknown, "resource claim %s, request %s: unknown request type",
				klog.KObj(claim), request.Name), nil
		}
		if request.Exactly != nil {
			if rejection, err := checkClass(c, request.Exactly.DeviceClassName, request.Name); rejection != nil || err != nil {
				return rejection, err
			}
			continue
		}
		for j := range request.FirstAvailable {
			alternative := &request.FirstAvailable[j]
			if rejection, err := checkClass(c, alternative.DeviceClassName, request.Name+"/"+
				alternative.Name); rejection != nil || err != nil {
				return rejection, err
			}
		}
	}

	return nil, nil
}

// checkClass checks the class of one request; request is its name in the message.
func checkClass(c *cluster.Cluster, class, request string) (*Rejection, error) {
	if class == "" {
		return nil, fmt.Errorf("request %s: unsupported request type", request)
	}
	if _, ok := c.DeviceClasses.Get("", class); !ok {
		return rejectUnresolvable(codeDeviceClassNotFound, "request %s: device class %s does not exist", request, class), nil
	}
	return nil, nil
}

// offerAt computes the node's offer, which leaves the devices that guests need. Like upstream, it
// tries the open claims first: the reason of their rejection takes precedence over an unreachable
// allocated claim. It is safe for concurrent use.
func (a *attempt) offerAt(n *cluster.Node, guests ...*attempt) (o offer) {
	open, shape := a.open, a.shape
	if a.extended != nil {
		x := a.extendedAt(n)
		if o.extended, o.mappings, o.rejection = x.claim, x.mappings, x.rejection; o.rejection != nil {
			return o
		}
		if o.extended == nil && len(a.claims) == 1 { // a device plugin of the node provides everything
			return o
		}
		open, shape = x.open, x.shape
	}

	if len(open) > 0 {
		found := a.findWithGuests(n, open, shape, guests)
		if o.results, o.rejection = found.results, found.rejection; o.rejection != nil {
			return o
		}
	}
	if !a.withinReach(n) || a.isPromised(n, guests) {
		return offer{rejection: outOfReach}
	}
	return o
}

// outOfReach is the rejection of nodes that cannot reach the devices of an allocated claim.
var outOfReach = rejectUnresolvable(codeClaimUnavailable, "resourceclaim not available on the node")

// withinReach reports whether the node can reach the devices of all allocated claims, and records
// the unreachable claims, which PostFilter may release.
func (a *attempt) withinReach(n *cluster.Node) bool {
	within := true
	for i, claim := range a.claims {
		if claim.Status.Allocation == nil || (a.reachable[i] == nil || a.reachable[i].match(n)) && !a.d.givenUp(claim) {
			continue
		}
		within = false
		// Loading the value first keeps goroutines from writing to the same memory for every node.
		if !a.unavailable[i].Load() {
			a.unavailable[i].Store(true)
		}
	}
	return within
}

// givenUp reports whether a device of the claim failed to become ready, or did not become ready in
// time (bindingTimeout after the allocation). Such a claim is out of reach everywhere, so it is
// released and allocated again.
func (d *DynamicResources) givenUp(claim *resourcev1.ResourceClaim) bool {
	ready, failure := deviceReadiness(claim)
	if ready || failure != nil {
		return !ready
	}
	since := claim.Status.Allocation.AllocationTimestamp
	return d.Now != nil && since != nil && since.Add(d.bindingTimeout).Before(d.Now())
}

// deviceReadiness checks the claim's devices in order, up to the first unready one. failure, if not
// nil, is the reason the unready device never becomes ready. Devices without binding conditions are
// always ready.
func deviceReadiness(claim *resourcev1.ResourceClaim) (ready bool, failure *metav1.Condition) {
	for i := range claim.Status.Allocation.Devices.Results {
		result := &claim.Status.Allocation.Devices.Results[i]
		if len(result.BindingConditions) == 0 {
			continue
		}
		at := slices.IndexFunc(claim.Status.Devices, func(s resourcev1.AllocatedDeviceStatus) bool {
			return s.Device == result.Device && s.Driver == result.Driver && s.Pool == result.Pool
		})
		// The driver has not yet written a status for the device.
		if at < 0 {
			return false, nil
		}
		conditions := claim.Status.Devices[at].Conditions
		// Failure conditions are checked first: a device may be ready by one condition and have
		// failed by another condition.
		for _, name := range result.BindingFailureConditions {
			if c := meta.FindStatusCondition(conditions, name); c != nil && c.Status == metav1.ConditionTrue {
				return false, c
			}
		}
		for _, name := range result.BindingConditions {
			if !meta.IsStatusConditionTrue(conditions, name) {
				return false, nil
			}
		}
	}

	return true, nil
}

// scoreNode sums up the ranks of the chosen alternatives over all requests with alternatives: 8 for
// the first in the list, 1 for the eighth, the maximum allowed by the API.
func (a *attempt) scoreNode(n *cluster.Node) (int64, error) {
	if !a.alternatives {
		return 0, nil
	}
	o := a.offerAt(n)
	if o.results == nil {
		return 0, nil
	}

	var score int64
	next := 0
	for _, claim := range a.claims {
		allocation := claim.Status.Allocation
		if allocation == nil {
			allocation = &o.results[next]
			next++
		}
		// Results name the chosen alternative as request/alternative.
		met := map[string]bool{}
		for i := range allocation.Devices.Results {
			met[allocation.Devices.Results[i].Request] = true
		}
		for i := range claim.Spec.Devices.Requests {
			request := &claim.Spec.Devices.Requests[i]
			if request.Exactly != nil {
				continue
			}
			for j := range request.FirstAvailable {
				if met[resourceclaim.CreateSubRequestRef(request.Name, request.FirstAvailable[j].Name)] {
					score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
				}
			}
		}
	}

	return score, nil
}
