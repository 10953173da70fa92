// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// TestNodesAreGroupedByAnyLabel verifies that the map groups nodes by a label, shows one group
// alone after a click on its title, and keeps both in the address.
func TestNodesAreGroupedByAnyLabel(t *testing.T) {
	c := stage.NewCrowd(12, 3, 24)
	for i := range 5 {
		c.SetNode(i, func(n *v1.Node) { n.Labels["pool"] = []string{"blue", "green"}[i%2] })
	}
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	groups := "document.querySelector('#map').map.layout?.groups.map((g) => g.name + ' ' + g.count).join()"
	p.wait(groups + " === 'z1 4,z2 4,z3 4'")
	const title = `((name) => { const map = document.querySelector('#map').map, g = map.layout.groups.find((g) => g.name === name), r = map.box.getBoundingClientRect(); return [r.left + g.x + 5, r.top + g.y + 12]; })`
	at := eval[[]float64](p, title+"('z2')")
	if err := p.ClickAt(at[0], at[1]); err != nil {
		t.Fatal(err)
	}
	p.wait(groups + " === 'z2 4'")
	p.click("#shape [data-value=table]")
	p.wait("document.querySelector('#nodes .list').dataset.rows === '4'")
	p.click("#shape [data-value=map]")
	const choose = `((label, value) => { const s = document.querySelector('#grouping select[aria-label="' + label + '"]'); s.value = value; s.dispatchEvent(new Event('change')); return true; })`
	p.wait("[...document.querySelectorAll('#grouping option')].some((o) => o.value === 'pool')")
	eval[bool](p, choose+"('Group nodes by', 'pool')")
	p.wait(groups + " === ' 7,blue 3,green 2'")
	p.click("#colour [data-value=zone]")
	p.shows("#legend", "no pool")
	eval[bool](p, choose+"('Show one group', '=green')")
	p.wait(groups + " === 'green 2' && location.search.includes('group=pool')")
	other := open(t, ui.URL, eval[string](p, "location.search"), desk)
	other.wait(groups + " === 'green 2'")
	c.SetNode(7, func(n *v1.Node) { n.Labels["pool"] = "green" })
	other.wait(groups + " === 'green 3'")
	pictures(t, ui.URL, "?group=pool", "7-groups", groups+" === ' 6,blue 3,green 3'")
}

// TestDevicesAndBudgetsAreListed verifies that a node lists its devices with users, shares and
// taints, a pending pod its device requests, and the evictions the budgets with their allowance.
func TestDevicesAndBudgetsAreListed(t *testing.T) {
	c := deployed()
	c.Other["resourceslices"] = []*resourcev1.ResourceSlice{{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: new("node-1"), Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1", Taints: []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoExecute}}}},
	}}}
	c.Other["resourceclaims"] = []*resourcev1.ResourceClaim{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "claim"}, Status: resourcev1.ResourceClaimStatus{
		ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "cart-5d4f-0", UID: "uid-1"}},
		Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
			{Request: "r", Driver: "gpu.example.com", Pool: "p", Device: "gpu-0"}}}},
	}}}
	pending := c.Pods[3].DeepCopy()
	pending.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("wanted")}, {Name: "disk", ResourceClaimTemplateName: new("scratch")}}
	c.Pods[3] = pending
	c.Other["resourceclaims"] = append(c.Other["resourceclaims"].([]*resourcev1.ResourceClaim), &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "wanted"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu.example.com", Count: 2,
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: "device.driver == \"gpu.example.com\""}}}}}}}}})
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "#/node/node-1", desk)
	p.wait("document.querySelector('.rooms')")
	unfold := func(title string) string {
		return "[...document.querySelectorAll('#body details')].find((d) => d.textContent.startsWith('" + title + "')).open = true"
	}
	eval[bool](p, unfold("Devices"))
	p.shows("#body .device", "gpu-0 in useshop/cart-5d4f-0 by claim claim")
	p.wait("[...document.querySelectorAll('#body .device')].some((d) => d.textContent.startsWith('gpu-1 free broken:NoExecute'))")
	eval[bool](p, "(location.hash = '#/evictions', true)")
	p.wait("document.querySelector('#body .budgets')")
	eval[bool](p, unfold("Disruption"))
	p.shows("#body .budgets li", "shop/cart-budget at least 3 available allows no eviction 3 of 4 pods healthy, 3 needed")
	eval[bool](p, "(location.hash = '#/pod/shop/cart-5d4f-3', true)")
	p.wait("document.querySelector('.summary-line')")
	eval[bool](p, unfold("Requests and devices"))
	p.shows("#body .device-claim", "Claim gpu")
	p.shows("#body .device-claim", "r 2 devices of class gpu.example.com")
	p.shows("#body .device-claim", "device.driver ==")
	p.shows("#body .device-claim", "not allocated")
	p.wait("[...document.querySelectorAll('#body .device-claim')].some((d) => d.textContent.includes('Claim disk from template scratchNo claim has been made from scratch yet'))")
	pictures(t, ui.URL, "#/pod/shop/cart-5d4f-3", "7-pod", "document.querySelector('.summary-line') && ("+unfold("Requests and devices")+")")
	pictures(t, ui.URL, "#/node/node-1", "7-node", "document.querySelector('.rooms') && ("+unfold("Devices")+")")
}

// TestChangedTaintsDoNotLayOutTheMapAgain verifies that the labels of nodes are read again after a
// change of taints, but not after each of them, and that the map keeps its layout.
func TestChangedTaintsDoNotLayOutTheMapAgain(t *testing.T) {
	c := stage.NewCrowd(4, 2, 8)
	p := open(t, ofCrowd(t, c).URL, "", desk)
	read := "performance.getEntriesByType('resource').filter((e) => e.name.includes('/api/labels')).length"
	p.wait("document.querySelector('#map').map.layout && " + read + " > 0")
	eval[bool](p, "(window.laidOut = document.querySelector('#map').map.layout, true)")
	first := eval[int](p, read)
	for i := range 10 {
		key := fmt.Sprintf("k%d", i)
		c.SetNode(0, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: key, Effect: v1.TaintEffectNoSchedule}} })
		p.wait(fmt.Sprintf("document.querySelector('#map').map.node('node-1').taints[0] === '%s:NoSchedule'", key))
	}
	p.wait(fmt.Sprintf("%s > %d", read, first))
	eval[bool](p, twoFrames)
	if more := eval[int](p, read) - first; more > 3 {
		t.Errorf("the labels were read %d times", more)
	}
	if !eval[bool](p, "document.querySelector('#map').map.layout === window.laidOut") {
		t.Error("the map was laid out again")
	}
}
