// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// busy returns a crowd with 200 pending pods of 30 Deployments in three namespaces. Some nodes are
// tainted, cordoned, not ready, under pressure, or have GPUs.
func busy(nodes int, name func(i int) string) *stage.Crowd {
	c := stage.NewCrowd(nodes, 3, nodes*10)
	for i := range c.Nodes {
		c.SetNode(i, func(n *v1.Node) {
			if name != nil {
				n.Name = name(i)
			}
			switch i % 12 {
			case 1:
				n.Spec.Unschedulable = true
			case 3:
				n.Spec.Taints = []v1.Taint{{Key: "maintenance", Value: "now", Effect: v1.TaintEffectNoExecute}}
			case 5:
				n.Spec.Taints = []v1.Taint{{Key: "dedicated", Value: "ml", Effect: v1.TaintEffectNoSchedule}}
				n.Labels["disk"] = "fast"
				n.Status.Allocatable["nvidia.com/gpu"] = resource.MustParse("8")
			case 7:
				n.Status.Conditions[0].Status = v1.ConditionUnknown
			case 9:
				n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: v1.NodeMemoryPressure, Status: v1.ConditionTrue})
			}
		})
	}
	for i := range 200 {
		c.SetPod(len(c.Pods), ofWorkload(c, i))
	}
	return c
}

// ofWorkload returns the i-th pending pod. It belongs to one of 30 Deployments.
func ofWorkload(c *stage.Crowd, i int) *v1.Pod {
	w := i % 30
	name := fmt.Sprintf("workload-%d", w)
	if w%7 == 0 {
		name += "-whose-name-is-as-long-as-somebody-who-generates-names-makes-them"
	}
	p := c.Pod(1_000_000+i, "")
	p.Namespace, p.Name = []string{"default", "shop", "machine-learning-experiments"}[w%3], fmt.Sprintf("%s-5d4f-%05x", name, i)
	p.Labels["pod-template-hash"] = "5d4f"
	controls, priority := true, int32(w%4*1000)
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: name + "-5d4f", UID: "rs", Controller: &controls}}
	p.Spec.Priority = &priority
	n := len(c.Nodes)
	p.Status.Conditions[0].Message = []string{
		fmt.Sprintf("0/%d nodes are available: 3 Insufficient cpu, %d node(s) had untolerated taint {dedicated: ml}. preemption: 0/%d nodes are available: none.", n, n-3, n),
		fmt.Sprintf("0/%d nodes are available: %d node(s) didn't match Pod's node affinity/selector.", n, n),
		fmt.Sprintf("0/%d nodes are available: %d Insufficient memory, 2 node(s) were unschedulable.", n, n-2),
	}[w%3]
	return p
}

func TestTheQueueIsByWorkloadWithTheDecisiveReasonFirst(t *testing.T) {
	c := busy(60, nil)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	p.wait("document.querySelector('#body .list').dataset.rows === '30' && document.querySelector('#body .list').dataset.pods === '200'")
	first := `document.querySelector('#body .row[data-at="0"]')`
	p.wait(first + ".querySelector('.name').textContent === 'workload-3'") // the workload of the oldest pod with the highest priority
	if why := eval[string](p, first+".querySelector('.why').textContent"); why != "had untolerated taint {dedicated: ml} (57 of 60 nodes); Insufficient cpu (3)" {
		t.Errorf("why: %q", why)
	}
	p.shows("#body .rows", "didn't match Pod's node affinity/selector (all 60 nodes)")
	eval[bool](p, "("+first+".querySelector('button').focus(), "+first+".querySelector('button').click(), true)")
	p.wait("document.querySelector('#body .list').dataset.rows === '37' && " + first + ".querySelector('button').getAttribute('aria-expanded') === 'true'")
	p.wait(`document.querySelector('#body .row[data-at="1"] a').textContent.startsWith('workload-3-5d4f-')`)
	// A new pod of the workload is counted, and the focus does not move.
	eval[bool](p, `(document.querySelector('#body .row[data-at="2"] a').focus(), true)`)
	c.SetPod(len(c.Pods), ofWorkload(c, 4+30*10))
	p.wait("document.querySelector('#body .list').dataset.pods === '201'")
	if at := eval[string](p, "document.activeElement.closest('.row')?.dataset.at || document.activeElement.tagName"); at != "2" {
		t.Errorf("the focus went to %s", at)
	}
	p.click(`#body .reason`)
	p.wait("new URLSearchParams(location.search).get('reason') && document.querySelector('#body .list').dataset.rows < '30'")
}

