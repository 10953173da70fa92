// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// axeVersion is the version of axe-core. The test installs it by npm; it is not part of a release.
const axeVersion = "4.10.3"

// axe returns the source of axe-core, or skips the test if it cannot be installed.
func axe(t *testing.T) string {
	t.Helper()
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", dir, "axe-core@"+axeVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("axe-core cannot be installed by npm here: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "node_modules/axe-core/axe.min.js"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestAxeFindsNothing verifies that axe-core finds no accessibility problems, such as low contrast
// or missing names and roles, in twelve views, in both themes, on wide and narrow screens. In short
// mode, it looks at the light theme on a wide screen and the dark one on a narrow one.
func TestAxeFindsNothing(t *testing.T) {
	source := axe(t)
	c := busy(24, nil)
	leave(c, 0, -time.Hour, "EvictionByEvictionAPI") // overdue, and in the history
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
	ui := ofCrowd(t, c)
	for _, v := range []stage.View{{Width: 1440, Height: 900}, {Width: 1440, Height: 900, Dark: true}, {Width: 390, Height: 844}, {Width: 390, Height: 844, Dark: true}} {
		if testing.Short() && v.Dark != (v.Width < 1000) {
			continue
		}
		p := open(t, ui.URL, "", v)
		eval[bool](p, "(() => {"+source+"\n;window.axe_ = axe; return true; })()")
		look := func(where string) {
			t.Helper()
			found := eval[json.RawMessage](p, `axe_.run(document, {resultTypes: ['violations'], rules: {'target-size': {enabled: true}}}).then((r) => r.violations.map((v) => v.id + ' (' + v.impact + '): ' + v.nodes.slice(0, 4).map((n) => n.target.join(' ') + ' ' + n.any.concat(n.all).map((c) => c.message).join('; ')).join(' | ')))`)
			var list []string
			if err := json.Unmarshal(found, &list); err != nil {
				t.Fatal(err)
			}
			for _, finding := range list {
				t.Errorf("%dx%d dark %t, %s: %s", v.Width, v.Height, v.Dark, where, finding)
			}
		}
		for _, hash := range []string{"#/queue", "#/evictions", "#/history", "#/events", "#/workload/shop/Deployment/workload-1", "#/what-if", "#/node/node-6", "#/pod/default/pod-1"} {
			eval[bool](p, fmt.Sprintf("(location.hash = %q, true)", hash))
			p.wait("document.querySelector('#body').textContent.length > 20")
			switch hash {
			case "#/queue":
				p.click("#body .fold")
			case "#/evictions":
				p.wait("document.querySelector('#body .drains .blocks')")
			case "#/node/node-6":
				p.wait("document.querySelector('.rooms')")
			case "#/pod/default/pod-1":
				p.wait("document.querySelector('.summary-line')")
			}
			look(hash)
		}
		eval[bool](p, "(location.hash = '#/what-if', true)")
		p.wait("document.querySelector('#wi-words')")
		eval[bool](p, "(document.querySelector('#wi-words').value = 'cordon node/node-6', document.querySelector('#body .primary').click(), true)")
		p.wait("document.querySelector('.verdict, .answer .list, .answer h3')")
		look("forecast")
		p.press("/")
		p.wait("document.activeElement.id === 'search'")
		p.press("n", "o", "d")
		p.wait("document.querySelector('#found [role=option]')")
		look("search")
		eval[bool](p, "(document.activeElement.blur(), true)")
		eval[bool](p, "(document.querySelector('.panes [data-to=stage]').click(), true)")
		p.click("#shape [data-value=table]")
		look("table")
		p.click("#shape [data-value=map]")
		p.press("?")
		look("keys")
		p.Close()
	}
}
