// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"

	"github.com/berth-k8s/berth/test/internal/nightly"
)

// TestQuestionsOfAnOperator verifies that ten questions of an operator are answered within three
// clicks from the start, and that the documentation lists them. A step is the CSS selector of a
// clicked element, "node:NAME" for a click on the map, "search:TEXT" for a search and Enter, or
// "now" for a click on the end of the timeline. The last element of a path is the answer.
func TestQuestionsOfAnOperator(t *testing.T) {
	nightly.Only(t)
	docs, err := os.ReadFile("../../docs/tasks/ui.md")
	if err != nil {
		t.Fatal(err)
	}
	c := rolling(t)
	ui := ofCrowd(t, c)
	const unfold = "#body details.budgets summary"
	questions := []struct {
		question string
		path     []string
	}{
		{"Which nodes run a workload?", []string{"search:cart", "3 pods on 2 nodes in 2 zones"}},
		{"Which pods were evicted, and where are their replacements?", []string{"#tabs [data-tab=history]", "other-1-5d4f-5evicted"}},
		{"Why is the drain stuck?", []string{"#tabs [data-tab=evictions]", "the disruption budget cart-budget needs 3 healthy pods and has 3"}},
		{"Which node is next in the roll?", []string{"#tabs [data-tab=evictions]", "Next node-4"}},
		{"Why is a pod pending?", []string{"#body .fold[aria-expanded=false]", "#body .row.within a.name", "Rejected by 4 of 6 nodes"}},
		{"Which devices does a pending pod request?", []string{"#body .fold[aria-expanded=false]", "#body .row.within a.name", "#body details.fact:not(.device) summary", "The pod has no ResourceClaims"}},
		{"When must a pod leave?", []string{"#tabs [data-tab=evictions]", "going "}},
		{"Which disruption budgets allow no eviction?", []string{"#tabs [data-tab=evictions]", unfold, "shop/cart-budget at least 3 available allows no eviction"}},
		{"What if a node were drained?", []string{"node:node-1", "#body .detail-head button", "drain node/node-1"}},
		{"What happened at some time?", []string{"now", "other-5-5d4f-9"}},
	}
	for _, q := range questions {
		if !strings.Contains(string(docs), q.question) {
			t.Errorf("docs/tasks/ui.md does not answer %q", q.question)
		}
		if len(q.path) > 4 {
			t.Errorf("%s takes %d clicks", q.question, len(q.path)-1)
		}
		p := open(t, ui.URL, "", desk)
		p.wait("document.querySelector('#map').map?.layout && document.querySelector('#body .row')")
		for _, step := range q.path[:len(q.path)-1] {
			kind, name, _ := strings.Cut(step, ":")
			switch {
			case kind == "search":
				p.press("/")
				p.wait("document.activeElement.id === 'search'")
				p.press(strings.Split(name, "")...)
				p.wait("document.querySelector('#found [role=option]')")
				for eval[bool](p, "!document.querySelector('#found [aria-selected=true]').textContent.includes('workload, ')") {
					p.press(kb.ArrowDown)
				}
				p.press(kb.Enter)
			case kind == "node":
				at := eval[[]float64](p, fmt.Sprintf("((map) => { const cell = map.layout.cells[map.layout.index.get(%q)], canvas = map.base.getBoundingClientRect(); return [canvas.left + cell.x + map.layout.size.w / 2, canvas.top + cell.y + 9]; })(document.querySelector('#map').map)", name))
				if err := p.ClickAt(at[0], at[1]); err != nil {
					t.Fatal(err)
				}
			case step == "now":
				leave(c, 9, time.Minute, "EvictionByEvictionAPI")
				p.shows("#strip", "1 eviction,")
				at := eval[[]float64](p, "((r) => [r.right - 32, r.top + r.height / 2])(document.querySelector('.strip-box').getBoundingClientRect())")
				if err := p.ClickAt(at[0], at[1]); err != nil {
					t.Fatal(err)
				}
			default:
				p.click(step)
			}
		}
		answer := q.path[len(q.path)-1]
		if err := p.Wait(fmt.Sprintf("(document.querySelector('#body').innerText + document.querySelector('#body').textContent + (document.querySelector('#wi-words')?.value || '')).includes(%q)", answer)); err != nil {
			t.Errorf("%s %v", q.question, err)
		}
		p.Close()
	}
}
