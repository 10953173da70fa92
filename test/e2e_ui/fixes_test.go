// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// TestAnErrorClearsTheForecast verifies that the map does not keep the forecast of earlier
// operations when later ones are invalid.
func TestAnErrorClearsTheForecast(t *testing.T) {
	c := stage.NewCrowd(3, 1, 6)
	c.SetNode(0, func(n *v1.Node) { n.Spec.Unschedulable = true })
	p := open(t, ofCrowd(t, c).URL, "#/node/node-1", desk)
	p.wait("[...document.querySelectorAll('#body .chips button')].some((b) => b.textContent === 'What if it were uncordoned?')")
	eval[bool](p, "([...document.querySelectorAll('#body .chips button')].pop().click(), true)")
	p.wait("document.querySelector('#map').map.view.plan?.of('node-1') && document.querySelector('#wi-words').value === 'uncordon node/node-1'")
	eval[bool](p, "(document.querySelector('#wi-words').value = 'drain node/missing', document.querySelector('.primary').click(), true)")
	p.shows(".answer .fault", "missing")
	p.wait("document.querySelector('#map').map.view.plan === null && document.querySelector('#overlay').hidden")
	p.Forgive() // the server has refused the operation
}

// TestEventsRespectAllFilters verifies that the filters by workload, priority and node labels apply
// to events.
func TestEventsRespectAllFilters(t *testing.T) {
	c := laden()
	c.SetNode(0, func(n *v1.Node) { n.Labels["disk"] = "fast" })
	for _, pod := range []string{"web-0", "db-0", "web-1"} {
		c.Happen(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: pod, UID: types.UID("e-" + pod)}, Reason: "Pulled",
			LastTimestamp: metav1.Now(), InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod}, Message: pod})
	}
	ui := ofCrowd(t, c)
	for query, want := range map[string]string{"": "3", "?workload=StatefulSet/web": "2", "?priority=1000": "1", "?labels=disk%3Dfast": "2"} {
		p := open(t, ui.URL, query+"#/events", desk)
		p.wait(fmt.Sprintf("document.querySelector('#body .list').dataset.rows === %q", want))
		p.Close()
	}
	pictures(t, ui.URL, "?workload=StatefulSet/web#/events", "9-events", "document.querySelector('#body .list').dataset.rows === '2'")
}

// TestTheScoreTableListsAllNodes verifies that the scores of all feasible nodes are listed, and
// that plugins with equal scores are listed once.
func TestTheScoreTableListsAllNodes(t *testing.T) {
	c := stage.NewCrowd(14, 2, 30)
	c.Pods = append(c.Pods, c.Pod(77, ""))
	ui := ofCrowd(t, c)
	p := open(t, ui.URL, "#/pod/default/pod-78", desk)
	p.wait("document.querySelectorAll('.scores tbody tr').length === 14")
	p.shows("#body details summary", "4 more nodes")
	p.shows("#body", "The same for all: ImageLocality 0")
	pictures(t, ui.URL, "#/pod/default/pod-78", "9-scores", "document.querySelector('.scores')")
}
