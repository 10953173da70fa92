// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"reflect"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	config "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/queue"
)

// DynamicResources restricts pods with ResourceClaims, and pods requesting extended resources
// provided by a DeviceClass, to nodes with suitable devices, and allocates the devices. Upstream's
// library selects the devices; this plugin gathers the input of the library and keeps the results.
//
// Reserve writes an allocation into the cluster's ResourceClaims immediately, visible to the next
// pod: there is no separate record of allocations in flight. Upstream keeps such a record, and
// blocks a pod that shares a claim with an allocation in flight.
//
// The plugin's caches, from the longest-lived to the shortest:
//
//	index        devices and their holders, followed change by change
//	shapes       each node's offer to claims with equal content
//	sets         compiled expressions, by their text
//	last         everything about one pod, until one of its source objects changes
type DynamicResources struct {
	// Now returns the time, to detect devices overdue to become ready. Without it, devices are
	// never overdue.
	Now func() time.Time

	filterTimeout  time.Duration // limit of the search on all nodes together; 0: no limit
	strict         bool          // the limit is configured, so exceeding it fails the attempt
	bindingTimeout time.Duration
	sets           expressionSets
	preempts       bool           // other pods may be preempted for their devices
	chooser        *Fragmentation // chooses among the fitting devices; nil: first fit

	mutex  sync.Mutex
	last   *attempt               // attempt of the most recent pod, shared by Filter, Score and Reserve
	guests map[types.UID]*attempt // attempts of nominated pods
	index  deviceIndex
	shapes deviceShapes
}

// The codes of DynamicResources.
const (
	codeClaimNotFound         = "ResourceClaimNotFound"
	codeClaimNotCreated       = "ResourceClaimNotCreated"
	codeClaimUnsupported      = "ResourceClaimUnsupported"
	codeClaimDeleted          = "ResourceClaimBeingDeleted"
	codeClaimOfOtherPod       = "ResourceClaimOfOtherPod"
	codeClaimUnavailable      = "ResourceClaimNotAvailable"
	codeClaimStale            = "ExtendedResourceClaimStale"
	codeClaimTooLong          = "ResourceClaimTooLong"
	codeDeviceClassNotFound   = "DeviceClassNotFound"
	codeDeviceRequestUnknown  = "DeviceRequestUnknown"
	codeDevicesNotAllocatable = "DevicesNotAllocatable"
	codeDevicesTooHard        = "DeviceSearchTooLong"
	codeExtendedNotProvided   = "ExtendedResourceNotProvided"
)

// expressionFeatures must match allocatorFeatures: both are Kubernetes v1.37's defaults.
var expressionFeatures = cel.Features{EnableConsumableCapacity: true}

// NewDynamicResources makes the plugin; nil args select the defaults. Without a clock (Now,
// SetClock) it does not give up devices overdue to become ready.
func NewDynamicResources(args *config.DynamicResourcesArgs) (*DynamicResources, error) {
	args, err := completeArgs(args)
	if err != nil {
		return nil, err
	}
	limit, strict := boundedSearch(args.FilterTimeout.Duration)
	return &DynamicResources{filterTimeout: limit, strict: strict, bindingTimeout: args.BindingTimeout.Duration}, nil
}

// Name returns upstream's name of the plugin.
func (d *DynamicResources) Name() string { return "DynamicResources" }

// Reads implements [Filter]. Devices are on the node, attached to it, or held by pods on other
// nodes.
func (d *DynamicResources) Reads() Part { return Labels | Identity | Objects }

// Applies implements [Selective]: most pods lack claims. The result for extended resources changes
// with the device classes.
func (d *DynamicResources) Applies(c *cluster.Cluster, p *cluster.Pod) bool {
	return needsDevices(c, p)
}

// Filter looks up the pod's claims and tries, node by node, to allocate the claims that are not
// allocated yet. It reserves nothing: every node is judged independently.
func (d *DynamicResources) Filter(c *cluster.Cluster, p *cluster.Pod) Judge {
	if !needsDevices(c, p) {
		return Judge{}
	}
	a := d.attemptFor(c, p)
	switch {
	case a.err != nil:
		return Judge{Err: a.err}
	case a.rejection != nil:
		return Judge{All: a.rejection}
	case len(a.claims) == 0:
		return Judge{}
	}
	// The starting point lets mustRetry determine this judge's spending and findings.
	a.before, a.undo = a.limit.spent.Load(), nil
	judge := Judge{Node: func(n *cluster.Node) *Rejection { return a.offerAt(n, d.guestsOn(c, p, n)...).rejection }, Again: a.mustRetry}
	if d.preempts {
		judge.Releasing = a.isReleasing
	}
	return judge
}

