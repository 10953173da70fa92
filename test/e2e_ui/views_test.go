// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

func TestATaintByKubectlIsSeenOnTheMap(t *testing.T) {
	p := ofCluster(t, "", desk)
	p.click("#colour [data-value=taint]")
	eval[bool](p, twoFrames)
	untainted := eval[string](p, colour+"('node-1')")
	// The page records when it has drawn the node's new colour, so that the measured time does not
	// include the test's polling.
	eval[bool](p, `(window.drawn = [], window.watched = () => { const c = `+colour+`('node-1'); if (c !== window.last) { window.last = c; window.drawn.push([Date.now(), c]); } requestAnimationFrame(window.watched); }, window.watched(), true)`)
	for i, taint := range []string{"team=a:NoExecute", "team:NoExecute-", "team=b:NoSchedule", "team:NoSchedule-"} {
		began := time.Now()
		kubectl(t, "taint", "nodes", "node-1", taint)
		done := time.Now()
		p.wait(fmt.Sprintf("window.drawn.length > %d", i+1))
		at := time.UnixMilli(eval[int64](p, fmt.Sprintf("window.drawn[%d][0]", i+1)))
		t.Logf("%s: drawn %s after kubectl began, %s after it ended", taint, at.Sub(began).Round(time.Millisecond), at.Sub(done).Round(time.Millisecond))
	}
	if now := eval[string](p, colour+"('node-1')"); now != untainted {
		t.Errorf("without its taints the node is %s, was %s", now, untainted)
	}
	if colours := eval[int](p, "new Set(window.drawn.map((d) => d[1])).size"); colours != 3 {
		t.Errorf("%d colours for no taint, NoExecute and NoSchedule", colours)
	}
	p.click("#tabs [data-tab=events]")
	p.shows("#body", "team=b:NoSchedule")
}

func TestTheQueueSaysWhyAndThePodIsExplained(t *testing.T) {
	p := ofCluster(t, "", desk)
	apply(t, podManifest("fussy", "  nodeSelector: {disk: fast}\n"))
	p.shows("#body .list", "fussy")
	p.shows("#body .list", "didn't match Pod's node affinity/selector")
	p.click(`#body .row a[href="#/pod/default/fussy"]`)
	p.shows("#body", "None of 3 nodes can take the pod")
	p.shows("#body .suggestions", "with the label disk=fast (or label an existing node, if the label is true of it)")
	p.shows("#body .groups", "lacks disk=fast")
	p.click("#body .group")
	p.wait("document.querySelector('.group').getAttribute('aria-pressed') === 'true'")
	kubectl(t, "label", "nodes", "node-1", "disk=fast")
	t.Cleanup(func() { kubectl(t, "label", "nodes", "node-1", "disk-") })
	p.wait("!document.querySelector('.stale').hidden")
	p.click(".stale button")
	p.shows("#body", "The pod is on node node-1")
	p.shows("#body .scores, #body .summary-line", "node-1")
}

func TestEvictionsAreCountedDown(t *testing.T) {
	p := ofCluster(t, "#/evictions", desk)
	p.shows("#body", "No pod has to leave")
	apply(t, podManifest("guest", "  nodeName: node-2\n  tolerations: [{key: leave, operator: Exists, effect: NoExecute, tolerationSeconds: 3000}]\n"))
	kubectl(t, "taint", "nodes", "node-2", "leave=soon:NoExecute")
	p.shows("#body .row:not(.head)", "guest")
	p.shows("#body .row:not(.head)", "leave=soon:NoExecute")
	p.wait(`/^4\d:\d\d$/.test(document.querySelector('#body .countdown').textContent)`)
	first := eval[string](p, "document.querySelector('#body .countdown').textContent")
	p.wait(fmt.Sprintf("document.querySelector('#body .countdown').textContent < %q", first))
	p.click(`#body .row a[href="#/pod/default/guest"]`)
	p.shows("#body", "which it tolerates for 50 min 00 s")
	p.shows("#body", "What would let it stay")
	p.wait(`/^in 4\d:\d\d$/.test(document.querySelector('#body .countdown.big').textContent)`)
	kubectl(t, "taint", "nodes", "node-2", "leave-")
	p.click("#tabs [data-tab=evictions]")
	p.shows("#body", "No pod has to leave")
}

