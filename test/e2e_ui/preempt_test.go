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

var shots = flag.String("shots", "", "write pictures of the tested views into this folder")

// pictures writes pictures of a view, at four widths, light and dark, if the flag is set.
func pictures(t *testing.T, url, hash, name, ready string) {
	t.Helper()
	if *shots == "" {
		return
	}
	for i := range 8 {
		v := []stage.View{{Width: 390, Height: 844}, {Width: 1280, Height: 800}, {Width: 1920, Height: 1080}, {Width: 2560, Height: 1440}}[i/2]
		v.Dark = i%2 > 0
		p := open(t, url, hash, v)
		p.wait(ready)
		theme := map[bool]string{true: "dark", false: "light"}[v.Dark]
		shot(t, p, filepath.Join(*shots, fmt.Sprintf("%s-%d-%s.png", name, v.Width, theme)))
		p.Close()
	}
}

// preempting returns a crowd in which the pending pod urgent, of the workload trainer, is nominated
// to node-1. There web-0 and db-0 are its victims. Only the event of db-0 has the preemptor's UID.
func preempting() *stage.Crowd {
	c := laden()
	urgent, critical := c.Pod(50, ""), int32(2_000_000_999)
	urgent.Name, urgent.Spec.Priority, urgent.Status.NominatedNodeName = "urgent", &critical, "node-1"
	urgent.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "trainer", UID: "y", Controller: new(true)}}
	other := c.Pod(51, "")
	other.Name, other.OwnerReferences = "patient", urgent.OwnerReferences
	for i := range 2 {
		leave(c, i, time.Minute, v1.PodReasonPreemptionByScheduler)
	}
	c.SetPod(len(c.Pods), urgent)
	c.SetPod(len(c.Pods), other)
	c.Happen(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", UID: "e"}, Reason: "Preempted", LastTimestamp: metav1.Now(),
		InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "db-0"}, Message: fmt.Sprintf("Preempted by pod %s on node node-1", urgent.UID)})
	return c
}

// leave begins the deletion of the i-th pod, whose grace period ends after the given time.
func leave(c *stage.Crowd, i int, after time.Duration, cause string) {
	p := c.Pods[i].DeepCopy()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.NewTime(time.Now().Add(after))), new(int64(max(0, after.Seconds())))
	if cause != "" {
		p.Status.Conditions = append(p.Status.Conditions, v1.PodCondition{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: cause})
	}
	c.SetPod(i, p)
}

// TestAPreemptionIsAPicture verifies that the preemptor, its victims and the node with a countdown
// are shown together, that victims name their preemptor, and that a workload shows its nominated
// pods without unfolding. Priorities are never cut.
func TestAPreemptionIsAPicture(t *testing.T) {
	ui := ofCrowd(t, preempting())
	p := open(t, ui.URL, "#/queue", desk)
	p.shows("#body .row:has(.fold)", "1 nominated to node-1")
	if cut := eval[string](p, `[...document.querySelectorAll('#body .row [data-title=Priority]')].filter((e) => e.scrollWidth > e.clientWidth || !e.textContent.endsWith('000,999')).map((e) => e.textContent).join()`); cut != "" {
		t.Errorf("cut priorities: %s", cut)
	}
	eval[bool](p, "(location.hash = '#/evictions', true)")
	p.shows(".preemption .preemptor", "urgentpriority 2,000,000,999")
	p.shows(".preemption .victims", "web-0priority 100")
	p.shows(".preemption .victims", "db-0priority 1,000")
	p.wait("/node-10:[0-5]\\d$/.test(document.querySelector('.preemption .node').textContent)")
	p.wait("[...document.querySelectorAll('#body .row .why')].filter((e) => e.textContent === 'preempted by urgent').length === 2")
	for _, pod := range []string{"urgent", "web-0"} {
		eval[bool](p, "(location.hash = '#/pod/default/"+pod+"', true)")
		p.shows("#body h2", pod)
		p.shows("#body .preemption .victims", "web-0")
	}
	eval[bool](p, "(location.hash = '#/node/node-1', true)")
	p.shows("#body .row .why", "priority 1,000 · Terminating")
	pictures(t, ui.URL, "#/queue", "4-queue", "document.querySelector('.chip.come')")
	pictures(t, ui.URL, "#/evictions", "4-evictions", "document.querySelector('.preemption .node .countdown')?.textContent")
	pictures(t, ui.URL, "#/pod/default/urgent", "4-pod", "document.querySelector('.summary-line')")
}
