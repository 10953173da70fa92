// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// deployed returns a crowd of six nodes in which the Deployment shop/cart has three pods on nodes
// and a pending one, and a budget. Pods of ten other Deployments are around.
func deployed() *stage.Crowd {
	c := stage.NewCrowd(6, 3, 0)
	place := func(namespace, workload, node string) {
		p := c.Pod(len(c.Pods), node)
		p.Namespace, p.Labels = namespace, map[string]string{"app": workload, "pod-template-hash": "5d4f"}
		p.Name = fmt.Sprintf("%s-5d4f-%d", workload, len(c.Pods))
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: workload + "-5d4f", UID: "rs", Controller: new(true)}}
		c.Pods = append(c.Pods, p)
	}
	for _, node := range []string{"node-1", "node-1", "node-2", ""} {
		place("shop", "cart", node)
	}
	for i := range 10 {
		place("default", fmt.Sprintf("other-%d", i), fmt.Sprintf("node-%d", i%6+1))
	}
	c.Other = map[string]any{
		"deployments": []*appsv1.Deployment{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart"},
			Spec: appsv1.DeploymentSpec{Replicas: new(int32(4)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}},
				Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "cart"}}}},
			Status: appsv1.DeploymentStatus{UpdatedReplicas: 4, ReadyReplicas: 3, AvailableReplicas: 3,
				Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Message: "ReplicaSet \"cart-5d4f\" is progressing."}}}}},
		"poddisruptionbudgets": []*policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart-budget"},
			Spec:   policyv1.PodDisruptionBudgetSpec{MinAvailable: new(intstr.FromInt32(3)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "cart"}}},
			Status: policyv1.PodDisruptionBudgetStatus{CurrentHealthy: 3, DesiredHealthy: 3, ExpectedPods: 4}}},
	}
	return c
}

// TestAWorkloadHasAPage verifies that the search leads to the page of a workload, which shows its
// nodes, zones, pending pods, budget and rollout, and that the map highlights its pods.
func TestAWorkloadHasAPage(t *testing.T) {
	ui := ofCrowd(t, deployed())
	p := open(t, ui.URL, "", desk)
	p.wait("document.querySelector('#map').map.view.blocks")
	other := p.inked("node-1", "other-0-5d4f-4")
	p.press("/")
	p.wait("document.activeElement.id === 'search'")
	p.press(strings.Split("cart", "")...)
	p.wait("[...document.querySelectorAll('#found [role=option]')].some((o) => o.textContent === 'shop/Deployment/cartworkload, 4 pods')")
	eval[bool](p, "([...document.querySelectorAll('#found [role=option]')].find((o) => o.textContent.includes('workload, ')).dispatchEvent(new PointerEvent('pointerdown', {bubbles: true, cancelable: true})), true)")
	p.wait("location.hash === '#/workload/shop/Deployment/cart'")
	p.shows("#body", "3 pods on 2 nodes in 2 zones: z1 2, z2 1")
	p.shows("#body", "Pending: 1 pod")
	p.shows("#body", "cart-budget")
	p.shows("#body", "allows no eviction")
	p.shows("#body", "3 of 4 pods healthy, 3 needed")
	p.shows("#body", "of 4 replicas, 4 updated, 3 ready, 3 available")
	p.wait("document.querySelector('#body .list').dataset.rows === '4'")
	if faded := p.inked("node-1", "other-0-5d4f-4"); faded == other {
		t.Errorf("a pod of another workload is as before: %s", faded)
	}
	p.click("#body .facts .plain button")
	p.wait("document.querySelector('#wi-words').value === 'drain node/node-1 --ignore-daemonsets --force'")
	p.press(kb.Escape)
	pictures(t, ui.URL, "#/workload/shop/Deployment/cart", "2-workload", "document.body.textContent.includes('cart-budget') && document.querySelector('#body .list').dataset.rows === '4'")
}

// TestFiltersAndLegendAffectTheMap verifies that an entry of the legend fades the other pods on the
// map, that a workload's color survives a reload with further workloads, and that opening a pod
// marks its node.
func TestFiltersAndLegendAffectTheMap(t *testing.T) {
	c := deployed()
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	p.wait("document.querySelector('#map').map.view.blocks")
	cart, other := p.inked("node-1", "cart-5d4f-0"), p.inked("node-1", "other-0-5d4f-4")
	eval[bool](p, "([...document.querySelectorAll('#legend button')].find((b) => b.textContent === 'shop/cart').click(), true)")
	p.wait("new URLSearchParams(location.search).get('workload') === 'shop/Deployment/cart'")
	if a, b := p.inked("node-1", "cart-5d4f-0"), p.inked("node-1", "other-0-5d4f-4"); a != cart || b == other {
		t.Errorf("cart was %s, is %s; another was %s, is %s", cart, a, other, b)
	}
	p.shows("#node-filter", "2 nodes with these pods")
	p.click("#body .filters button")
	p.wait("!location.search.includes('workload')")
	for i := range 4 {
		early := c.Pod(900+i, "node-3")
		early.Name = fmt.Sprintf("aaa-%d", i)
		early.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: fmt.Sprintf("aaa-%d", i), UID: "x", Controller: new(true)}}
		c.SetPod(len(c.Pods), early)
	}
	eval[bool](p, "(window.before_ = true, location.reload(), true)")
	p.wait("!window.before_ && document.querySelector('#map')?.map?.layout && document.querySelector('#map').map.node('node-3')?.blocks.some((b) => b.n === 'aaa-3')")
	if again := p.inked("node-1", "cart-5d4f-0"); again != cart {
		t.Errorf("cart was %s, and is %s after a reload", cart, again)
	}
	eval[bool](p, "(location.hash = '#/pod/shop/cart-5d4f-2', true)")
	p.wait("document.querySelector('#map').map.view.chosen === 'node-2' && document.querySelector('#map').map.view.chosenPod === 'shop/cart-5d4f-2'")
	p.shows("#body .chips", "Deployment/cart")
	p.click("#colour [data-value=namespace]")
	p.shows("#legend", "shop")
	pictures(t, ui.URL, "?workload=shop/Deployment/cart", "2-filter", "document.querySelector('#node-filter').textContent.includes('with these pods')")
}

// TestAViewThatCannotBeDrawnIsNamed verifies that the page states that pods cannot be drawn in a
// large cluster, and that filters of pods still affect the map.
func TestAViewThatCannotBeDrawnIsNamed(t *testing.T) {
	ui := ofCrowd(t, stage.NewCrowd(1200, 3, 1500))
	p := open(t, ui.URL, "?namespace=default", desk)
	p.shows("#unseen", "Workloads cannot be drawn: 1,200 nodes leave no room for pods.")
	p.wait("document.querySelector('#map').map.view.holders?.size > 100")
	p.click("#unseen button")
	p.wait("document.querySelector('#unseen').hidden && document.querySelector('#map').map.view.colour === 'fill'")
	pictures(t, ui.URL, "", "2-unseen", "!document.querySelector('#unseen').hidden")
}
