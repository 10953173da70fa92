// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
	"github.com/berth-k8s/berth/test/internal/nightly"
)

// longNamed returns a crowd of nodes whose names are longer than any column and differ only at
// their end.
func longNamed(nodes int) *stage.Crowd {
	c := stage.NewCrowd(nodes, 5, 3*nodes)
	called := map[string]string{}
	for i, n := range c.Nodes {
		called[n.Name] = fmt.Sprintf("gke-production-europe-west4-default-pool-7f3c2a1b-%04x", i*40503%65536)
		n.Name = called[n.Name]
		n.Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoExecute}}
	}
	for _, p := range c.Pods {
		p.Spec.NodeName = called[p.Spec.NodeName]
	}
	return c
}

// lastLetter is a JavaScript expression that reports whether the last letter of a name is within
// its cell.
const lastLetter = `(() => {
	const name = document.querySelector(%q), words = name.firstChild, range = document.createRange();
	range.setStart(words, words.length - 1);
	range.setEnd(words, words.length);
	const letter = range.getBoundingClientRect(), cell = name.closest('.cell').getBoundingClientRect();
	return letter.width > 0 && letter.left >= cell.left && letter.right <= cell.right + 1;
})()`

// TestLongNamesAreToldApart verifies that the end of a name is visible if the name of a node,
// workload or pod does not fit, because names differ at their end. A long name must not make a pane
// wider than a phone's screen.
func TestLongNamesAreToldApart(t *testing.T) {
	nightly.Only(t)
	crowd := longNamed(30)
	for i := range 6 {
		pod := crowd.Pod(1000+i, "")
		pod.Namespace, pod.Name = "commerce", fmt.Sprintf("checkout-of-the-recommendation-service-for-returning-customers-%d-%05d", i%2, i)
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", UID: "x", Controller: new(true),
			Name: fmt.Sprintf("checkout-of-the-recommendation-service-for-returning-customers-%d", i%2)}}
		crowd.Pods = append(crowd.Pods, pod)
	}
	ui := ofCrowd(t, crowd)
	p := open(t, ui.URL, "#/evictions", stage.View{Width: 1440, Height: 900})
	p.click("#shape [data-value=table]")
	for _, where := range []string{"#nodes .row a bdi", "#body .row .tail bdi"} {
		p.wait(fmt.Sprintf("document.querySelector(%q)", where))
		if whole := eval[bool](p, fmt.Sprintf("document.querySelector(%q).getBoundingClientRect().width <= document.querySelector(%q).closest('.cell').clientWidth", where, where)); whole {
			t.Errorf("%s: the name fits, which shows nothing", where)
		}
		if !eval[bool](p, fmt.Sprintf(lastLetter, where)) {
			t.Errorf("%s: the end of the name is not seen", where)
		}
	}
	for _, width := range []int64{1440, 390} {
		q := open(t, ui.URL, "#/queue", stage.View{Width: width, Height: 900})
		if width < 900 {
			q.click(".panes [data-to=panel]")
		}
		q.click("#body .fold")
		for _, where := range []string{"#body .fold bdi", "#body .within a bdi"} {
			q.wait(fmt.Sprintf("document.querySelector(%q)", where))
			if !eval[bool](q, fmt.Sprintf(lastLetter, where)) {
				t.Errorf("%d wide: %s: the end of the name is not seen", width, where)
			}
		}
		q.shows("#body .fold .kind", "commerce · ReplicaSet")
		eval[bool](q, "(document.querySelector('#body .within a').click(), true)")
		q.wait("document.querySelector('.summary-line')")
		if over := eval[int](q, "Math.max(...[...document.querySelectorAll('#body .facts, #body .chips')].map((e) => e.scrollWidth - e.clientWidth))"); over > 0 {
			t.Errorf("%d wide: the pod's page is %d pixels wider than its pane", width, over)
		}
		if over := eval[int](q, "document.querySelector('#body .view').scrollWidth - document.querySelector('#body .view').clientWidth"); over > 0 {
			t.Errorf("%d wide: the pod's view is %d pixels wider than its pane", width, over)
		}
	}
}

// TestNodesAreTouchedOnAPhone verifies that a few dozen nodes on a phone are large enough to be
// touched, and do not need more than three screens.
func TestNodesAreTouchedOnAPhone(t *testing.T) {
	ui := ofCrowd(t, longNamed(60))
	p := open(t, ui.URL, "", stage.View{Width: 390, Height: 844})
	p.wait("document.querySelector('#map').dataset.nodes === '60'")
	if side := eval[float64](p, "Math.min(document.querySelector('#map').map.layout.size.w, document.querySelector('#map').map.layout.size.h)"); side < 22 {
		t.Errorf("60 nodes are %v pixels wide", side)
	}
	if screens := eval[float64](p, "document.querySelector('#map').map.layout.height / document.querySelector('#map').map.box.clientHeight"); screens > 3 {
		t.Errorf("60 nodes are on %v screens", screens)
	}
}

// TestAReasonOfNoNodeIsNotCounted verifies that a reason that does not depend on nodes, such as an
// unbound claim, is shown without a number of nodes.
func TestAReasonOfNoNodeIsNotCounted(t *testing.T) {
	c := stage.NewCrowd(5, 1, 0)
	pending := c.Pod(0, "")
	pending.Status.Conditions[0].Message = "0/5 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/5 nodes are available: 5 Preemption is not helpful for scheduling."
	c.Pods = append(c.Pods, pending)
	p := open(t, ofCrowd(t, c).URL, "", desk)
	p.shows("#body .why", "pod has unbound immediate PersistentVolumeClaims")
	if words := eval[string](p, "document.querySelector('#body .why').textContent"); words != "pod has unbound immediate PersistentVolumeClaims" {
		t.Errorf("%q", words)
	}
}

// TestNoTwoRowsReadTheSame verifies that names that differ only at their end are completely visible
// in every list, in two lines if necessary.
func TestNoTwoRowsReadTheSame(t *testing.T) {
	c := stage.NewCrowd(1, 1, 0)
	for i := range 3 {
		name := fmt.Sprintf("recommendation-service-canary-%c7d9f8b6c5-x2%c4k", 'a'+i, 'a'+i)
		for kind, on := range map[string]string{"p": "", "n": "node-1"} {
			pod := c.Pod(10*i+len(on), on)
			pod.Namespace, pod.Name = "commerce", name+kind
			c.Pods = append(c.Pods, pod)
		}
	}
	c.Nodes[0].Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoExecute}}
	ui := ofCrowd(t, c)
	for _, v := range []stage.View{{Width: 1280, Height: 800}, {Width: 390, Height: 844}} {
		for _, hash := range []string{"#/queue", "#/evictions", "#/node/node-1"} {
			p := open(t, ui.URL, hash, v)
			p.wait("document.querySelectorAll('#body .rows .row').length === 3")
			cut := eval[[]string](p, `[...document.querySelectorAll('#body .rows .row a.name')].filter((a) => a.textContent.includes('canary')).flatMap((a) => {
				const cell = a.closest('.row').getBoundingClientRect(), range = document.createRange();
				range.selectNodeContents(a);
				const out = [...range.getClientRects()].some((r) => r.right > cell.right + 1 || r.bottom > cell.bottom + 1 || r.bottom > a.getBoundingClientRect().bottom + 3);
				return out || !a.textContent.includes('recommendation-service-canary-') ? [a.textContent] : [];
			})`)
			for _, name := range cut {
				t.Errorf("%d wide, %s: %s is cut", v.Width, hash, name)
			}
		}
	}
}
