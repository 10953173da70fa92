// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/resource"

	"github.com/berth-k8s/berth/internal/engine/cluster"

	"github.com/berth-k8s/berth/internal/engine/rules"
)

// inMemoryName is the name of the claim for extended resources while it exists only in memory. It
// is not a valid name, so no user's claim can have it. Upstream uses the same one.
const inMemoryName = "<extended-resources>"

// deviceClassOf returns the class that provides the extended resource, or nil. The newest of
// several such classes takes precedence, and the first by name among equally new classes. It scans
// all classes; use classesOf for many resources.
func deviceClassOf(c *cluster.Cluster, name v1.ResourceName) *resourcev1.DeviceClass {
	if c.DeviceClasses.Len() == 0 {
		return nil
	}
	if class, ok := strings.CutPrefix(string(name), resourcev1.ResourceDeviceClassPrefix); ok {
		found, _ := c.DeviceClasses.Get("", class)
		return found
	}

	var best *resourcev1.DeviceClass
	for class := range c.DeviceClasses.Each {
		if own := class.Spec.ExtendedResourceName; own != nil && *own == string(name) && (best == nil || newerOrFirst(class, best)) {
			best = class
		}
	}

	return best
}

// newerOrFirst reports whether a takes precedence over b as provider of the same resource.
func newerOrFirst(a, b *resourcev1.DeviceClass) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	return a.Name < b.Name
}

// fewNames is the maximum number of resources that are each looked up by a scan of the classes.
const fewNames = 8

// classesOf returns [deviceClassOf] as a func of the resource, prepared for the given number of
// calls: a pod may request thousands of resources.
func classesOf(c *cluster.Cluster, names int) func(v1.ResourceName) *resourcev1.DeviceClass {
	if names <= fewNames || c.DeviceClasses.Len() == 0 {
		return func(name v1.ResourceName) *resourcev1.DeviceClass { return deviceClassOf(c, name) }
	}

	byName := map[v1.ResourceName]*resourcev1.DeviceClass{}
	for class := range c.DeviceClasses.Each {
		if class.Spec.ExtendedResourceName == nil {
			continue
		}
		name := v1.ResourceName(*class.Spec.ExtendedResourceName)
		if best := byName[name]; best == nil || newerOrFirst(class, best) {
			byName[name] = class
		}
	}
	return func(name v1.ResourceName) *resourcev1.DeviceClass {
		if strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix) {
			return deviceClassOf(c, name)
		}
		return byName[name]
	}
}

// mayBeDevice reports whether a class can provide the resource: an extended resource, or the
// implicit name of a class. This excludes CPU, memory, huge pages and everything under
// kubernetes.io/.
func mayBeDevice(name v1.ResourceName) bool {
	s := string(name)
	if strings.HasPrefix(s, resourcev1.ResourceDeviceClassPrefix) {
		return true
	}
	native := !strings.Contains(s, "/") || strings.Contains(s, v1.ResourceDefaultNamespacePrefix)
	return !native && cluster.IsScalar(name)
}

// extendedRequests returns the requested resources that a class could provide, each with its class,
// or with nil if no class provides it.
func extendedRequests(c *cluster.Cluster, pod *v1.Pod) map[v1.ResourceName]*resourcev1.DeviceClass {
	requests := cluster.NewResources(rules.PodRequests(pod, resource.PodResourcesOptions{}))
	classes, classOf := map[v1.ResourceName]*resourcev1.DeviceClass{}, classesOf(c, len(requests.Scalars))
	for name, amount := range requests.Scalars {
		if amount != 0 && mayBeDevice(name) {
			classes[name] = classOf(name)
		}
	}
	return classes
}

// extendedClaim returns the claim for the pod's extended resources provided by classes: the claim
// left by an earlier attempt, or a new one without requests, since these depend on the node. It
// returns nil for a pod without such resources.
func (d *DynamicResources) extendedClaim(pod *v1.Pod, classes map[v1.ResourceName]*resourcev1.DeviceClass) *resourcev1.ResourceClaim {
	wanted := false
	for _, class := range classes {
		wanted = wanted || class != nil
	}

	if !wanted {
		return nil
	}
	if claim := d.index.extendedClaim(pod.Namespace, pod.Name, pod.UID); claim != nil {
		return claim
	}

	return &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: inMemoryName, UID: pod.UID + "/extended-resources",
		GenerateName:    pod.Name + "-extended-resources-",
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
		Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
	}}
}

