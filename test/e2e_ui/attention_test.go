// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestStuckPodsAreOverdueWithARemedy verifies that terminating pods on an unreachable node are
// marked as overdue and have a remedy, and that the lists separate pods that need attention from
// pods whose state resolves itself.
func TestStuckPodsAreOverdueWithARemedy(t *testing.T) {
	c := laden()
	c.SetNode(1, func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown })
	leave(c, 3, -3*time.Minute, "DeletionByTaintManager")
	leave(c, 0, time.Minute, "EvictionByEvictionAPI")
	nominated := c.Pod(60, "")
	nominated.Status.NominatedNodeName = "node-1"
	c.SetPod(len(c.Pods), nominated)
	c.SetPod(len(c.Pods), c.Pod(61, ""))
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "#/evictions", desk)
	p.shows("#summary", "1 overdue")
	p.shows("#body .row.overdue", "node-2 is not ready, so no kubelet confirms the end of the pod")
	p.shows("#body .row.overdue .countdown", "for 3m")
	p.shows("#body .split .needs", "1 needs attention")
	p.click("#body .split .resolves")
	p.wait("document.querySelector('#body .list').dataset.rows === '1' && new URLSearchParams(location.search).get('evictions') === 'resolves'")
	p.shows("#body .row .name", "web-0")
	eval[bool](p, "(location.hash = '#/pod/default/web-1', true)")
	p.shows("#body .late", "overdue for 3 min")
	p.shows("#body .late code", "kubectl taint node node-2 node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	eval[bool](p, "(location.hash = '#/queue', true)")
	p.shows("#body .split .resolves", "1 resolves itself")
	p.click("#body .split .needs")
	p.wait("document.querySelector('#body .list').dataset.rows === '1'")
	p.shows("#body .row .name", "pod-62")
	pictures(t, ui.URL, "#/evictions", "6-evictions", "document.querySelector('.row.overdue')")
	pictures(t, ui.URL, "#/pod/default/web-1", "6-pod", "document.querySelector('.late:not([hidden])') && document.querySelector('.summary-line')")
}