// BeginAttempt implements [Attempted]: each attempt of a pod has a full search limit.
func (d *DynamicResources) BeginAttempt() {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.last != nil {
		d.last.limit.spent.Store(0)
		d.last.whatIf = 0
		d.last.found = 0
	}
}

// PreEnqueue implements [ObjectGate]. It returns the reason to keep the pod out of the queue, a
// missing or unusable claim, or "" to admit the pod.
func (d *DynamicResources) PreEnqueue(c *cluster.Cluster, p *cluster.Pod) string {
	if len(p.Spec().ResourceClaims) == 0 {
		return ""
	}
	if _, _, rejection := claimsOf(c, p.Object()); rejection != nil {
		return rejection.Reasons[0]
	}
	return ""
}

// Score prefers nodes that satisfy the alternatives listed first in a claim. Nodes are equal for
// pods without alternatives.
func (d *DynamicResources) Score(c *cluster.Cluster, p *cluster.Pod, _ []*cluster.Node) Scoring {
	if !needsDevices(c, p) {
		return Scoring{}
	}
	a := d.attemptFor(c, p)
	if a.err != nil || a.rejection != nil || len(a.claims) == 0 {
		return Scoring{}
	}
	return Scoring{
		Node:      func(n *cluster.Node) (int64, error) { return a.scoreNode(n) },
		Normalize: func(_ []*cluster.Node, scores []int64) { normalizeScores(scores, false) },
	}
}

// needsDevices reports whether the plugin has anything to do for the pod.
func needsDevices(c *cluster.Cluster, p *cluster.Pod) bool {
	return len(p.Spec().ResourceClaims) > 0 || WantsDevices(c, p)
}

// WantsDevices reports whether a DeviceClass may provide an extended resource requested by the pod.
func WantsDevices(c *cluster.Cluster, p *cluster.Pod) bool {
	scalars := p.Class.Requests.Scalars
	if c.DeviceClasses.Len() == 0 || len(scalars) == 0 {
		return false
	}
	classOf := classesOf(c, len(scalars))
	for name, amount := range scalars {
		if amount != 0 && classOf(name) != nil && mayBeDevice(name) {
			return true
		}
	}
	return false
}

// rejectUnresolvable returns a rejection that rules out preemption, like every rejection of
// upstream's plugin.
func rejectUnresolvable(code, format string, args ...any) *Rejection {
	return &Rejection{Code: code, Reasons: []string{fmt.Sprintf(format, args...)}, Unresolvable: true}
}

// Interests implements Requeuer. Slices wake every rejected pod: determining the pods that a new
// device could serve costs as much as trying all of them.
func (*DynamicResources) Interests(setting Setting) []queue.Interest {
	return []queue.Interest{
		{Resource: queue.Node, Action: queue.Add | queue.UpdateNodeLabel | queue.UpdateNodeAllocatable},
		{Resource: queue.ResourceClaim, Action: queue.All, Hint: ofResourceClaim, PerPod: true, Narrowing: byDeviceClaims()},
		{Resource: queue.Pod, Action: queue.UpdatePodGeneratedResourceClaim, Hint: Own},
		{Resource: queue.DeviceClass, Action: queue.Add | queue.Update, Hint: setting.ofDeviceClass, PerPod: true},
		{Resource: queue.ResourceSlice, Action: queue.Add | queue.Update | queue.Delete}, // deleting an outdated slice completes a pool
	}
}

// ofResourceClaim reports whether a claim has released devices, is a new or changed claim of the
// pod, or was left for the pod's extended resources by an earlier attempt and is now deleted.
func ofResourceClaim(item *queue.Item, e *queue.Event) bool {
	was, _ := e.Old.(*resourcev1.ResourceClaim)
	is, _ := e.New.(*resourcev1.ResourceClaim)
	if givesBack(was, is) || is == nil && was != nil && isExtendedClaimOf(was, item.Pod.Name, item.Pod.UID) {
		return true
	}
	if is == nil || item.Pod.Namespace != is.Namespace {
		return false
	}
	for i := range item.Pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(item.Pod, &item.Pod.Spec.ResourceClaims[i])
		if err == nil && name != nil && *name == is.Name {
			return was == nil || was.UID != is.UID || !reflect.DeepEqual(was.Status, is.Status)
		}
	}
	return false
}

// Wakes implements Waker.
func (*DynamicResources) Wakes() []string {
	return []string{"a resource claim or slice is added or changes", "a node is added", "a pod leaves its node"}
}

// Fixes implements Fixer.
func (*DynamicResources) Fixes() []Fix { return []Fix{FreeDevices} }
