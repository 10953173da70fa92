// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// exhibit returns a crowd with something to show in every view.
func exhibit() *stage.Crowd {
	c := busy(24, nil)
	c.Other = deployed().Other
	c.Other["resourceslices"] = []*resourcev1.ResourceSlice{{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: resourcev1.ResourceSliceSpec{
		NodeName: new("node-6"), Driver: "gpu.example.com", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}, {Name: "gpu-1", Taints: []resourcev1.DeviceTaint{{Key: "broken", Effect: "NoExecute"}}}}}}}
	c.Other["resourceclaims"] = []*resourcev1.ResourceClaim{}
	leave(c, 0, -time.Hour, "EvictionByEvictionAPI") // overdue
	leave(c, 3, time.Hour, v1.PodReasonPreemptionByScheduler)
	nominated := ofWorkload(c, 200)
	nominated.Status.NominatedNodeName = c.Pods[3].Spec.NodeName
	c.SetPod(len(c.Pods), nominated)
	for i, n := range c.Nodes { // a drain that waits
		if n.Name == c.Pods[0].Spec.NodeName {
			c.SetNode(i, func(n *v1.Node) { n.Spec.Unschedulable = true })
		}
	}
	for i, p := range c.Pods[1:] {
		if p.Spec.NodeName == c.Pods[0].Spec.NodeName {
			wait(c, i+1, "the disruption budget web needs 2 healthy pods and has 2")
		}
	}
	return c
}

// misfits names what is wider than the screen, the neighbors in a view that overlap, rows that hide
// a part of their text, and tabs that do not fit.
const misfits = `(() => {
	const found = [];
	for (const view of document.querySelectorAll('#body .view')) {
		const parts = [...view.children].map((e) => [e, (e.querySelector('.list-scroll') || e).getBoundingClientRect()]).filter(([, r]) => r.height);
		parts.forEach(([e, r], i) => { if (i && r.top < parts[i - 1][1].bottom - 1) found.push(parts[i - 1][0].className + ' reaches into ' + e.className); });
	}
	for (const cell of document.querySelectorAll('#body .rows .two')) if (cell.scrollHeight > cell.closest('.row').clientHeight) found.push(cell.scrollHeight - cell.closest('.row').clientHeight + ' pixels of a row are hidden: ' + cell.textContent);
	if (document.documentElement.scrollWidth > innerWidth) found.push('the page is ' + document.documentElement.scrollWidth + ' pixels wide');
	const tabs = document.querySelector('#tabs');
	if (tabs.scrollWidth > tabs.clientWidth) found.push('the tabs are ' + tabs.scrollWidth + ' pixels wide');
	return found.join('; ');
})()`

// TestViewsFitEveryScreen verifies that every view fits a phone's screen and a desk's; in short
// mode, only a phone's. With -shots it writes pictures of all views.
func TestViewsFitEveryScreen(t *testing.T) {
	ui := ofCrowd(t, exhibit())
	unfold := func(title string) string {
		return "([...document.querySelectorAll('#body details')].find((d) => d.textContent.startsWith('" + title + "')) || {}).open = true"
	}
	for _, v := range []struct{ name, path, ready string }{
		{"map", "", "document.querySelector('#map').map.layout"},
		{"zone", "?zoom=%3Dz1", "document.querySelector('#map').dataset.nodes === '8'"},
		{"table", "?shape=table", "document.querySelector('#nodes .list').dataset.rows === '24'"},
		{"queue", "#/queue", "document.querySelector('#body .fold')?.getAttribute('aria-expanded') === 'true' || document.querySelector('#body .fold')?.click()"},
		{"evictions", "#/evictions", "document.querySelector('.row.overdue')"},
		{"drains", "#/evictions", "document.querySelector('.drains .blocks') && (document.querySelector('.drains').scrollIntoView(), true)"},
		{"budgets", "#/evictions", "document.querySelector('.budgets') && (" + unfold("Disruption") + ", document.querySelector('.budgets').scrollIntoView(), document.querySelector('.budgets li'))"},
		{"history", "#/history", "document.querySelector('#body .list').dataset.rows === '2'"},
		{"events", "#/events", "document.querySelector('#body .row .chip')"},
		{"node", "#/node/node-1", "document.querySelector('.rooms')"},
		{"devices", "#/node/node-6", "document.querySelector('.rooms') && (" + unfold("Devices") + ", document.querySelector('.device')) && (document.querySelector('.device').scrollIntoView({block: 'center'}), true)"},
		{"pod", "#/pod/default/pod-1", "document.querySelector('.summary-line')"},
		{"pending", "#/pod/shop/workload-1-5d4f-00001", "document.querySelector('.summary-line')"},
		{"workload", "#/workload/shop/Deployment/workload-1", "document.querySelector('#body .list')?.dataset.rows > 0"},
		{"what-if", "?forecast=drain+node%2Fnode-2+--ignore-daemonsets+--force#/what-if", "document.querySelector('#map').map.view.plan"},
		{"wall", "?wall", "document.querySelector('#map').map.layout"},
	} {
		t.Run(v.name, func(t *testing.T) {
			for _, screen := range []stage.View{{Width: 390, Height: 844}, desk} {
				if screen == desk && testing.Short() {
					continue
				}
				p := open(t, ui.URL, v.path, screen)
				p.wait(v.ready)
				if got := eval[string](p, misfits); got != "" {
					t.Errorf("%d pixels: %s", screen.Width, got)
				}
				p.done()
			}
			pictures(t, ui.URL, v.path, "all-"+v.name, v.ready)
		})
	}
}
