// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"flag"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

var wallShots = flag.String("wall.shots", "", "write pictures of the wall screen into this folder")

// TestAWallScreenSignalsProblems verifies that the view for a screen on a wall has large type,
// shows the age of the oldest pending pod and the number of schedulable nodes, signals problems by
// its title and icon, and dims its data after berth has ended.
func TestAWallScreenSignalsProblems(t *testing.T) {
	c := stage.NewCrowd(12, 3, 60)
	c.SetNode(1, func(n *v1.Node) { n.Spec.Unschedulable = true })
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "?wall", stage.View{Width: 1920, Height: 1080})
	p.shows("#summary", "12 ready, 11 schedulable")
	p.wait("document.title.startsWith('OK · ') && document.querySelector('link[rel=icon]').getAttribute('href') === '/icon.svg'")
	pod := c.Pod(100, "")
	pod.CreationTimestamp = metav1.NewTime(time.Now().Add(-time.Hour))
	c.SetPod(len(c.Pods), pod)
	c.SetNode(2, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
	p.shows("#summary", "oldest 60m")
	p.shows("#summary", "11 ready, 10 schedulable")
	p.wait("document.title.startsWith('⚠ 1 not ready, pending for 60m · ') && document.querySelector('link[rel=icon]').getAttribute('href') === '/icon-alert.svg'")
	small := eval[string](p, `[...document.querySelectorAll('body :not(.hidden)')].filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.getClientRects().length && getComputedStyle(e).visibility === 'visible')
		.map((e) => [parseFloat(getComputedStyle(e).fontSize) * e.currentCSSZoom, e.className, e.textContent.slice(0, 20)]).filter(([size]) => size < 20).join('; ')`)
	if small != "" {
		t.Errorf("type below 20 pixels: %s", small)
	}
	for _, v := range []stage.View{{Width: 1920, Height: 1080}, {Width: 2560, Height: 1440, Dark: true}, {Width: 1280, Height: 800}, {Width: 390, Height: 844}} {
		if *wallShots != "" {
			q := open(t, ui.URL, "?wall", v)
			q.shows("#summary", "oldest")
			shot(t, q, filepath.Join(*wallShots, fmt.Sprintf("wall-%d.png", v.Width)))
			q.done()
		}
	}
	ui.Kill()
	p.wait("document.querySelector('#status').dataset.state === 'lost' && document.title.startsWith('⚠ outdated, ') && getComputedStyle(document.querySelector('main')).opacity < 1")
	if *wallShots != "" {
		shot(t, p, filepath.Join(*wallShots, "wall-lost.png"))
	}
	p.Forgive() // connections failed
}
