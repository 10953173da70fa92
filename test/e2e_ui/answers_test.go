// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"testing"

	"github.com/chromedp/chromedp/kb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// forecast contains, for each kind of event, one event caused by the operations and one independent
// of them.
const forecast = `{
	operations: ['cordon node/a'], drains: [], budgets: [], settled: true, for: '10s', source: {asOf: '2026-11-20T10:00:00Z'},
	leaving: [
		{namespace: 'default', name: 'web-a', node: 'a', after: '0s', cause: 'Taint', fate: 'Returns', next: {name: 'web-b', node: 'b'}},
		{namespace: 'default', name: 'web-b', node: 'b', after: '5s', cause: 'Taint', fate: 'Returns', again: true, next: {name: 'web-c', node: 'c'}},
	],
	anyway: [{namespace: 'default', name: 'due', node: 'c', after: '1s', cause: 'Taint', fate: 'Lost'}],
	pending: [
		{namespace: 'default', name: 'new', message: 'm'}, {namespace: 'default', name: 'late', message: 'm', anyway: true},
		{namespace: 'default', name: 'old', message: 'm', before: true, anyway: true},
	],
	placed: [{namespace: 'default', name: 'lucky', node: 'a', after: '0s', before: true}, {namespace: 'default', name: 'always', node: 'b', after: '0s', before: true, anyway: true}],
	utilisation: {
		before: {nodes: 3, empty: 0, pods: 3, pending: 2, cpu: {requested: 1, allocatable: 2, percent: 50}, memory: {requested: 1, allocatable: 2, percent: 50}},
		without: {nodes: 3, empty: 0, pods: 2, pending: 2, cpu: {requested: 1, allocatable: 2, percent: 50}, memory: {requested: 1, allocatable: 2, percent: 50}},
		after: {nodes: 3, empty: 0, pods: 2, pending: 3, cpu: {requested: 1, allocatable: 2, percent: 50}, memory: {requested: 1, allocatable: 2, percent: 50}},
	},
}`

// TestAnswersAreTheTerminals verifies that the dashboard shows the same counts and texts as the
// command for the same result.
func TestAnswersAreTheTerminals(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(1, 1, 0)).URL, "", desk)
	const shown = `import('/whatif.js').then(({WhatIf}) => { const w = new WhatIf({}, {chosen: ''}, {planned() {}}); w.show({document: ` + forecast + `}); return `
	for _, c := range []struct{ what, script, want string }{
		{"the figures of a forecast: leave, find a place, left pending, budgets", shown + `[...w.element.querySelectorAll('.figure b')].map((b) => b.textContent).join(' '); })`, "1 2 1 0"},
		{"the lists of a forecast", shown + `[...w.element.querySelectorAll('.answer .fact h3')].map((b) => b.textContent).join('; '); })`,
			"Pods that leave (1); Left pending (1); Placed (1); Pending with or without this (2); Leave anyway, with or without this (1)"},
		{"the nodes of a plan, those that are alike in a row", `import('/whatif.js').then(({WhatIf}) => { const f = ` + forecast + `;
			const node = {pool: 'p', type: 'm4', zone: 'z1', pricePerHour: 0.25, pods: ['default/a', 'default/b'], cpuPercent: 50, memoryPercent: 100};
			f.provision = {nodes: [node, {...node, cpuPercent: 100}, {...node, zone: 'z2'}], costPerHour: 0.75, costPerMonth: 547.5, pods: 6, pending: [{namespace: 'default', name: 'x', message: 'too large'}]};
			const w = new WhatIf({}, {chosen: ''}, {planned() {}}); w.show({document: f});
			const part = w.element.querySelector('.answer .fact');
			return [...part.querySelectorAll('h3, tbody tr, li')].map((e) => [...(e.cells || [e])].map((c) => c.textContent).join(' ')).join('; '); })`,
			"Buy 3 nodes for 6 pods: 0.75 an hour, 548 a month; m4, z1 2 0.25 0.5 4 75 % 100 %; m4, z2 1 0.25 0.25 2 50 % 100 %; x stays pending: too large"},
		{"how full it is", shown + `[...w.element.querySelectorAll('.answer tbody th')].map((b) => b.textContent).join(' '); })`, "Now Without Then"},
		{"pods that come to a node on the map", `import('/flows.js').then(({Plan}) => { const plan = new Plan(` + forecast + `); return plan.of('a').in + ' ' + plan.of('b').in; })`, "1 1"},
		{"buttons within reach of the keyboard, when another resource is chosen", `import('/dom.js').then(({radios}) => {
			const group = document.createElement('div');
			radios(group, [['cpu', 'CPU'], ['memory', 'Memory']], 'nvidia.com/gpu', () => {});
			return String(group.querySelectorAll('[tabindex="0"]').length);
		})`, "1"},
		{"events, none of which matches", `import('/lists.js').then(({Events}) => { const e = new Events({events: [{uid: '1'}]}, {event: () => false}); e.update(); return e.element.querySelector('strong').textContent; })`, "No event matches"},
		{"nodes, none of which matches", `import('/lists.js').then(({NodeTable}) => { const n = new NodeTable({nodes: new Map([['a', {}]])}, {}, {nodes: new Set()}); n.update(); return n.element.querySelector('strong').textContent; })`, "No node matches"},
		{"Enter right after the last letter of a search", `import('/search.js').then(async ({Search}) => {
			const input = document.createElement('input'), box = document.createElement('div');
			document.body.append(input, box);
			let opened = '';
			new Search(input, box, {ask: async (path) => ({nodes: [new URLSearchParams(path.split('?')[1]).get('q')]}), open: (hash) => { opened = hash; }, filter() {}});
			const type = (words) => { input.value = words; input.dispatchEvent(new Event('input')); };
			const pause = (ms) => new Promise((done) => setTimeout(done, ms));
			input.focus();
			type('node-1');
			await pause(300);
			type('node-12');
			input.dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter'}));
			await pause(300);
			input.remove();
			box.remove();
			return opened;
		})`, "#/node/node-12"},
	} {
		if got := eval[string](p, c.script); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}

