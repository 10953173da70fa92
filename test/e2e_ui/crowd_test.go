// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/cdproto/runtime"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

var (
	crowdNodes = flag.Int("crowd.nodes", 500, "nodes of the crowd")
	crowdPods  = flag.Int("crowd.pods", 5000, "pods of the crowd")
	crowdRate  = flag.Int("crowd.rate", 300, "changes a second")
	crowdFor   = flag.Duration("crowd.for", 3*time.Second, "how long frames are counted")
	crowdShot  = flag.String("crowd.shot", "", "write a picture of the page into this file")
)

func writeFile(name, text string) error { return os.WriteFile(name, []byte(text), 0o600) }

// frames starts recording the times between the frames of the page, in milliseconds. framesTaken
// ends the recording and reads the times.
const frames = `(window.frames_ = [], window.lastFrame = performance.now(), window.countFrames = (now) => { window.frames_.push(now - window.lastFrame); window.lastFrame = now; window.counting && requestAnimationFrame(window.countFrames); }, window.counting = true, requestAnimationFrame(window.countFrames), true)`

const framesTaken = `(window.counting = false, ((l) => ({count: l.length, median: l[Math.floor(l.length / 2)], p95: l[Math.floor(l.length * 0.95)], p99: l[Math.floor(l.length * 0.99)], max: l[l.length - 1], late: l.filter((x) => x > 50).length}))(window.frames_.slice(1).sort((a, b) => a - b)))`

type frameTimes struct {
	Count, Late           int
	Median, P95, P99, Max float64
}

func (f frameTimes) String() string {
	return fmt.Sprintf("%d frames, median %.1f ms, p95 %.1f, p99 %.1f, longest %.1f, %d over 50 ms", f.Count, f.Median, f.P95, f.P99, f.Max, f.Late)
}

// TestACrowdIsShownWholeAndFollowed verifies that the page shows a crowd completely, follows every
// change, and scrolls. The frame rate depends on the machine and is only logged.
func TestACrowdIsShownWholeAndFollowed(t *testing.T) {
	c := stage.NewCrowd(*crowdNodes, 5, *crowdPods)
	began := time.Now()
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "", stage.View{Width: 1440, Height: 900})
	p.wait(fmt.Sprintf("document.querySelector('#map').dataset.nodes === '%d'", *crowdNodes))
	t.Logf("all nodes on the map %s after the start of berth ui; berth takes %d MiB, the page's heap %d MiB", time.Since(began).Round(time.Millisecond), ui.Memory()>>20, heap(t, p)>>20)

	eval[bool](p, frames)
	changes := churn(c, *crowdFor)
	smooth := eval[frameTimes](p, framesTaken)
	t.Logf("%d changes in %s: %s", changes, *crowdFor, smooth)
	if smooth.Count == 0 {
		t.Error("no frame was drawn")
	}
	for _, colour := range []string{"taint", "zone", "fill"} {
		eval[bool](p, frames)
		p.click("#colour [data-value=" + colour + "]")
		p.wait("window.frames_.length > 8")
		t.Logf("all drawn anew by %s: longest frame %.1f ms", colour, eval[frameTimes](p, framesTaken).Max)
	}
	// The last change must be visible.
	c.SetNode(0, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "last", Effect: v1.TaintEffectNoExecute}} })
	p.wait("document.querySelector('#map').map.node('node-1').taints[0] === 'last:NoExecute' && document.querySelector('#map').map.node('node-1').leaving > 0")
	shot(t, p, *crowdShot)

	for i := range *crowdPods / 5 {
		c.SetPod(len(c.Pods), c.Pod(1_000_000+i, ""))
	}
	waiting := 0
	for _, pod := range c.Pods {
		if pod.Spec.NodeName == "" {
			waiting++
		}
	}
	p.wait(fmt.Sprintf("document.querySelector('#body .list').dataset.rows === '%d'", waiting))
	if rows := eval[int](p, "document.querySelectorAll('#body .rows .row').length"); rows > 60 {
		t.Errorf("%d rows of the queue are in the document", rows)
	}
	eval[bool](p, frames)
	eval[bool](p, `(async () => { const s = document.querySelector('#body .list-scroll'); for (let i = 0; i < 60; i++) { s.scrollTop += 700; await new Promise(requestAnimationFrame); } return true; })()`)
	t.Logf("scrolling %d pods that wait: %s", waiting, eval[frameTimes](p, framesTaken))
	p.click("#shape [data-value=table]")
	p.wait(fmt.Sprintf("document.querySelector('#nodes .list').dataset.rows === '%d'", *crowdNodes))
	asked := time.Now()
	eval[bool](p, "(location.hash = '#/pod/default/pod-1', true)")
	p.wait("document.querySelector('.summary-line')")
	t.Logf("a pod explained in %s", time.Since(asked).Round(10*time.Millisecond))
	t.Logf("at the end berth takes %d MiB, the page's heap %d MiB", ui.Memory()>>20, heap(t, p)>>20)
	if wrote := c.Wrote(); len(wrote) > 0 {
		t.Errorf("sent: %v", wrote)
	}
}

// churn binds and unbinds pods, and taints nodes, at the rate of the flag. It returns the number of
// changes.
func churn(c *stage.Crowd, length time.Duration) int {
	tick := time.NewTicker(time.Second / 50)
	defer tick.Stop()
	end := time.After(length)
	n := 0
	for {
		select {
		case <-end:
			return n
		case <-tick.C:
		}
		for range max(1, *crowdRate/50) {
			n++
			switch {
			case n%10 == 0:
				c.SetNode(n*31%len(c.Nodes), func(node *v1.Node) {
					node.Spec.Taints = [][]v1.Taint{nil, {{Key: "busy", Effect: v1.TaintEffectNoSchedule}}, {{Key: "out", Effect: v1.TaintEffectNoExecute}}}[n/10%3]
				})
			default:
				i := n * 17 % len(c.Pods)
				on := c.Nodes[n*13%len(c.Nodes)].Name
				if n%7 == 0 {
					on = ""
				}
				pod := c.Pod(i, on)
				pod.UID = c.Pods[i].UID + "x" // a new pod with the same name, since pods do not move
				c.SetPod(i, pod)
			}
		}
	}
}

// heap returns the size of the JavaScript heap after a garbage collection.
func heap(t *testing.T, p tab) int64 {
	t.Helper()
	if _, err := stage.Call(p.Page, heapprofiler.CollectGarbage, cdp.Empty{}); err != nil {
		t.Fatal(err)
	}
	usage, err := stage.Call(p.Page, runtime.GetHeapUsage, cdp.Empty{})
	if err != nil {
		t.Fatal(err)
	}
	return int64(usage.UsedSize)
}

func shot(t *testing.T, p tab, file string) {
	t.Helper()
	if file == "" {
		return
	}
	png, err := p.Screenshot()
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		t.Error(err)
	}
}