// LeftClaim implements [ClaimReserver].
func (d *DynamicResources) LeftClaim(c *cluster.Cluster, p *cluster.Pod) bool {
	if !WantsDevices(c, p) {
		return false
	}
	d.followClaims(c)
	return d.index.extendedClaim(p.Namespace(), p.Name(), p.UID()) != nil
}

// followClaims updates the index outside an attempt, while no goroutine judges nodes.
func (d *DynamicResources) followClaims(c *cluster.Cluster) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.index.followCluster(c)
}

// isExtendedClaimOf reports whether a claim was made for the extended resources of this pod. An
// earlier pod of the same name has another UID.
func isExtendedClaimOf(claim *resourcev1.ResourceClaim, name string, uid types.UID) bool {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return false
	}
	owner := metav1.GetControllerOfNoCopy(claim)
	return owner != nil && owner.Name == name && owner.UID == uid
}

// extendedOffer is the offer of nodes of one size for the pod's extended resources: a node with the
// resource itself, through a device plugin, needs no claim for it.
type extendedOffer struct {
	claim     *resourcev1.ResourceClaim
	mappings  []v1.ContainerExtendedResourceRequest
	rejection *Rejection
	open      []*resourcev1.ResourceClaim // all claims to be allocated, including claim
	shape     *deviceShape
}

// extendedAt returns the offer of the node's size. Sizes are interned and few, so all nodes share a
// few computations.
func (a *attempt) extendedAt(n *cluster.Node) *extendedOffer {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	x := a.bySize[n.Size]
	if x != nil {
		return x
	}

	x = &extendedOffer{}
	a.bySize[n.Size] = x
	if x.claim, x.mappings, x.rejection = a.extendedOn(n); x.rejection != nil {
		return x
	}

	// The pod's other claims are the same on nodes of all sizes.
	x.open = a.open
	if x.claim != nil {
		x.open = slices.Clone(a.open)
		if i := slices.Index(x.open, a.extended); i >= 0 {
			x.open[i] = x.claim
		}
	}

	if len(x.open) > 0 {
		x.shape = a.d.shapes.shapeOf(a.c, x.open)
	}
	return x
}

// extendedOn determines the extended resources that need devices on this node, and returns the
// claim for them, or nil if a device plugin of the node provides them all. It rejects the node if
// an earlier attempt left a claim with requests for another node, which PostFilter deletes. A guest
// needs the devices nevertheless, unless that claim still holds them.
func (a *attempt) extendedOn(n *cluster.Node) (*resourcev1.ResourceClaim, []v1.ContainerExtendedResourceRequest, *Rejection) {
	if a.extended.Spec.Devices.Requests != nil && (!a.guest || a.extended.Status.Allocation != nil) {
		return nil, nil, rejectUnresolvable(codeClaimStale, "cannot schedule extended resource claim")
	}
	var fromDevices []v1.ResourceName
	for name, class := range a.classes {
		allocatable, listed := n.Size.Scalars[name]
		switch {
		case allocatable == 0 && class != nil:
			fromDevices = append(fromDevices, name)
		case !listed:
			return nil, nil, rejectUnresolvable(codeExtendedNotProvided, "cannot fit resource")
		}
	}

	if len(fromDevices) == 0 && len(a.claims) == 1 {
		return nil, nil, nil
	}
	// A fixed order makes equal pods produce equal requests and share a shape.
	slices.Sort(fromDevices)
	claim := a.extended.DeepCopy()
	claim.Spec.Devices.Requests = nil
	var mappings []v1.ContainerExtendedResourceRequest
	for _, name := range fromDevices {
		requests, mapped := deviceRequests(a.pod, name, a.classes[name].Name)
		claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, requests...)
		mappings = append(mappings, mapped...)
	}

	slices.SortFunc(claim.Spec.Devices.Requests, func(x, y resourcev1.DeviceRequest) int { return cmp.Compare(x.Name, y.Name) })
	return claim, mappings, nil
}

