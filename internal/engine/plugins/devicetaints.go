// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package plugins

import (
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-k8s/berth/internal/engine/cluster"
)

// Detail implements Detailer. It lists the devices requested, present and free for the pod's open
// claims, and the taints that keep free devices of the node from the pod. For the taints it does
// not evaluate device selectors, so some of the tainted devices may not match the claims.
func (d *DynamicResources) Detail(c *cluster.Cluster, p *cluster.Pod) func(*cluster.Node) string {
	if !needsDevices(c, p) {
		return func(*cluster.Node) string { return "" }
	}
	a := d.attemptFor(c, p)
	// If a claim or class is missing, no device is searched for, so no device is withheld.
	if a.err != nil || a.rejection != nil {
		return func(*cluster.Node) string { return "" }
	}
	// Each alternative of a request counts as a separate request.
	tolerated := tolerationsOf(a.open)
	// Devices not tied to one node, for example of a fabric, are in separate slices.
	shared := slices.DeleteFunc(c.ResourceSlices.All(), isLocal)
	tally := &deviceTally{a: a, users: d.deviceUsers(c, p)}

	return func(n *cluster.Node) string {
		within := d.devicesWithin(n, shared)
		texts := slices.Concat(tally.elsewhere(n), tally.countsOf(within))
		taints, devices := sets.New[string](), 0
		for _, device := range within {
			// List only free devices withheld from all requests: other devices are unavailable for
			// another reason.
			if kept := keptBack(device.Device, tolerated); len(kept) > 0 && !d.index.isTaken(device.id) {
				devices++
				taints.Insert(kept...)
			}
		}
		switch devices {
		case 0:
		case 1:
			texts = append(texts, "a free device is tainted: "+strings.Join(sets.List(taints), ", "))
		default:
			texts = append(texts, fmt.Sprintf("%d free devices are tainted: %s", devices, strings.Join(sets.List(taints), ", ")))
		}
		return strings.Join(texts, "; ")
	}
}

// Brief implements Briefer. The node with the most devices is the closest to taking the pod.
func (d *DynamicResources) Brief(c *cluster.Cluster, p *cluster.Pod) string {
	if a := d.attemptFor(c, p); a.err != nil || a.rejection != nil {
		return "" // the reason names the claim
	}
	var best *cluster.Node
	most, shared := -1, slices.DeleteFunc(c.ResourceSlices.All(), isLocal)
	for _, n := range c.SortedNodes() {
		if count := len(d.devicesWithin(n, shared)); count > most {
			best, most = n, count
		}
	}
	if best == nil {
		return ""
	}
	text := d.Detail(c, p)(best)
	if text != "" && most > 0 {
		text += " on " + best.Name
	}
	return text
}

// tolerationsOf returns the tolerations of each request of claims, and of each alternative.
func tolerationsOf(claims []*resourcev1.ResourceClaim) (list [][]resourcev1.DeviceToleration) {
	for _, claim := range claims {
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			if r.Exactly != nil {
				list = append(list, r.Exactly.Tolerations)
			}
			for j := range r.FirstAvailable {
				list = append(list, r.FirstAvailable[j].Tolerations)
			}
		}
	}
	return list
}

// keptBack returns the taints that withhold a device from every request, or nil if one request
// tolerates all of them. A taint with the effect None only informs.
func keptBack(device *resourcev1.Device, tolerated [][]resourcev1.DeviceToleration) (taints []string) {
	for _, tolerations := range tolerated {
		var kept []string
		for _, taint := range device.Taints {
			if taint.Effect != resourcev1.DeviceTaintEffectNone && !toleratesDevice(taint, tolerations) {
				kept = append(kept, textOfTaint(taint))
			}
		}
		if len(kept) == 0 {
			return nil
		}
		taints = append(taints, kept...)
	}
	return taints
}

// toleratesDevice reports whether one of the tolerations matches the taint.
func toleratesDevice(taint resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration) bool {
	return slices.ContainsFunc(tolerations, func(t resourcev1.DeviceToleration) bool { return resourceclaim.ToleratesTaint(t, taint) })
}

// textOfTaint formats a taint like kubectl: key=value:effect.
func textOfTaint(taint resourcev1.DeviceTaint) string {
	text := taint.Key
	if taint.Value != "" {
		text += "=" + taint.Value
	}
	return text + ":" + string(taint.Effect)
}