func TestFiltersStandInTheAddress(t *testing.T) {
	c := busy(60, nil)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	pick := func(label, value string) {
		p.wait(fmt.Sprintf("[...document.querySelectorAll('select[aria-label=%s] option')].some((o) => o.value === %q)", label, value))
		eval[bool](p, fmt.Sprintf("((s) => { s.value = %q; s.dispatchEvent(new Event('change')); return true; })(document.querySelector('select[aria-label=%s]'))", value, label))
	}
	pick("Namespace", "shop")
	p.wait("document.querySelector('#body .list').dataset.rows === '10'")
	pick("Priority", "3000")
	p.wait("document.querySelector('#body .list').dataset.rows === '2'") // of the workloads 1, 4, ... 28, only 7 and 19 match
	p.click("#colour [data-value=zone]")
	p.press("/")
	p.wait("document.activeElement.id === 'search'")
	p.press(strings.Split("disk=", "")...)
	p.shows("#found [role=option]", "disk=fast")
	p.press(kb.Enter)
	p.wait("document.querySelector('#map').map.view.selected?.size === 5")
	search := eval[string](p, "location.search")
	if search != "?namespace=shop&priority=3000&colour=zone&labels=disk%3Dfast" {
		t.Errorf("%s", search)
	}
	// The same address in another tab shows the same view.
	other := open(t, ui.URL, search, desk)
	other.wait("document.querySelector('#body .list').dataset.rows === '2' && document.querySelector('#map').map.view.selected?.size === 5 && document.querySelector('#map').map.view.colour === 'zone'")
	// The selection follows a changed label.
	c.SetNode(0, func(n *v1.Node) { n.Labels["disk"] = "fast" })
	other.wait("document.querySelector('#map').map.view.selected?.size === 6")
	other.click("#shape [data-value=table]")
	other.wait("document.querySelector('#nodes .list').dataset.rows === '6'")
	for words, leads := range map[string]string{"dedicated": "taint", "machine-l": "namespace"} {
		q := open(t, ui.URL, "", desk)
		q.press("/")
		q.wait("document.activeElement.id === 'search'")
		q.press(strings.Split(words, "")...)
		q.wait(fmt.Sprintf("[...document.querySelectorAll('#found [role=option]')].some((o) => o.textContent.includes(%q))", leads+", "))
		eval[bool](q, fmt.Sprintf("([...document.querySelectorAll('#found [role=option]')].find((o) => o.textContent.includes(%q)).dispatchEvent(new PointerEvent('pointerdown', {bubbles: true, cancelable: true})), true)", leads+", "))
		q.wait(fmt.Sprintf("new URLSearchParams(location.search).get(%q)", leads))
	}
	wrong := open(t, ui.URL, "?labels=a+in+(", desk)
	wrong.shows("#node-filter", "selector")
	wrong.Forgive()
}

func TestTitlesSayWhereOneIs(t *testing.T) {
	c := busy(12, nil)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	cluster := eval[string](p, "document.querySelector('#where').textContent")
	for hash, title := range map[string]string{
		"#/queue": "Pending (200)", "#/events": "Events", "#/what-if": "What if", "#/node/node-2": "Node node-2", "#/pod/shop/web-1": "Pod shop/web-1",
	} {
		eval[bool](p, "(location.hash = '"+hash+"', true)")
		p.wait(fmt.Sprintf("document.title === %q", title+" · "+cluster+" · Berth"))
	}
	p.Forgive() // the pod shop/web-1 does not exist
}

func TestAForecastIsInTheAddress(t *testing.T) {
	c := stage.NewCrowd(3, 1, 6)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "?forecast=cordon+node%2Fnode-1#/what-if", desk)
	p.shows("#overlay", "cordon node/node-1")
	p.wait("document.querySelector('#wi-words').value === 'cordon node/node-1' && document.querySelector('#map').map.view.plan?.of('node-1')")
	p.click("#overlay button")
	p.wait("location.search === '' && document.querySelector('#overlay').hidden")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'cordon node/node-2', document.querySelector('.primary').click(), true)")
	p.wait("new URLSearchParams(location.search).get('forecast') === 'cordon node/node-2'")
}

// TestBackLeadsToTheColoursThatWereSeen verifies that the browser's Back button restores the colour
// scheme.
func TestBackLeadsToTheColoursThatWereSeen(t *testing.T) {
	p := open(t, ofCrowd(t, busy(12, nil)).URL, "", desk)
	shows := func(colour string) {
		t.Helper()
		p.wait("document.querySelector('#map').map.view.colour === '" + colour + "' && document.querySelector('#colour [aria-checked=true]').dataset.value === '" + colour + "'")
	}
	p.click("#colour [data-value=zone]")
	shows("zone")
	eval[bool](p, "(location.hash = '#/node/node-1', true)")
	p.shows("#body h2", "node-1")
	p.click("#colour [data-value=taint]")
	shows("taint")
	eval[bool](p, "(history.back(), true)")
	p.wait("location.hash === ''")
	shows("zone")
	eval[bool](p, "(history.forward(), true)")
	p.shows("#body h2", "node-1")
	shows("taint")
}

