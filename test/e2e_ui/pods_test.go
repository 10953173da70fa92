// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// laden returns a crowd of three nodes with 16 CPUs each. The first node has a pod of the workload
// web with 8 CPUs, a pod of db with 4 CPUs, and a pod without an owner and requests. The second
// node has a pod of web with 2 CPUs.
func laden() *stage.Crowd {
	c := stage.NewCrowd(3, 3, 0)
	place := func(name, node, workload, cpu string, priority int32) {
		p := c.Pod(len(c.Pods), node)
		p.Name = name
		p.Spec.Priority = &priority
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
		if workload != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: workload, UID: "x", Controller: new(true)}}
		}
		c.Pods = append(c.Pods, p)
	}
	place("web-0", "node-1", "web", "8", 100)
	place("db-0", "node-1", "db", "4", 1000)
	place("idle", "node-1", "", "0", 0)
	place("web-1", "node-2", "web", "2", 100)
	return c
}

// block is a pod's block on the map: the position of its centre on the screen, its size, and its
// share of the node's area.
type block struct{ X, Y, W, H, Area float64 }

const blockOf = `(async (node, pod) => {
	const {blocksOf} = await import('/blocks.js'), {boxOf} = await import('/cell.js');
	await ` + twoFrames + `;
	const map = document.querySelector('#map').map, cell = map.layout.cells[map.layout.index.get(node)], box = boxOf(cell, map.layout.size);
	const b = blocksOf(map.node(node), map.view.metric, box.w, box.h).list.find((b) => b.pod.n === pod), canvas = map.base.getBoundingClientRect();
	return {X: canvas.left + box.x + b.x + b.w / 2, Y: canvas.top + box.y + b.y + b.h / 2, W: b.w, H: b.h, Area: b.w * b.h / (box.w * box.h)};
})`

func (p tab) block(node, pod string) block {
	p.t.Helper()
	return eval[block](p, fmt.Sprintf("%s(%q, %q)", blockOf, node, pod))
}

// inked returns the colour of a pod's block on the map, near the block's upper left corner.
func (p tab) inked(node, pod string) string {
	p.t.Helper()
	b := p.block(node, pod)
	return eval[string](p, fmt.Sprintf(`((x, y) => {
		const map = document.querySelector('#map').map, r = map.base.getBoundingClientRect();
		return [...map.base.getContext('2d').getImageData(Math.round((x - r.left) * map.ratio), Math.round((y - r.top) * map.ratio), 1, 1).data].join(' ');
	})(%f, %f)`, b.X-b.W/2+8, b.Y-b.H/2+5))
}

// TestANodeIsDrawnWithItsPods verifies that the area of a pod's block is the pod's requested share
// of the node, and that its colour shows the workload or priority.
func TestANodeIsDrawnWithItsPods(t *testing.T) {
	p := open(t, ofCrowd(t, laden()).URL, "", desk)
	p.wait("document.querySelector('#map').map.view.blocks")
	for pod, want := range map[string]float64{"web-0": 0.5, "db-0": 0.25} {
		if b := p.block("node-1", pod); b.Area < want-0.02 || b.Area > want+0.02 {
			t.Errorf("%s requests %v of its node, and takes %.3f of it on the map", pod, want, b.Area)
		}
	}
	if b := p.block("node-1", "idle"); b.W < 4 || b.H < 4 {
		t.Errorf("a pod that requests nothing cannot be seen: %+v", b)
	}
	web, db := p.inked("node-1", "web-0"), p.inked("node-1", "db-0")
	if other := p.inked("node-2", "web-1"); web != other || web == db {
		t.Errorf("web is %s and %s, db %s", web, other, db)
	}
	p.shows("#legend", "web")
	p.shows("#legend", "no workload")
	p.click("#colour [data-value=priority]")
	if web, db := p.inked("node-1", "web-0"), p.inked("node-1", "db-0"); web == db {
		t.Errorf("priorities of 100 and 1,000 are both %s", web)
	}
	p.shows("#legend", "1,000")
	p.click("#metric [data-value=pods]")
	p.wait("document.querySelector('#map').map.view.metric === 'pods'")
	if web, db := p.block("node-1", "web-0"), p.block("node-1", "db-0"); web.Area < db.Area*0.99 || web.Area > db.Area*1.01 {
		t.Errorf("by number, a pod takes %v and another %v", web.Area, db.Area)
	}
}

