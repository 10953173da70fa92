// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// reachedDevice is a device within a node's reach.
type reachedDevice struct {
	*resourcev1.Device
	driver string
	id     structured.DeviceID
}

// devicesWithin lists the devices within a node's reach, of the newest generation of each pool.
// shared are the slices not tied to a single node.
func (d *DynamicResources) devicesWithin(n *cluster.Node, shared []*resourcev1.ResourceSlice) (list []reachedDevice) {
	all := slices.Concat(d.index.slicesFor(n.Name), shared)
	newest := map[poolID]int64{}
	for _, slice := range all {
		newest[poolOf(slice)] = max(newest[poolOf(slice)], slice.Spec.Pool.Generation)
	}

	known := sets.New[structured.DeviceID]() // a shared slice may belong to one of the node's pools
	for _, slice := range all {
		if reaches, err := sliceReaches(&slice.Spec, n); err != nil || !reaches || slice.Spec.Pool.Generation < newest[poolOf(slice)] {
			continue
		}
		for i := range slice.Spec.Devices {
			device := reachedDevice{&slice.Spec.Devices[i], slice.Spec.Driver, deviceOf(slice, i)}
			if reaches, err := deviceReaches(device.Device, n); ptr.Deref(slice.Spec.PerDeviceNodeSelection, false) && (err != nil || !reaches) {
				continue
			}
			if !known.Has(device.id) {
				known.Insert(device.id)
				list = append(list, device)
			}
		}
	}
	return list
}

// deviceUsers names the users of each allocated device: the pods in its claim's reservation, or the
// claim. With preemption for devices, it adds the reason why a user keeps its devices.
func (d *DynamicResources) deviceUsers(c *cluster.Cluster, p *cluster.Pod) map[structured.DeviceID][]string {
	users := map[structured.DeviceID][]string{}
	for claim := range c.ResourceClaims.Each {
		if claim.Status.Allocation == nil {
			continue
		}

		user, ids := fmt.Sprintf("claim %s/%s, reserved for no pod", claim.Namespace, claim.Name), idsOf(*claim.Status.Allocation)
		by, why := whyKept(c, p, claim)
		switch pods := joinFew(consumersOf(claim)); {
		case pods == "":
		case d.preempts && why != "":
			user = fmt.Sprintf("%s (claim %s: preemption does not release %s, since %s %s)", pods, claim.Name, joinFew(ids), by.Name, why)
		default:
			user = fmt.Sprintf("%s (claim %s)", pods, claim.Name)
		}
		for _, id := range ids {
			users[id] = append(users[id], user)
		}
	}
	return users
}

// whyKept returns the user of an allocated claim because of which preemption by a pod does not
// release the claim, and the reason. Without a reason it returns any user.
func whyKept(c *cluster.Cluster, p *cluster.Pod, claim *resourcev1.ResourceClaim) (
	user resourcev1.ResourceClaimConsumerReference, why string,
) {
	why = "is reserved for no pod"
	for _, user = range claim.Status.ReservedFor {
		o := c.Pod(user.UID)
		switch why = ""; {
		case user.APIGroup != "" || user.Resource != "pods":
			return user, "keeps its claims"
		case o == nil && (c.Nominated(user.UID) != nil || c.IsPending != nil && c.IsPending(user.UID)):
			return user, "has no node yet"
		case o != nil && o.Class.Priority >= p.Class.Priority:
			return user, fmt.Sprintf("has priority %d (this pod: %d)", o.Class.Priority, p.Class.Priority)
		}
	}
	return user, why
}

// consumersOf names the pods in a claim's reservation.
func consumersOf(claim *resourcev1.ResourceClaim) []string {
	return rules.Mapped(claim.Status.ReservedFor, func(consumer resourcev1.ResourceClaimConsumerReference) string {
		return claim.Namespace + "/" + consumer.Name
	})
}

// joinFew joins the texts of at most three elements, and counts the rest.
func joinFew[T any](list []T) string {
	const few = 3
	texts := rules.Mapped(list[:min(few, len(list))], func(one T) string { return fmt.Sprint(one) })
	text := strings.Join(texts, ", ")
	if len(list) > few {
		text += fmt.Sprintf(" and %d more", len(list)-few)
	}
	return text
}

// deviceTally counts devices for the requests of a pod's open claims. It stops counting after
// tallyLimit, because a tenant's expressions must not delay the explanations of other pods.
type deviceTally struct {
	a     *attempt
	users map[structured.DeviceID][]string
	spent int64 // in units of searchCost
}

// tallyLimit bounds the evaluation of selectors for one explanation.
const tallyLimit = int64(time.Second / searchCost)