func TestANodeAndItsPods(t *testing.T) {
	apply(t, "apiVersion: node.k8s.io/v1\nkind: RuntimeClass\nmetadata: {name: boxed}\nhandler: boxed\noverhead: {podFixed: {cpu: 250m, memory: 128Mi}}\n---\n")
	apply(t, podManifest("boxed", "  nodeName: node-3\n  runtimeClassName: boxed\n"))
	p := ofCluster(t, "#/node/node-3", desk)
	for _, words := range []string{"node-3", "boxed", "1.25", "ovh 0.25", "of 32", "0.25 overhead", "None: pods need no toleration",
		"Ready", "KubeletReady", "zone z3"} {
		p.shows("#body", words)
	}
	kubectl(t, "taint", "nodes", "node-3", "shown=yes:PreferNoSchedule")
	p.shows("#body", "shown=yes:PreferNoSchedule")
	kubectl(t, "taint", "nodes", "node-3", "shown-")
	p.shows("#body", "None: pods need no toleration")
	eval[bool](p, "(location.hash = '#/node/nowhere', true)")
	p.shows("#body", "The node does not exist")
	p.Forgive() // the browser reports the 404 as an error
}

func TestAForecastIsDrawnOnTheMap(t *testing.T) {
	apply(t, podManifest("traveller", "  nodeName: node-1\n"))
	p := ofCluster(t, "#/node/node-1", desk)
	p.shows("#body", "traveller")
	p.click(".detail-head button")
	p.wait("location.hash === '#/what-if'")
	p.shows("#body .verdict", "leave")
	p.shows("#body .answer", "traveller")
	p.shows("#overlay", "drain node/node-1")
	p.wait("document.querySelector('#map').map.view.plan?.of('node-1').out === 1")
	p.click("#overlay button")
	p.wait("document.querySelector('#overlay').hidden")

	p.click("#wi-kind")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'dance', document.querySelector('.primary').click(), true)")
	p.shows("#body .fault", `"dance" is not an operation`)
	eval[bool](p, "(document.querySelector('#wi-words').value = 'add-nodes 2 --like node/node-1\\ndrain node/node-1 --force', document.querySelector('.primary').click(), true)")
	p.wait("document.querySelector('#map').map.view.plan?.added.size === 2")
	p.wait("document.querySelector('#map').dataset.nodes === '5'")
	if nodes := kubectl(t, "get", "nodes", "-o", "name"); strings.Count(nodes, "node/") != 3 {
		t.Errorf("a forecast made nodes: %s", nodes)
	}
	p.Forgive() // the request was refused
}

func TestNodesAsATable(t *testing.T) {
	p := ofCluster(t, "", desk)
	p.click("#shape [data-value=table]")
	for _, name := range []string{"node-1", "node-2", "node-3"} {
		p.shows("#nodes", name)
	}
	order := `[...document.querySelectorAll('#nodes .rows .row')].sort((a, b) => a.dataset.at - b.dataset.at).map((r) => r.querySelector('a').textContent).join(' ')`
	p.wait(order + " === 'node-1 node-2 node-3'")
	p.click("#nodes .head button")
	p.wait(order + " === 'node-3 node-2 node-1'")
	p.wait(`document.querySelector('#nodes [role=columnheader]').getAttribute('aria-sort') === 'descending'`)
}

// TestAClickOpensTheNodeUnderIt verifies that a click opens the node under the pointer on screens
// of various shapes, also when the map is scrolled.
func TestAClickOpensTheNodeUnderIt(t *testing.T) {
	for _, v := range []stage.View{desk, {Width: 1280, Height: 1700}, {Width: 420, Height: 620}} {
		p := ofCluster(t, "", v)
		p.wait("document.querySelector('#map').map?.layout")
		at := eval[[]float64](p, twoFrames+`.then(() => {
			const map = document.querySelector('#map').map, cell = map.layout.cells[map.layout.index.get('node-3')], canvas = map.base.getBoundingClientRect();
			map.box.scrollTop = 1e6;
			return [canvas.left + cell.x + map.layout.size.w / 2, canvas.top + cell.y + 9 - map.box.scrollTop];
		})`)
		if err := p.ClickAt(at[0], at[1]); err != nil {
			t.Fatal(err)
		}
		p.wait("location.hash === '#/node/node-3'")
		if inside := eval[float64](p, "document.querySelector('#map canvas').getBoundingClientRect().top - document.querySelector('#map').getBoundingClientRect().top"); v.Width > 900 && inside != 0 {
			t.Errorf("%dx%d: the map begins %v pixels below its top", v.Width, v.Height, inside)
		}
	}
}

