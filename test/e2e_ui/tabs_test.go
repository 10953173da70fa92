// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

var (
	tabsCount = flag.Int("tabs.count", 3, "tabs of one browser")
	tabsNodes = flag.Int("tabs.nodes", 60, "nodes of the cluster of the tabs; it has ten times as many pods")
	tabsFor   = flag.Duration("tabs.for", 5*time.Second, "how long the tabs are measured")
	tabsCheck = flag.Bool("tabs.check", false, "fail beyond the bounds: 2 s per question, five tasks over 100 ms per minute and tab, a heap of 15 MiB")
)

// tabRate is the number of changes of pods per second.
const tabRate = 50

// questions are the requests that each tab makes, with the longest time of each in milliseconds.
var questions = []string{
	"/api/find?q=pod-1", "/api/nodes/node-1", "/api/pods?namespace=default&priority=0", "/api/labels?key=kubernetes.io/arch",
	"/api/select?labels=kubernetes.io/arch=amd64", "/api/objects",
	"/berth.v1alpha1.QueryService/Explain",
}

// TestTabsStayResponsive measures several tabs of one browser during churn: the time of each
// question, the tasks over 100 ms, and the heap at the end. It verifies that all questions are
// answered and that all tabs follow the cluster. The times depend on the machine, and are only
// verified with a flag.
func TestTabsStayResponsive(t *testing.T) {
	c := stage.NewCrowd(*tabsNodes, 5, 10**tabsNodes)
	c.Other = map[string]any{}
	ui := ofCrowd(t, c)
	first, err := shared.browser.Open(ui.URL, desk) // a large cluster takes a while to read
	if err == nil {
		err = first.WaitFor("document.querySelector('#status')?.dataset.state === 'live'", 10*time.Minute)
		first.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	tabs := []tab{open(t, ui.URL, "", desk)}
	for len(tabs) < *tabsCount {
		page, err := tabs[0].Tab(ui.URL, desk)
		if err != nil {
			t.Fatal(err)
		}
		tb := tab{page, t}
		t.Cleanup(tb.done)
		tb.wait("document.querySelector('#status').dataset.state === 'live' && document.querySelector('#summary b')")
		tabs = append(tabs, tb)
	}
	for i, p := range tabs {
		view := []string{"#/queue", "#/evictions", "#/history", "#/events", "#/node/node-1", "#/workload/default/Deployment/none"}[i%6]
		eval[bool](p, fmt.Sprintf("(location.hash = %q, window.long_ = [], new PerformanceObserver((l) => { for (const e of l.getEntries()) if (e.duration > 100) window.long_.push(Math.round(e.duration)); }).observe({type: 'longtask'}), true)", view))
	}
	*crowdRate = tabRate
	churned := make(chan int, 1)
	go func() { churned <- churn(c, *tabsFor) }()
	slowest, asked := map[string]int{}, 0
	for i := 0; len(churned) == 0; i++ {
		p := tabs[i%len(tabs)]
		for _, question := range questions {
			options := "{}"
			if strings.HasSuffix(question, "Explain") {
				options = `{method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"name": "pod-1"}'}`
			}
			took := eval[int](p, fmt.Sprintf("(async (from) => { const a = await fetch(%q, %s); await a.text(); return a.ok ? Math.round(performance.now() - from) : -1; })(performance.now())", question, options))
			if took < 0 {
				t.Errorf("%s is refused", question)
			}
			slowest[question], asked = max(slowest[question], took), asked+1
			time.Sleep(*tabsFor / 1000)
		}
	}
	load, _ := os.ReadFile("/proc/loadavg")
	t.Logf("%d tabs, %d nodes, %d changes in %s, %d questions; load %s", len(tabs), *tabsNodes, <-churned, *tabsFor, asked, strings.TrimSpace(string(load)))
	for _, question := range questions {
		t.Logf("%6d ms at most: %s", slowest[question], question)
		if *tabsCheck && slowest[question] > 2000 {
			t.Errorf("%s took %d ms", question, slowest[question])
		}
	}
	c.SetPod(len(c.Pods), c.Pod(5_000_000, ""))
	for i, p := range tabs {
		p.wait("[...document.querySelector('#map').map.store.queue.values()].some((p) => p.name === 'pod-5000001')")
		long, size := eval[[]int](p, "window.long_"), heap(t, p)
		t.Logf("tab %d: %d tasks over 100 ms %v, heap %.1f MiB", i+1, len(long), long, float64(size)/(1<<20))
		if *tabsCheck && (float64(len(long)) > 5*max(1, tabsFor.Minutes()) || size > 15<<20) {
			t.Errorf("tab %d: too many long tasks, or too large a heap", i+1)
		}
	}
}