// TestBackLeadsToTheMapOnANarrowScreen verifies that the browser's Back button leads to the map on
// a narrow screen, where the panel covers the map.
func TestBackLeadsToTheMapOnANarrowScreen(t *testing.T) {
	p := open(t, ofCrowd(t, busy(12, nil)).URL, "", stage.View{Width: 390, Height: 844})
	shows := func(pane, hash string) {
		t.Helper()
		p.wait(fmt.Sprintf("location.hash === %q && document.body.dataset.pane === %q", hash, pane))
	}
	shows("stage", "")
	eval[bool](p, "(location.hash = '#/node/node-1', true)")
	shows("panel", "#/node/node-1")
	p.click(".panes [data-to=stage]")
	p.click("#colour [data-value=zone]")
	eval[bool](p, "(location.hash = '#/node/node-2', true)")
	shows("panel", "#/node/node-2")
	for _, back := range []string{"#/node/node-1", ""} {
		eval[bool](p, "(history.back(), true)")
		shows("stage", back)
	}
	eval[bool](p, "(history.go(2), true)")
	shows("panel", "#/node/node-2")
}

// TestTheNamespaceOfAForecastIsInTheAddress verifies that the address contains the namespace of a
// forecast, so that the Back button leads to the forecast in the previous namespace.
func TestTheNamespaceOfAForecastIsInTheAddress(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(2, 1, 4)).URL, "?forecast=cordon+node%2Fnode-1&in=shop#/what-if", desk)
	p.shows(".same code", "berth what-if -n shop cordon node/node-1")
	eval[bool](p, "(location.hash = '#/queue', true)")
	p.wait("document.querySelector('#wi-namespace') === null")
	eval[bool](p, "(location.hash = '#/what-if', true)")
	p.wait("document.querySelector('#wi-namespace')")
	eval[bool](p, "(document.querySelector('#wi-namespace').value = 'other', document.querySelector('.primary').click(), true)")
	p.shows(".same code", "berth what-if -n other cordon node/node-1")
	eval[bool](p, "(history.go(-2), true)")
	p.shows(".same code", "berth what-if -n shop cordon node/node-1")
	if got := eval[string](p, "document.querySelector('#wi-namespace').value"); got != "shop" {
		t.Errorf("the form says namespace %q", got)
	}
}

// TestAnExampleIsNotAnOperation verifies that the placeholder of a field is not used as input.
func TestAnExampleIsNotAnOperation(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(2, 1, 4)).URL, "#/what-if", desk)
	const add, words = "document.querySelector('.builder button')", "document.querySelector('#wi-words').value"
	eval[bool](p, "("+add+".click(), true)")
	if got := eval[string](p, words); got != "" {
		t.Errorf("without a node it adds %q", got)
	}
	p.wait("document.activeElement.id === 'wi-nodes'")
	eval[bool](p, "(document.querySelector('#wi-nodes').value = ' node-2 ', "+add+".click(), true)")
	if got := eval[string](p, words); got != "drain node/node-2 --ignore-daemonsets" {
		t.Errorf("it adds %q", got)
	}
	// An empty field does not prevent the forecast of operations already added.
	eval[bool](p, "(document.querySelector('#wi-nodes').value = '', document.querySelector('.primary').click(), true)")
	p.shows(".same code", "berth what-if drain node/node-2 --ignore-daemonsets")
}

