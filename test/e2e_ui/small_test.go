// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"strings"
	"testing"

	"github.com/chromedp/chromedp/kb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// rejected returns a pending pod with the given message of the scheduler.
func rejected(c *stage.Crowd, i int, message string) *v1.Pod {
	p := c.Pod(i, "")
	p.Status.Conditions[0].Message = message
	return p
}

func TestMissingClaimsShareOneReason(t *testing.T) {
	c := stage.NewCrowd(3, 1, 0)
	for i := range 6 {
		c.SetPod(len(c.Pods), rejected(c, i, fmt.Sprintf("0/3 nodes are available: persistentvolumeclaim \"data-%d\" not found.", i)))
	}
	c.SetPod(len(c.Pods), rejected(c, 6, "0/3 nodes are available: 3 Insufficient cpu."))
	p := open(t, ofCrowd(t, c).URL, "", desk)
	p.wait("document.querySelector('#body .list').dataset.rows === '7'")
	if text := eval[string](p, "[...document.querySelectorAll('.reason')].map((r) => r.textContent).join('; ')"); text != "6 persistentvolumeclaim not found; 1 Insufficient cpu" {
		t.Errorf("reasons: %s", text)
	}
}

func TestSortOrdersAreInTheAddress(t *testing.T) {
	c := stage.NewCrowd(5, 1, 0)
	c.SetPod(len(c.Pods), c.Pod(0, "node-3"))
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "?shape=table", desk)
	p.shows("#nodes .row[data-at='0']", "node-1")
	p.click("#nodes [role=columnheader]:nth-child(6) button")
	p.shows("#nodes .row[data-at='0']", "node-3")
	search := eval[string](p, "location.search")
	if search != "?shape=table&sort.nodes=-pods" {
		t.Errorf("the address: %s", search)
	}
	other := open(t, ui.URL, search, desk)
	other.shows("#nodes .row[data-at='0']", "node-3")
	other.click("#nodes [role=columnheader]:nth-child(1) button")
	other.shows("#nodes .row[data-at='0']", "node-1")
	if search := eval[string](other, "location.search"); search != "?shape=table" {
		t.Errorf("sorted as usual: %s", search)
	}
}

func TestOnlyNodesThatExistAreLinks(t *testing.T) {
	c := stage.NewCrowd(1, 1, 0)
	for i, on := range []string{"node-1", ""} {
		pod := c.Pod(i, on)
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU] = resource.MustParse("12")
		c.SetPod(i, pod)
	}
	p := open(t, ofCrowd(t, c).URL, "#/pod/default/pod-2", desk)
	p.shows("#body .suggestions", "then on node-1-more")
	p.wait("document.querySelector('#body').textContent.includes('node-1-more') && !document.querySelector('#body a[href$=more]')")
	eval[bool](p, "(location.hash = '#/what-if', true)")
	p.wait("document.querySelector('#wi-words')")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'add-nodes 1 --like node/node-1', document.querySelector('.primary').click(), true)")
	p.shows("#body .answer", "Placed")
	if links := eval[int](p, "[...document.querySelectorAll('#body .answer a[href^=\"#/node/\"]')].filter((a) => a.href.split('/').pop() !== 'node-1').length"); links > 0 {
		t.Errorf("%d links to nodes that do not exist", links)
	}
}

func TestAmountsAreRounded(t *testing.T) {
	c := stage.NewCrowd(1, 1, 0)
	c.SetNode(0, func(n *v1.Node) {
		n.Spec.Unschedulable = true
		n.Status.Allocatable[v1.ResourceEphemeralStorage] = resource.MustParse("100001243Ki")
		n.Status.Allocatable["hugepages-2Mi"] = resource.MustParse("1Gi")
	})
	p := open(t, ofCrowd(t, c).URL, "?colour=taint#/node/node-1", desk)
	p.shows("#body .rooms", "0 of 95.4 Gi")
	p.shows("#body .rooms", "0 of 1 Gi")
	p.shows("#legend", "cordoned")
	if text := eval[string](p, "document.querySelector('#legend').textContent"); text != "no taint 0~PreferNoSchedule 0–NoSchedule 0×NoExecute 0/cordoned 1!not ready 0" {
		t.Errorf("the legend: %s", text)
	}
}

func TestNoNodesAreNotAllReady(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(0, 1, 0)).URL, "", desk)
	if text := eval[string](p, "document.querySelector('#summary .tile').title"); text != "Nodes: 0 none" {
		t.Error(text)
	}
}

func TestListsByKeyboardAsInK9s(t *testing.T) {
	p := open(t, ofCrowd(t, busy(60, nil)).URL, "", desk)
	p.wait("document.querySelector('#body .list').dataset.rows === '30'")
	at := func(row int) {
		t.Helper()
		p.wait(fmt.Sprintf("document.activeElement.closest('#body .row')?.dataset.at === '%d'", row))
	}
	p.press("j")
	at(0)
	p.press("j", "j")
	at(2)
	p.press("k")
	at(1)
	// Unfolding and folding keep the focus.
	p.press(kb.Enter)
	p.wait("document.querySelector('#body .list').dataset.rows > '30' && document.activeElement.getAttribute('aria-expanded') === 'true'")
	at(1)
	p.press("j")
	at(2)
	p.press(kb.Enter)
	p.wait("location.hash.startsWith('#/pod/') && document.activeElement.id === 'panel'")
	p.press(kb.Escape)
	p.wait("location.hash === '#/queue'")
	at(2)
	p.press("/")
	p.wait("document.activeElement.id === 'search'")
	p.press(kb.Escape)
	eval[bool](p, "(location.hash = '#/what-if', true)")
	p.wait("document.querySelector('#wi-words')")
	eval[bool](p, "(document.querySelector('#wi-words').focus(), true)")
	p.press(strings.Split("cordon node/node-1", "")...)
	eval[bool](p, "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', ctrlKey: true, bubbles: true, cancelable: true})) || true")
	p.shows("#body .verdict", "leave")
}
