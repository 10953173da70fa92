// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// TestAllRowsArePrinted verifies that a printed page has all rows of the shown list, is light, and
// has no controls.
func TestAllRowsArePrinted(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(3, 1, 300)).URL, "#/node/node-1", stage.View{Width: 1280, Height: 800, Dark: true})
	p.wait("document.querySelector('#body .list').dataset.rows === '100'")
	// Rows that do not fit are added and removed by the handlers of these events alone.
	eval[bool](p, "(dispatchEvent(new Event('beforeprint')), true)")
	p.wait("document.querySelectorAll('#body .rows .row').length === 100")
	if got := eval[string](p, colour+"('node-1')"); got != "221 228 238 255" {
		t.Errorf("a node on paper is %s", got)
	}
	eval[bool](p, "(dispatchEvent(new Event('afterprint')), true)")
	p.wait("document.querySelectorAll('#body .rows .row').length < 100 && " + colour + "('node-1') === '43 55 80 255'")

	// The style sheet for paper shows the whole page, in light colors and without controls.
	if _, err := stage.Call(p.Page, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"}); err != nil {
		t.Fatal(err)
	}
	p.wait("getComputedStyle(document.querySelector('.search')).display === 'none' && getComputedStyle(document.body).overflow === 'visible'")
	p.wait("document.querySelector('#body .list-scroll').clientHeight > 100 * 30")
	if colour := eval[string](p, "getComputedStyle(document.body).backgroundColor"); colour != "rgb(243, 245, 249)" {
		t.Errorf("paper is %s", colour)
	}
}

// TestAnUpdateKeepsTheFocus verifies that the details of a node keep the focus when the node
// changes.
func TestAnUpdateKeepsTheFocus(t *testing.T) {
	c := stage.NewCrowd(3, 1, 6)
	p := open(t, ofCrowd(t, c).URL, "#/node/node-1", desk)
	p.wait("document.querySelectorAll('#body summary').length > 1")
	eval[bool](p, "([...document.querySelectorAll('#body summary')].find((s) => s.textContent.startsWith('Labels')).focus(), true)")
	c.SetNode(0, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "new", Effect: v1.TaintEffectNoSchedule}} })
	p.shows("#body .facts", "new:NoSchedule")
	if got := eval[string](p, "document.activeElement.textContent"); len(got) < 6 || got[:6] != "Labels" {
		t.Errorf("the focus is on %q", got)
	}
}