// TestWhatIsWrittenOnTheMapCanBeRead verifies that names that do not fit are shown without their
// common part, that no text is on hatched areas, and that every sign is present in every colour
// scheme.
func TestWhatIsWrittenOnTheMapCanBeRead(t *testing.T) {
	c := busy(60, func(i int) string {
		return fmt.Sprintf("gke-production-europe-west1-pool-%02d-%04x.c.internal", i%3, i*7919%65536)
	})
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", stage.View{Width: 1440, Height: 900})
	p.wait("document.querySelector('#map').dataset.nodes === '60'")
	p.shows("#legend", "gke-production-europe-west1-pool-….c.internal")
	for _, colour := range []string{"workload", "priority", "fill", "stranded", "taint", "zone"} {
		p.click("#colour [data-value=" + colour + "]")
		written := eval[map[string]int](p, `new Promise((done) => {
			const pen = CanvasRenderingContext2D.prototype, {fillText, rect} = pen, texts = [], hatched = [];
			pen.fillText = function (words, x, y) {
				const w = this.measureText(words).width, from = this.textAlign === 'right' ? x - w : this.textAlign === 'center' ? x - w / 2 : x;
				texts.push({words, x: from, y: y - 9, w, h: 11});
				fillText.call(this, words, x, y);
			};
			pen.rect = function (x, y, w, h) { hatched.push({x, y, w, h}); rect.call(this, x, y, w, h); };
			document.querySelector('#map').map.redraw();
			requestAnimationFrame(() => requestAnimationFrame(() => {
				Object.assign(pen, {fillText, rect});
				const over = texts.filter((t) => hatched.some((r) => t.x < r.x + r.w && r.x < t.x + t.w && t.y < r.y + r.h && r.y < t.y + t.h));
				done({texts: texts.length, hatched: hatched.length, over: over.length, clipped: texts.filter((t) => t.words.includes('…')).length, long: texts.filter((t) => t.words.includes('gke')).length,
					pressure: texts.filter((t) => t.words === '▲').length, noExecute: texts.filter((t) => t.words === '×').length, noSchedule: texts.filter((t) => t.words === '–').length, cordoned: texts.filter((t) => t.words === '/').length});
			}));
		})`)
		if written["hatched"] != 5 || written["over"] > 0 || written["clipped"] > 0 || written["long"] > 0 {
			t.Errorf("%s: %v", colour, written)
		}
		if written["pressure"] != 5 || written["noExecute"] != 5 || written["noSchedule"] != 5 || written["cordoned"] != 5 {
			t.Errorf("%s: signs %v", colour, written)
		}
	}
	low := eval[[]string](p, `(async () => {
		const c = await import('/colours.js'), low = [];
		const check = (what, a, b) => { if (c.ratio(a, b) < 4.5) low.push(what + ': ' + c.ratio(a, b).toFixed(2)); };
		for (const dark of [false, true]) {
			c.setDark(dark);
			const ink = c.inks(), theme = dark ? 'dark ' : 'light ';
			const grounds = [...Array.from({length: 101}, (_, i) => ['fill ' + i, c.fill(i / 100)]), ...Object.keys(c.kindNames).map((k) => [k, c.kindColour(k)]), ...Array.from({length: 10}, (_, i) => ['zone ' + i, c.zoneColour(i)])];
			for (const [what, colour] of grounds) {
				check(theme + what, colour, c.contrast(colour));
				const faded = c.mixed(colour, ink.ground, 0.2);
				check(theme + what + ' faded', faded, c.contrast(faded));
			}
			for (const ground of ['card', 'ground']) { check(theme + 'text on ' + ground, ink.text, ink[ground]); check(theme + 'quiet on ' + ground, ink.quiet, ink[ground]); }
		}
		c.setDark(false);
		return low;
	})()`)
	if len(low) > 0 {
		t.Errorf("contrast below 4.5: %q", low)
	}
}

func TestOtherResourcesAndStrandedRoom(t *testing.T) {
	c := busy(12, nil)
	c.SetNode(0, func(n *v1.Node) { n.Status.Allocatable[v1.ResourceMemory] = resource.MustParse("512Gi") })
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	eval[bool](p, "new Promise((done) => setTimeout(() => done(true), 0))")
	p.wait("[...document.querySelectorAll('#others option')].some((o) => o.value === 'nvidia.com/gpu')")
	eval[bool](p, "((s) => { s.value = 'nvidia.com/gpu'; s.dispatchEvent(new Event('change')); return true; })(document.querySelector('#others'))")
	p.wait("new URLSearchParams(location.search).get('metric') === 'nvidia.com/gpu' && document.querySelector('#map').map.view.metric === 'nvidia.com/gpu'")
	p.click("#colour [data-value=stranded]")
	p.shows("#legend", "Stranded in all:")
	room := eval[[]float64](p, `(async () => { const f = await import('/format.js'), s = f.stranded({cpu: [750, 1000], memory: [100, 1000], pods: [1, 10]}); return [s.part, s.cpu, s.memory]; })()`)
	if fmt.Sprintf("%.2f %.0f %.0f", room[0], room[1], room[2]) != "0.65 0 650" {
		t.Errorf("a quarter of CPU is left, of memory nine tenths: %v", room)
	}
}