func TestAClickOpensThePodUnderIt(t *testing.T) {
	p := open(t, ofCrowd(t, laden()).URL, "", desk)
	p.wait("document.querySelector('#map').map.view.blocks")
	b := p.block("node-1", "db-0")
	eval[bool](p, fmt.Sprintf("(document.querySelector('#map-box').dispatchEvent(new PointerEvent('pointermove', {clientX: %f, clientY: %f})), true)", b.X, b.Y))
	p.shows("#tip", "db-0")
	p.shows("#tip", "requests 4 CPU")
	if err := p.ClickAt(b.X, b.Y); err != nil {
		t.Fatal(err)
	}
	p.wait("location.hash === '#/pod/default/db-0'")
	node := p.block("node-2", "web-1")
	if err := p.ClickAt(node.X, node.Y-node.H/2-30); err != nil { // above the block, where the node is free
		t.Fatal(err)
	}
	p.wait("location.hash === '#/node/node-2'")
}

// TestPodsThatLeaveAreMarkedInTheirNode verifies that the map marks pods that leave because of a
// taint or in a forecast.
func TestPodsThatLeaveAreMarkedInTheirNode(t *testing.T) {
	c := laden()
	p := open(t, ofCrowd(t, c).URL, "", desk)
	p.wait("document.querySelector('#map').map.view.blocks")
	stays := p.inked("node-1", "web-0")
	c.SetNode(0, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoExecute}} })
	p.wait("document.querySelector('#map').map.node('node-1').blocks.every((b) => b.l)")
	if leaves := p.inked("node-1", "web-0"); leaves == stays {
		t.Errorf("a pod that has to leave looks as before: %s", leaves)
	}
	other := p.inked("node-2", "web-1")
	eval[bool](p, "(location.hash = '#/what-if', true)")
	p.wait("document.querySelector('#wi-words')")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'drain node/node-2 --force', document.querySelector('.primary').click(), true)")
	p.wait("document.querySelector('#map').map.view.plan?.of('node-2').leavers.has('default/web-1')")
	if leaves := p.inked("node-2", "web-1"); leaves == other {
		t.Errorf("a pod that would leave looks as before: %s", leaves)
	}
}

// TestTheMapFillsTheScreen verifies that any number of nodes fills the screen, without overlapping
// cells or cells outside of the screen.
func TestTheMapFillsTheScreen(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(1, 1, 0)).URL, "", desk)
	found := eval[[]string](p, `(async () => {
		const {layout, at} = await import('/layout.js'), wrong = [];
		for (const [w, h] of [[820, 560], [1340, 800], [1980, 1160], [390, 600]]) for (const n of [1, 3, 33, 330, 1000, 5000]) for (const zones of [1, 3, 7]) for (const even of [true, false]) {
			if (zones > n) continue;
			const zone = (i) => 'z' + (even ? i % zones : Math.min(zones - 1, Math.floor(zones * Math.pow(i / n, 3))));
			const nodes = Array.from({length: n}, (_, i) => ({name: 'node-' + i, zone: zone(i)}));
			const l = layout(nodes, w, h), what = [n, 'nodes,', zones, even ? 'zones,' : 'uneven zones,', w + 'x' + h].join(' ');
			const right = Math.max(...l.cells.map((c) => c.x + l.size.w)), bottom = Math.max(...l.cells.map((c) => c.y + l.size.h));
			if (l.cells.length !== n || right > w) wrong.push(what + ': as wide as ' + right + ', ' + l.cells.length + ' cells');
			if (w > 500 && n < 5000 && bottom > h) wrong.push(what + ': as high as ' + bottom);
			if (even && n > zones * 3 && w > 500 && (right < 0.85 * w || bottom < 0.85 * h)) wrong.push(what + ': fills only ' + right + 'x' + bottom);
			if (even && (n === 1 || n === 3) && w > 500 && l.size.w * l.size.h * n < 0.7 * w * h) wrong.push(what + ': cells of ' + l.size.w + 'x' + l.size.h);
			l.cells.forEach((c, i) => { if (at(l, c.x + l.size.w / 2, c.y + l.size.h / 2) !== i) wrong.push(what + ': cell ' + i + ' is not found'); });
		}
		return wrong.slice(0, 20);
	})()`)
	for _, wrong := range found {
		t.Error(wrong)
	}
}