// talliedRequest is a request of a claim, or one of its alternatives.
type talliedRequest struct {
	name, class string
	selectors   []resourcev1.DeviceSelector
	all         bool // all matching devices
	count       int64
}

// talliedRequests lists the requests of a claim and their alternatives. It omits requests for admin
// access, which take no device.
func talliedRequests(claim *resourcev1.ResourceClaim) (list []talliedRequest) {
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		if e := r.Exactly; e != nil && !ptr.Deref(e.AdminAccess, false) {
			list = append(list, talliedRequest{r.Name, e.DeviceClassName, e.Selectors,
				e.AllocationMode == resourcev1.DeviceAllocationModeAll, e.Count})
		}
		for j := range r.FirstAvailable {
			s := &r.FirstAvailable[j]
			list = append(list, talliedRequest{r.Name + "/" + s.Name, s.DeviceClassName, s.Selectors,
				s.AllocationMode == resourcev1.DeviceAllocationModeAll, s.Count})
		}
	}
	return list
}

// countsOf describes the requests with too few free devices among the given devices, which are
// within a node's reach. If each request has enough free devices, it describes all requests, since
// only their combination fails.
func (t *deviceTally) countsOf(devices []reachedDevice) []string {
	var short, rest []string
	for _, claim := range t.a.open {
		for _, r := range talliedRequests(claim) {
			present, free, users := t.countFor(&r, devices)
			if t.spent > tallyLimit {
				return nil
			}

			wanted := fmt.Sprint(r.count)
			if r.all {
				wanted = "all"
			}
			text := fmt.Sprintf("claim %s, request %s: wants %s of class %s, %d present, %d free", claim.Name, r.name, wanted, r.class, present, free)
			switch {
			case t.a.c.ResourceSlices.Len() == 0:
				text += " (there are no ResourceSlices: does the driver run?)"
			case len(devices) == 0:
				text += " (no ResourceSlice has devices for the node)"
			case present == 0:
				text += " (the selectors match none of the node's devices)"
			case len(users) > 0:
				text += ", used by " + joinFew(users)
			}
			if lacks := free < r.count || r.all && (free < present || present == 0); lacks {
				short = append(short, text)
			} else {
				rest = append(rest, text)
			}
		}
	}
	if len(short) == 0 && len(rest) > 0 {
		return append(rest, "no choice of these devices satisfies all requests and constraints together")
	}
	return short
}

// elsewhere describes the allocated claims out of a node's reach, and the pods for which they are
// reserved.
func (t *deviceTally) elsewhere(n *cluster.Node) (texts []string) {
	for i, claim := range t.a.claims {
		if claim.Status.Allocation == nil || t.a.reachable[i] == nil || t.a.reachable[i].match(n) {
			continue
		}
		texts = append(texts, fmt.Sprintf("claim %s is allocated out of the node's reach, for %s", claim.Name,
			cmp.Or(joinFew(consumersOf(claim)), "no pod")))
	}
	return texts
}

// countFor counts the devices matching a request, and the free devices among them, and lists the
// users of the other devices.
func (t *deviceTally) countFor(r *talliedRequest, devices []reachedDevice) (present, free int64, users []string) {
	names := sets.New[string]()
	for _, device := range devices {
		if !t.matches(r, device) {
			continue
		}
		present++
		x := &t.a.d.index
		if x.holders[device.id] == 0 && (len(x.shares[device.id]) == 0 || ptr.Deref(device.AllowMultipleAllocations, false)) {
			free++
			continue
		}
		names.Insert(t.users[device.id]...)
	}
	return present, free, sets.List(names)
}

// matches evaluates the selectors of the request and of its class.
func (t *deviceTally) matches(r *talliedRequest, device reachedDevice) bool {
	selectors := r.selectors
	if class, known := t.a.c.DeviceClasses.Get("", r.class); known {
		selectors = slices.Concat(class.Spec.Selectors, selectors)
	}
	for _, selector := range selectors {
		if selector.CEL == nil || t.spent > tallyLimit {
			continue
		}
		compiled := t.a.expressions.cache.GetOrCompile(selector.CEL.Expression)
		if compiled.Error != nil {
			return false
		}

		cost := t.a.expressions.costs.costOf(selector.CEL.Expression)
		if t.spent += cost.most; cost.isEndless() {
			t.spent = tallyLimit + 1
		}
		if t.spent > tallyLimit {
			continue
		}
		matches, _, err := compiled.DeviceMatches(context.Background(), cel.Device{Driver: device.driver,
			AllowMultipleAllocations: device.AllowMultipleAllocations, Attributes: device.Attributes, Capacity: device.Capacity})
		if err != nil || !matches {
			return false
		}
	}
	return true
}