func TestWhatHappenedIsOnTheStrip(t *testing.T) {
	nightly.Only(t)
	c := stage.NewCrowd(3, 1, 6)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	p.shows("#strip", "0 evictions, 0 preemptions, 0 nodes failed, up to 0 pending")
	// The strip has no data from before the dashboard's start, and must not show that nothing
	// happened.
	p.wait(`/^Since \d\d:\d\d:\d\d, when this dashboard started: 0 evictions/.test(document.querySelector('.strip-said').textContent)`)
	eval[bool](p, "((s) => { s.cursor = s.store.now() - 600e3; s.plan(); return true; })(document.querySelector('#strip').strip)")
	p.shows("#strip", "not known, this dashboard started at")
	eval[bool](p, "((s) => { s.cursor = null; s.plan(); return true; })(document.querySelector('#strip').strip)")
	for i, cause := range []string{"DeletionByTaintManager", "PreemptionByScheduler", "DeletionByTaintManager"} {
		gone := c.Pods[i].DeepCopy()
		gone.Status.Conditions = append(gone.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: cause})
		c.SetPod(i, gone)
	}
	c.SetPod(len(c.Pods), c.Pod(90, ""))
	c.SetNode(1, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
	p.shows("#strip", "2 evictions, 1 preemption, 1 node failed, up to 1 pending")
	// A page that is opened later has the same history, which can be traversed with the keys.
	late := open(t, ui.URL, "", desk)
	late.shows("#strip", "2 evictions, 1 preemption, 1 node failed, up to 1 pending")
	eval[bool](late, "(document.querySelector('.strip-box').focus(), true)")
	if got := walkStrip(late, 2); got != 2 {
		t.Errorf("the keys told of %d evictions of 2", got)
	}
	// A key press moves farther than the interval whose events the strip reports. No event in
	// between may be skipped.
	eval[bool](late, `((s) => { const now = s.store.now(); s.store.history = Array.from({length: 12}, (_, i) => [now - 120e3 + i * 10e3 - (i && 2e3), 1, 0, 0, 0]); return true; })(document.querySelector('#strip').strip)`)
	if got := walkStrip(late, 12); got != 12 {
		t.Errorf("the keys told of %d evictions of 12", got)
	}
	eval[bool](late, `((s) => { const now = s.store.now(); s.store.history = [[now - 10e3, 2, 1, 1, 1]]; return true; })(document.querySelector('#strip').strip)`)
	// The strip can be scrolled back to the beginning of the history, and no further.
	bounds := eval[[]float64](late, `((s) => { const now = s.store.now(); s.store.history.unshift([now - 4 * 3600e3, 7, 0, 0, 0]); s.cursor = null; s.shift(-9e9); return [s.end - (now - 4 * 3600e3), s.span]; })(document.querySelector('#strip').strip)`)
	if bounds[0] < 0 || bounds[0] > bounds[1]+5000 {
		t.Errorf("scrolled back to %v after the first, of %v shown", time.Duration(bounds[0])*time.Millisecond, time.Duration(bounds[1])*time.Millisecond)
	}
	late.shows("#strip", "7 evictions")
	late.click(".strip-head button")
	late.shows("#strip", "Last 15 min: 2 evictions")
}

func TestAQuestionMarkListsTheKeys(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(1, 1, 0)).URL, "", desk)
	p.press("?")
	p.wait("document.querySelector('dialog.keys').open && document.querySelector('dialog.keys').contains(document.activeElement)")
	p.shows("dialog.keys", "Page Down")
	p.press(kb.Escape)
	p.wait("!document.querySelector('dialog.keys').open")
	eval[bool](p, "(document.querySelector('#search').focus(), true)")
	p.press("?")
	p.wait("document.querySelector('#search').value === '?'")
	if eval[bool](p, "document.querySelector('dialog.keys').open") {
		t.Error("a question mark in a search opens the keys")
	}
}

// walkStrip moves through the strip from its beginning with the right arrow key, until it has
// reported the given number of evictions or the strip ends. It returns the number of reported
// evictions.
func walkStrip(p tab, evictions int) int {
	p.t.Helper()
	const box = "document.querySelector('.strip-box')"
	seen, key := 0, kb.Home
	for range 20 {
		eval[bool](p, "("+box+".setAttribute('aria-valuetext', ''), true)")
		p.press(key)
		p.wait(box + ".getAttribute('aria-valuetext') !== ''")
		n, err := strconv.Atoi(strings.Fields(eval[string](p, box+".getAttribute('aria-valuetext')"))[1])
		if err != nil {
			p.t.Fatal(err)
		}
		if seen += n; seen >= evictions || eval[string](p, box+".getAttribute('aria-valuenow')") == "100" {
			break
		}
		key = kb.ArrowRight
	}
	return seen
}