// TestTheCommandOfAForecastNamesItsNamespace verifies that the command shown for copying has the
// operations and the namespace of the forecast.
func TestTheCommandOfAForecastNamesItsNamespace(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(2, 1, 4)).URL, "#/what-if", desk)
	eval[bool](p, `(document.querySelector('#wi-words').value = "cordon -l 'topology.kubernetes.io/zone in (z1)'\nuncordon node/node-1", document.querySelector('#wi-namespace').value = 'shop', document.querySelector('.primary').click(), true)`)
	p.shows(".same code", "berth what-if -n shop cordon -l 'topology.kubernetes.io/zone in (z1)' uncordon node/node-1")
}

// TestOverheadOfPodsThatHaveEndedIsNotCounted verifies that the overhead of ended pods does not
// count as usage of the node.
func TestOverheadOfPodsThatHaveEndedIsNotCounted(t *testing.T) {
	c := stage.NewCrowd(1, 1, 1)
	for i, phase := range []v1.PodPhase{v1.PodRunning, v1.PodSucceeded} {
		pod := c.Pod(10+i, "node-1")
		pod.Status.Phase = phase
		pod.Spec.Overhead = v1.ResourceList{v1.ResourceCPU: resource.MustParse("250m")}
		c.Pods = append(c.Pods, pod)
	}
	p := open(t, ofCrowd(t, c).URL, "#/node/node-1", desk)
	p.shows("#body .rooms", ", 0.25 overhead")
}

// TestNothingLeadsAwayByTheWay verifies that neither the key that closes a dialog nor the link to
// the lists navigates away from the current view.
func TestNothingLeadsAwayByTheWay(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(2, 1, 0)).URL, "#/node/node-1", desk)
	p.press("?")
	p.wait("document.querySelector('dialog.keys').open")
	p.press(kb.Escape)
	p.wait("!document.querySelector('dialog.keys').open")
	eval[bool](p, "(document.querySelector('.skip').click(), true)")
	p.wait("document.activeElement.id === 'panel'")
	if at := eval[string](p, "location.hash"); at != "#/node/node-1" {
		t.Errorf("it leads to %s", at)
	}
	p.press(kb.Escape)
	p.wait("location.hash === '#/queue'")
}