// deviceRequests turns the containers' requests for one extended resource into requests for
// devices. Init containers that terminate before the pod runs use the devices of the containers
// that follow. Only the demand beyond these devices is requested, once, for the init container that
// needs most.
//
//	init a: 3, init b: 1, containers c: 1 and d: 1
//	requests: 1 more for a, 1 for c, 1 for d
//	mappings: a has all three, b that of c, c and d each their own
func deviceRequests(pod *v1.Pod, name v1.ResourceName, class string) ([]resourcev1.DeviceRequest, []v1.ContainerExtendedResourceRequest) {
	// Requests are named after the index in this list, as in upstream.
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	lasting := make([]*resourcev1.DeviceRequest, len(containers))
	var mappings, briefMappings []v1.ContainerExtendedResourceRequest
	for i := range containers {
		if isTerminating(&containers[i], i < len(pod.Spec.InitContainers)) {
			continue
		}
		var mapped []v1.ContainerExtendedResourceRequest
		lasting[i], mapped = deviceRequest(i, &containers[i], name, class, nil)
		mappings = append(mappings, mapped...)
	}

	// most is the demand of init containers beyond the usable devices of later containers.
	var most *resourcev1.DeviceRequest
	brief := map[string]bool{}
	for i := range pod.Spec.InitContainers {
		if !isTerminating(&containers[i], true) {
			continue
		}
		request, mapped := deviceRequest(i, &containers[i], name, class, lasting[i:])
		briefMappings = append(briefMappings, mapped...)
		if request == nil {
			continue
		}
		brief[request.Name] = true
		if most == nil || most.Exactly.Count < request.Exactly.Count {
			most = request
		}
	}

	var requests []resourcev1.DeviceRequest
	if most != nil {
		requests = append(requests, *most)
	}

	for _, request := range lasting {
		if request != nil {
			requests = append(requests, *request)
		}
	}

	// The init containers run one after the other, so the largest request serves all of them.
	for i := range briefMappings {
		if brief[briefMappings[i].RequestName] {
			briefMappings[i].RequestName = most.Name
		}
	}
	return requests, append(mappings, briefMappings...)
}

// isTerminating reports whether the container is an init container that terminates before the pod
// runs.
func isTerminating(c *v1.Container, init bool) bool {
	return init && (c.RestartPolicy == nil || *c.RestartPolicy != v1.ContainerRestartPolicyAlways)
}

// deviceRequest is one container's request for devices, less the share covered by other requests
// (usable, in their order; nil entries are skipped). It is nil if nothing remains. As in
// upstream, its name holds the index of the container, and the index of the resource among all of
// the container's requests, sorted by name.
func deviceRequest(index int, c *v1.Container, name v1.ResourceName, class string, usable []*resourcev1.DeviceRequest) (
	*resourcev1.DeviceRequest, []v1.ContainerExtendedResourceRequest,
) {
	quantity, ok := c.Resources.Requests[name]
	count, exact := quantity.AsInt64()
	if !ok || !exact || count == 0 {
		return nil, nil
	}

	var mappings []v1.ContainerExtendedResourceRequest
	use := func(request string) {
		mappings = append(mappings, v1.ContainerExtendedResourceRequest{ContainerName: c.Name,
			ResourceName: string(name), RequestName: request})
	}

	// Use the devices of later containers first: they are free until those containers start.
	for _, other := range usable {
		if other == nil {
			continue
		}
		count -= other.Exactly.Count
		use(other.Name)
		if count <= 0 {
			return nil, mappings
		}
	}

	// Counting replaces sorting, because a container requests few resources.
	before := 0
	for other := range c.Resources.Requests {
		if other < name {
			before++
		}
	}

	request := &resourcev1.DeviceRequest{
		Name: fmt.Sprintf("container-%d-request-%d", index, before),
		Exactly: &resourcev1.ExactDeviceRequest{
			DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
		},
	}

	use(request.Name)
	return request, mappings
}
