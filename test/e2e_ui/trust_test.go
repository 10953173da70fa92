// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// ofCrowd runs berth ui for a crowd until the test ends.
func ofCrowd(t *testing.T, c *stage.Crowd, flags ...string) *stage.Process {
	t.Helper()
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	t.Cleanup(c.Close)
	kubeconfig, err := c.Kubeconfig(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if len(flags) == 0 {
		flags = []string{"--port", "0"}
	}
	p, err := stage.Run(shared.bin, append([]string{"ui", "--kubeconfig", kubeconfig}, flags...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

// TestWhatComesFromTheClusterIsNeverMarkup verifies that names, labels, taints, messages and events
// containing markup are shown as plain text in every view. (The API server rejects such names, but
// the dashboard does not rely on that.)
func TestWhatComesFromTheClusterIsNeverMarkup(t *testing.T) {
	const script, image = `<script>window.owned=1</script>`, `<img src=x onerror=window.owned=1>`
	c := stage.NewCrowd(3, 2, 4)
	hostile := c.Pod(90, "")
	hostile.Name = "pod" + script
	hostile.Namespace = image
	hostile.Status.Conditions[0].Message = "0/3 nodes are available: 3 " + image + script
	c.SetPod(len(c.Pods), hostile)
	c.SetNode(0, func(n *v1.Node) {
		n.Labels["note"] = script
		n.Labels[v1.LabelTopologyZone] = image
		n.Spec.Taints = []v1.Taint{{Key: image, Value: script, Effect: v1.TaintEffectNoExecute}}
		n.Status.Conditions = append(n.Status.Conditions, v1.NodeCondition{Type: v1.NodeConditionType(image), Status: v1.ConditionTrue, Reason: script, Message: image})
	})
	c.Happen(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", UID: types.UID("e")}, Reason: script, Message: image, LastTimestamp: metav1.Now(), InvolvedObject: v1.ObjectReference{Kind: image, Name: script}})
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	look := func(where string) {
		t.Helper()
		p.wait(`document.body.innerText.includes('<script>window.owned=1</script>') || document.body.innerText.includes('<img src=x')`)
		if n := eval[int](p, "document.querySelectorAll('img:not(.brand img), script:not([src=\"/boot.js\"]), [onerror]').length"); n > 0 {
			t.Errorf("%s: %d elements that are not the page's", where, n)
		}
		if eval[bool](p, "window.owned !== undefined") {
			t.Errorf("%s: the script ran", where)
		}
	}
	p.shows("#body", ">window.owned=1</script>") // the visible end of a long name
	look("queue")
	eval[bool](p, "(document.querySelector('#body .row a').click(), true)")
	p.shows("#body h2", image)
	p.shows("#body", "The pod is pending, and can be scheduled")
	look("explanation")
	for _, hash := range []string{"#/evictions", "#/events", "#/node/node-1"} {
		eval[bool](p, "(location.hash = '"+hash+"', true)")
		p.wait("location.hash === '" + hash + "'")
		look(hash)
	}
	p.click("#shape [data-value=table]")
	look("table")
	eval[bool](p, "(location.hash = '#/what-if', true)")
	p.wait("document.querySelector('#wi-words')")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'cordon node/node-1', document.querySelector('.primary').click(), true)")
	p.shows("#body .verdict", "leave")
	look("forecast")
	// Even if the page had a bug, the browser would refuse markup and inline scripts.
	refused := eval[string](p, `(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch (e) { return e.name; } })()`)
	if refused != "TypeError" {
		t.Errorf("markup from text: %s", refused)
	}
	if inline := eval[bool](p, `(() => { const s = document.createElement('script'); try { s.textContent = 'window.inline = 1'; document.body.append(s); } catch { /* refused */ } return window.inline === 1; })()`); inline {
		t.Error("an inline script ran")
	}
	p.Forgive() // the browser refused resources
	if wrote := c.Wrote(); len(wrote) > 0 {
		t.Errorf("sent: %v", wrote)
	}
}

// relay forwards connections until it is cut.
type relay struct {
	net.Listener
	mu    sync.Mutex
	to    string
	cut   bool
	conns []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{Listener: l, to: to}
	t.Cleanup(func() { l.Close(); r.set(true) })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			r.take(in)
		}
	}()
	return r
}

func (r *relay) take(in net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out, err := net.Dial("tcp", r.to)
	if r.cut || err != nil {
		in.Close()
		if out != nil {
			out.Close()
		}
		return
	}
	r.conns = append(r.conns, in, out)
	go func() { _, _ = io.Copy(in, out); in.Close() }()
	go func() { _, _ = io.Copy(out, in); out.Close() }()
}

func (r *relay) set(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cut = cut; cut {
		for _, c := range r.conns {
			c.Close()
		}
		r.conns = nil
	}
}

func TestALostConnectionIsSaidAndTakenUpWhereItWas(t *testing.T) {
	c := stage.NewCrowd(3, 1, 0)
	ui := ofCrowd(t, c)
	address, err := url.Parse(ui.URL)
	if err != nil {
		t.Fatal(err)
	}
	wire := newRelay(t, address.Host)
	p := open(t, "http://"+wire.Addr().String()+"/?"+address.RawQuery, "#/events", desk)
	p.wait("document.body.dataset.states === '1'")
	wire.set(true)
	p.wait("document.querySelector('#status').dataset.state === 'lost'")
	p.shows("#notice", "The connection to berth is lost")
	p.wait(`/^Since \d\d:\d\d:\d\d: /.test(document.querySelector('#notice').innerText) && / s\)$/.test(document.querySelector('#notice').innerText)`)
	c.SetNode(1, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "meanwhile", Effect: v1.TaintEffectNoSchedule}} })
	wire.set(false)
	p.wait("document.querySelector('#status').dataset.state === 'live' && document.querySelector('#notice').hidden")
	p.shows("#body", "meanwhile:NoSchedule")
	if states := eval[string](p, "document.body.dataset.states"); states != "1" {
		t.Errorf("%s full states were sent; the second time only what had changed was needed", states)
	}
	p.Forgive() // connections failed
}

