package agent

import (
	"testing"
)

// A pod that has taken the name of one that is still on its way out comes before it: who asks for
// the name means the new one.
func TestPodThatTakesAName(t *testing.T) {
	n, ctx := newNode(t)
	goOn := n.runtime.stall() // so that the old one does not end
	defer goOn()
	old, taker := boundPod("web"), boundPod("web")
	taker.UID = "uid-taker"
	n.podSeen(ctx, old)
	n.podGone(old)
	n.podSeen(ctx, taker)
	for range 50 { // maps have no order
		pods := n.Pods()
		if len(pods) != 2 || pods[0].UID != taker.UID || pods[1].UID != old.UID {
			t.Fatalf("%d pods, the first is %s", len(pods), pods[0].UID)
		}
	}
}