func TestByKeyboardAlone(t *testing.T) {
	manifest := ""
	for i := range 45 { // each pod has an event
		manifest += podManifest(fmt.Sprintf("eventful-%d", i), "")
	}
	apply(t, manifest)
	p := ofCluster(t, "", desk)
	p.press("m")
	p.wait("document.activeElement.id === 'map-box'")
	option := "document.querySelector('#map-option').textContent"
	p.wait(option + ".startsWith('node-1, zone z1, ready, CPU')")
	p.press(kb.ArrowRight) // zones are columns
	p.wait(option + ".startsWith('node-2, zone z2')")
	p.press(kb.End)
	p.wait(option + ".startsWith('node-3')")
	p.press(kb.Home, kb.Enter)
	p.wait("location.hash === '#/node/node-1'")
	p.shows("#body h2", "node-1")
	p.press(kb.Escape)
	p.wait("location.hash === '#/queue'")
	p.press("/")
	p.wait("document.activeElement.id === 'search'")
	p.press("n", "o", "d", "e", "-", "3")
	p.shows("#found [aria-selected=true]", "node-3")
	p.press(kb.Enter)
	p.wait("location.hash === '#/node/node-3'")
	eval[bool](p, "(document.querySelector('#tabs [tabindex=\"0\"]').focus(), true)")
	p.press(kb.ArrowRight)
	p.wait("location.hash === '#/evictions' && document.activeElement.dataset.tab === 'evictions'")
	p.press(kb.ArrowRight)
	p.wait("location.hash === '#/events' && document.querySelector('#body .list').dataset.rows > 44")
	// The Tab key reaches the search field, the theme button and the map. Start from a list without
	// rows, since each row would be another stop.
	p.press(kb.ArrowLeft)
	p.wait("location.hash === '#/evictions' && document.activeElement.dataset.tab === 'evictions'")
	seen := map[string]bool{}
	for range 40 {
		p.press(kb.Tab)
		seen[eval[string](p, "document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.textContent")] = true
	}
	for _, want := range []string{"search", "theme", "map-box"} {
		if !seen[want] {
			t.Errorf("Tab does not lead to %s: %v", want, seen)
		}
	}
}

func TestNarrowAndDark(t *testing.T) {
	apply(t, podManifest("waits-on-a-telephone-with-a-name-that-is-rather-long-for-it", "  nodeSelector: {no: such}\n"))
	for _, v := range []stage.View{{Width: 390, Height: 844}, {Width: 390, Height: 844, Dark: true}, {Width: 820, Height: 1180}, {Width: 1280, Height: 800, Dark: true}} {
		p := ofCluster(t, "", v)
		for _, hash := range []string{"#/queue", "#/evictions", "#/events", "#/what-if", "#/node/node-1", "#/pod/default/waits-on-a-telephone-with-a-name-that-is-rather-long-for-it"} {
			eval[bool](p, fmt.Sprintf("(location.hash = %q, true)", hash))
			p.wait("document.querySelector('#body').offsetHeight > 100")
			for _, pane := range []string{"stage", "panel"} {
				eval[bool](p, fmt.Sprintf("(document.querySelector('.panes [data-to=%s]').click(), true)", pane))
				if over := eval[int](p, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
					t.Errorf("%dx%d %s %s: %d pixels wider than the screen", v.Width, v.Height, hash, pane, over)
				}
				if v.Width < 900 {
					if both := eval[bool](p, "document.querySelector('#stage').offsetHeight > 0 && document.querySelector('#panel').offsetHeight > 0"); both {
						t.Errorf("%d wide: map and lists side by side", v.Width)
					}
				}
			}
		}
		if dark := eval[bool](p, "getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] < 60"); dark != v.Dark {
			t.Errorf("%+v: dark %t", v, dark)
		}
		p.Close()
	}
}