func TestAPageOutlivesTheEndOfBerth(t *testing.T) {
	c := stage.NewCrowd(3, 1, 0)
	ui := ofCrowd(t, c)
	address, err := url.Parse(ui.URL)
	if err != nil {
		t.Fatal(err)
	}
	p := open(t, ui.URL, "", desk)
	ui.Kill()
	token := filepath.Join(t.TempDir(), "token") // token file as used by berth up
	if err := writeFile(token, address.Query().Get("token")); err != nil {
		t.Fatal(err)
	}
	p.wait("document.querySelector('#status').dataset.state === 'lost'")
	c.SetNode(2, func(n *v1.Node) { n.Spec.Unschedulable = true })
	ofCrowd(t, c, "--port", address.Port(), "--token-file", token)
	p.wait("document.querySelector('#status').dataset.state === 'live'")
	p.wait("document.querySelector('#map').map.node('node-3').cordoned")
	p.Forgive() // connections failed
	p.done()
}

// TestAPageThatWasNotLoadedWhollyLoadsItselfAgain verifies that the page reloads itself if one of
// its scripts could not be loaded, as when the browser aborts requests because the machine's
// network changes.
func TestAPageThatWasNotLoadedWhollyLoadsItselfAgain(t *testing.T) {
	p := ofCluster(t, "", desk)
	block := func(parts ...*network.BlockPattern) {
		t.Helper()
		if _, err := stage.Call(p.Page, network.SetBlockedURLs, network.SetBlockedURLsParams{URLPatterns: parts}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stage.Call(p.Page, network.Enable, network.EnableParams{}); err != nil {
		t.Fatal(err)
	}
	block(&network.BlockPattern{URLPattern: "*://*:*/store.js", Block: true})
	eval[bool](p, "(setTimeout(() => location.reload()), true)")
	p.wait("sessionStorage.getItem('berth.tries') > 0")
	block()
	p.wait("document.querySelector('#status').dataset.state === 'live' && sessionStorage.getItem('berth.tries') === null")
	p.Forgive() // blocked resources
}

func TestATokenKeepsOthersOut(t *testing.T) {
	c := stage.NewCrowd(1, 1, 0)
	file := filepath.Join(t.TempDir(), "token")
	const token = "a-token-that-is-long-enough"
	if err := writeFile(file, token); err != nil {
		t.Fatal(err)
	}
	ui := ofCrowd(t, c, "--port", "0", "--token-file", file)
	bare, _, ok := strings.Cut(ui.URL, "?token="+token)
	if !ok {
		t.Fatalf("berth ui prints %s", ui.URL)
	}
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	const deep = "?colour=zone#/node/node-1"
	enter(t, bare+deep, "wrong-wrong-wrong-wrong", "document.querySelector('#wrong:not([hidden])') && document.querySelector('#token')?.value === '' && location.href.endsWith('"+deep+"')")
	p := enter(t, bare, token, "document.querySelector('#status')?.dataset.state === 'live'")
	if got := eval[string](p, "document.cookie + location.href"); got != bare {
		t.Errorf("a script can see %q", got)
	}
	q := open(t, ui.URL, "", desk)
	q.wait("location.search === ''")
	eval[bool](q, "(setTimeout(() => location.reload()), true)")
	q.wait("performance.getEntriesByType('navigation')[0].type === 'reload' && document.querySelector('#status')?.dataset.state === 'live'")
	if refused := eval[int](q, "fetch('/api/stream', {credentials: 'omit'}).then((answer) => answer.status)"); refused != 401 {
		t.Errorf("without the cookie the stream is answered with %d", refused)
	}
	// Without its cookie, the page offers to log in, and keeps its address.
	if _, err := stage.Call(q.Page, network.ClearBrowserCookies, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	eval[bool](q, "(location.hash = '#/node/node-1', true)")
	q.shows("#notice", "The session has ended")
	q.click("#login:not([hidden])")
	q.wait("document.querySelector('#token')")
	eval[bool](q, "(document.querySelector('#token').value = '"+token+"', document.querySelector('form').requestSubmit(), true)")
	q.shows("#body h2", "node-1")
	q.Forgive() // refused resources
}

// TestManyTabsLeaveRoomForQuestions verifies that, with more tabs than the browser permits
// connections per host, all tabs follow the cluster and further requests succeed.
func TestManyTabsLeaveRoomForQuestions(t *testing.T) {
	nightly.Only(t)
	c := stage.NewCrowd(3, 1, 1)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	// These tabs share connections, unlike tabs opened by open.
	eval[bool](p, "(window.others = Array.from({length: 7}, () => window.open('/', '', 'popup')), true)")
	p.wait("window.others.every((w) => w?.document.querySelector('#status')?.dataset.state === 'live')")
	c.SetNode(1, func(n *v1.Node) { n.Spec.Unschedulable = true })
	p.wait("window.others.every((w) => w.document.querySelector('#map').map.node('node-2').cordoned)")
	eval[bool](p, "(window.others.at(-1).location.hash = location.hash = '#/pod/default/pod-1', true)")
	p.shows("#body", "Read as of")
	p.wait("window.others.at(-1).document.querySelector('#body').textContent.includes('Read as of')")
	if hidden := eval[int](p, "window.others.filter((w) => w.document.hidden).length"); hidden > 0 {
		t.Logf("%d windows are hidden", hidden)
	}
}

// TestAQuestionWithoutAnAnswerFails verifies that the page shows an error if a request has no
// response within a limit. The test shortens the limit and replaces fetch by a function that never
// responds.
func TestAQuestionWithoutAnAnswerFails(t *testing.T) {
	c := stage.NewCrowd(1, 1, 1)
	p := open(t, ofCrowd(t, c).URL, "", desk)
	eval[bool](p, `(() => {
		const timeout = AbortSignal.timeout.bind(AbortSignal);
		AbortSignal.timeout = () => timeout(100);
		window.fetch = (path, {signal}) => new Promise((_, refuse) => signal.addEventListener('abort', () => refuse(signal.reason)));
		location.hash = '#/pod/default/pod-1';
		return true;
	})()`)
	p.shows("#body .fault", "No answer within 200 s. The server is busy")
	eval[bool](p, "(location.hash = '#/what-if', true)")
	p.wait("document.querySelector('#wi-words')")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'cordon node/node-1', document.querySelector('.primary').click(), true)")
	p.shows("#body .fault", "No answer within 200 s. The server is busy")
}

// TestAHiddenTabHoldsNoStream verifies that a hidden tab keeps no stream open, but still shows
// changes, and that a visible tab opens a stream again.
func TestAHiddenTabHoldsNoStream(t *testing.T) {
	c := stage.NewCrowd(3, 1, 0)
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", desk)
	eval[bool](p, "(window.opened = [], window.EventSource = class extends EventSource { constructor(url) { super(url); window.opened.push(this); } }, true)")
	hide := func(hidden string) {
		t.Helper()
		eval[bool](p, "(Object.defineProperty(document, 'hidden', {value: "+hidden+", configurable: true}), document.dispatchEvent(new Event('visibilitychange')), true)")
	}
	hide("true")
	p.wait("window.opened.length === 1 && window.opened[0].readyState === EventSource.CLOSED")
	c.SetNode(1, func(n *v1.Node) { n.Spec.Unschedulable = true })
	p.wait("document.querySelector('#map').map.node('node-2').cordoned && window.opened.length === 2")
	hide("false")
	p.wait("window.opened.at(-1).readyState === EventSource.OPEN && !window.opened.at(-1).url.includes('once')")
	if states := eval[string](p, "document.body.dataset.states"); states != "1" {
		t.Errorf("%s full states were sent", states)
	}
}

// enter opens the page and enters a token in the form. It retries twice if the expected effect does
// not occur, because the browser aborts requests when the machine's network changes.
func enter(t *testing.T, url, token, then string) tab {
	t.Helper()
	for tries := 1; ; tries++ {
		page, err := shared.browser.Open(url, desk)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(page.Close)
		p := tab{page, t}
		p.wait("document.querySelector('#token')")
		eval[bool](p, "(document.querySelector('#token').value = '"+token+"', document.querySelector('form').requestSubmit(), true)")
		if err = p.WaitFor(then, 20*time.Second); err == nil {
			return p
		}
		if tries == 3 {
			t.Fatal(err)
		}
	}
}

// TestEverythingHasAName verifies that every control and every list has an accessible name.
func TestEverythingHasAName(t *testing.T) {
	p := ofCluster(t, "", desk)
	for _, hash := range []string{"#/queue", "#/evictions", "#/what-if", "#/node/node-1"} {
		eval[bool](p, "(location.hash = '"+hash+"', true)")
		p.wait("document.querySelector('#body').firstChild.offsetHeight > 0")
		// The names of elements that the page has just replaced are not computed yet.
		var nameless []string
		count := 0
		for try := 0; try == 0 || len(nameless) > 0 && try < 5; try++ {
			count, nameless = namedControls(t, p)
		}
		for _, text := range nameless {
			t.Errorf("%s: %s", hash, text)
		}
		if count < 12 {
			t.Errorf("%s: only %d controls were looked at", hash, count)
		}
	}
}

// namedControls counts the controls and lists of a page, and describes those without a name.
func namedControls(t *testing.T, p tab) (count int, nameless []string) {
	t.Helper()
	tree, err := stage.Call(p.Page, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range tree.Nodes {
		if n.Ignored || n.Role == nil || !named[strings.Trim(string(n.Role.Value), `"`)] {
			continue
		}
		count++
		if n.Name == nil || strings.Trim(string(n.Name.Value), `" `) == "" {
			nameless = append(nameless, fmt.Sprintf("a %s without a name (%v)", n.Role.Value, n.Properties))
		}
	}
	return count, nameless
}

// named holds the roles of elements that must have a name.
var named = map[string]bool{
	"button": true, "link": true, "textbox": true, "searchbox": true, "combobox": true, "listbox": true, "option": true, "table": true, "tab": true,
	"radio": true, "tablist": true, "radiogroup": true, "checkbox": true,
}
