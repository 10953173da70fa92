// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

// TestAnExplanationIsOutdatedWhenItsPodChanges verifies that an explanation is marked as outdated
// when its pod or node changes, but not when the page is loaded or another pod is placed on the
// node.
func TestAnExplanationIsOutdatedWhenItsPodChanges(t *testing.T) {
	c := stage.NewCrowd(2, 1, 4)
	c.SetPod(len(c.Pods), c.Pod(50, ""))
	ui := ofCrowd(t, c)
	for _, hash := range []string{"#/pod/default/pod-1", "#/pod/default/pod-51"} {
		p := open(t, ui.URL, hash, desk)
		p.wait("document.querySelector('.summary-line')")
		c.SetPod(len(c.Pods), c.Pod(len(c.Pods)+100, "node-1"))
		p.wait(fmt.Sprintf("document.querySelector('#map').map.node('node-1').blocks.length >= %d", len(c.Pods)-3))
		if !eval[bool](p, "document.querySelector('.stale').hidden") {
			t.Errorf("%s: the pod is said to have changed", hash)
		}
		if hash == "#/pod/default/pod-51" {
			c.SetPod(4, c.Pod(50, "node-2"))
		} else {
			c.SetNode(0, func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: "out", Effect: v1.TaintEffectNoExecute}} })
		}
		p.wait("!document.querySelector('.stale').hidden")
	}
}

// TestAPodOfAnotherSchedulerSaysSo verifies that the queue shows why Berth does not try a pod:
// another scheduler is responsible, or a claim does not exist.
func TestAPodOfAnotherSchedulerSaysSo(t *testing.T) {
	c := stage.NewCrowd(1, 1, 0)
	foreign := c.Pod(0, "")
	foreign.Spec.SchedulerName, foreign.Status.Conditions = "volcano", nil
	c.Pods = append(c.Pods, foreign)
	template := "gpus"
	claiming := c.Pod(1, "")
	claiming.Status.Conditions = nil
	claiming.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
	c.Pods = append(c.Pods, claiming)
	p := open(t, ofCrowd(t, c).URL, "", desk)
	p.shows("#body .rows", `it is for the scheduler "volcano", which Berth does not serve here`)
	p.shows("#body .rows", "ResourceClaim not created yet")
}

// TestPodsOnNoNodeAreSaid verifies that pods on nodes that do not exist are counted separately.
func TestPodsOnNoNodeAreSaid(t *testing.T) {
	c := stage.NewCrowd(1, 1, 2)
	c.Pods = append(c.Pods, c.Pod(7, "nowhere"))
	p := open(t, ofCrowd(t, c).URL, "", desk)
	p.shows("#summary", "on nodes, and 1 on nodes that do not exist")
	p.wait("document.querySelector('#summary .tile:nth-child(2) b').textContent === '2'")
}

// TestPreemptionUnderWayAsksForNothing verifies that the view of a pod whose victims are
// terminating suggests no action and offers no command for copying.
func TestPreemptionUnderWayAsksForNothing(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(1, 1, 0)).URL, "", desk)
	words := eval[string](p, `import('/pod.js').then(({PodView}) => {
		const store = {queue: new Map(), evictions: new Map(), nodes: new Map(), events: [], summary: {}, now: () => 0};
		const view = new PodView(store, 'default', 'urgent', {back: '', whatIf() {}, mark() {}, locate() {}});
		view.asking.abort();
		view.show({state: 'Pending', summary: 'None of 1 nodes can take the pod.', pod: {priority: 1000, nominatedNode: 'node-1'}, source: {asOf: '2026-11-20T12:00:00Z'},
			leaving: {node: 'node-1', pods: [{namespace: 'default', name: 'victim'}], until: '2026-11-20T12:00:30Z', preempted: true}}, []);
		view.close();
		return view.element.innerHTML.includes('class="copy"') ? 'a command' : view.answer.textContent;
	})`)
	for _, want := range []string{"Preemption is under way", "1 pod on node-1 is terminating: victim", "Nothing needs to be done."} {
		if !strings.Contains(words, want) {
			t.Errorf("%q lacks %q", words, want)
		}
	}
	p.Forgive() // the request that was aborted
}

// TestReasonsStandInOneOrder verifies that the order of the reasons is stable, and that all of them
// can be shown.
func TestReasonsStandInOneOrder(t *testing.T) {
	c := stage.NewCrowd(3, 1, 0)
	for i := range 16 {
		pod := c.Pod(i, "")
		pod.Status.Conditions[0].Message = fmt.Sprintf("0/3 nodes are available: 3 reason %c.", 'a'+(i*5)%8)
		c.Pods = append(c.Pods, pod)
	}
	ui := ofCrowd(t, c)
	const chips = "[...document.querySelectorAll('.reasons .reason:not(.more)')].map((b) => b.textContent).join(', ')"
	p := open(t, ui.URL, "", desk)
	p.wait(chips + " === '2 reason a, 2 reason b, 2 reason c, 2 reason d, 2 reason e'")
	p.shows(".reasons .more", "3 more")
	p.click(".reasons .more")
	p.wait(chips + ".endsWith('2 reason f, 2 reason g, 2 reason h')")
	p.shows(".reasons .more", "Fewer")
	// More pods with the same reasons keep the order.
	for i := range 8 {
		pod := c.Pods[7-i].DeepCopy()
		pod.UID, pod.Name = types.UID(fmt.Sprint("again-", i)), fmt.Sprint("again-", i)
		c.SetPod(len(c.Pods), pod)
	}
	p.wait(chips + " === '3 reason a, 3 reason b, 3 reason c, 3 reason d, 3 reason e, 3 reason f, 3 reason g, 3 reason h'")
}

// TestAPhoneHasLittleChrome verifies that on a phone the map fills most of the screen, and that the
// search field is wide enough.
func TestAPhoneHasLittleChrome(t *testing.T) {
	p := open(t, ofCrowd(t, stage.NewCrowd(33, 3, 200)).URL, "", stage.View{Width: 390, Height: 844})
	if top := eval[float64](p, "document.querySelector('#map').getBoundingClientRect().top"); top > 140 {
		t.Errorf("the map begins %v pixels below the top", top)
	}
	if tall := eval[float64](p, "document.querySelector('#map').clientHeight"); tall < 600 {
		t.Errorf("of 844 pixels the map has %v", tall)
	}
	eval[bool](p, "(document.querySelector('#search').focus(), true)")
	if wide := eval[float64](p, "document.querySelector('#search').offsetWidth"); wide < 300 {
		t.Errorf("what is searched for is typed into %v pixels", wide)
	}
	p.click(".fold-strip")
	p.wait("document.querySelector('.strip-box canvas').offsetHeight > 40")
}
