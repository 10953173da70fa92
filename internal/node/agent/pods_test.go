package agent

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/agent/lifecycle"
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

// A pod that was deleted while no agent ran has its whole grace period, as with the kubelet: nobody
// has told its containers to end. A later deletion can only shorten it.
func TestGracePeriodBeginsWhenTheDeletionIsSeen(t *testing.T) {
	n, _ := newNode(t)
	grace, long := int64(60), metav1.NewTime(time.Now().Add(-time.Hour))
	pod := boundPod("p")
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &long, &grace
	w := n.newWorker(pod, false)
	w.takenUp = true
	_, first := w.wanted()
	if left := time.Until(first.By); left < 50*time.Second || left > time.Minute {
		t.Errorf("%s left of a minute", left)
	}
	if _, again := w.wanted(); !again.By.Equal(first.By) {
		t.Errorf("it ends by %s, then by %s", first.By, again.By)
	}
	grace = 5
	if _, sooner := w.wanted(); time.Until(sooner.By) > 5*time.Second {
		t.Errorf("deleted again with a shorter grace period, it ends by %s", sooner.By)
	}
}

// A pod that is being evicted with a long grace period, for a soft threshold, ends at once when the
// hard one is met: no other is evicted until it is gone.
func TestEvictionThatGetsUrgent(t *testing.T) {
	n, _ := newNode(t)
	w := n.newWorker(boundPod("p"), false)
	n.pods.workers[w.uid] = w
	now := time.Now()
	ending := func(reason string, within time.Duration) lifecycle.Ending {
		return lifecycle.Ending{Phase: v1.PodFailed, Reason: reason, By: now.Add(within)}
	}
	for _, step := range []struct {
		why   lifecycle.Ending
		first bool
		by    time.Duration
	}{
		{ending("soft", 10*time.Minute), true, 10 * time.Minute}, {ending("hard", time.Second), false, time.Second}, {ending("soft", time.Minute), false, time.Second},
	} {
		if first := n.Evict(w.uid, step.why); first != step.first {
			t.Errorf("%s: evicted now: %t", step.why.Reason, first)
		}
		if _, got := w.wanted(); got.Reason != "soft" || !got.By.Equal(now.Add(step.by)) {
			t.Errorf("%s: ends for %q within %s, want %s", step.why.Reason, got.Reason, got.By.Sub(now), step.by)
		}
	}
}

// A pod that needs a label which the node has in the API only, as after a start of the agent, is
// not refused for it; one that needs a label that the node does not have there, either, is.
func TestNodeIsReadBeforeAPodIsRefused(t *testing.T) {
	fast, other := boundPod("fast"), boundPod("other")
	fast.Spec.NodeSelector, other.Spec.NodeSelector = map[string]string{"disk": "ssd"}, map[string]string{"disk": "tape"}
	n, ctx := newNode(t, fast, other, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", Labels: map[string]string{"disk": "ssd"}}})
	n.podSeen(ctx, fast)
	await(t, "it is decided", func() bool { return statusIn(t, n.api, "fast").Phase != v1.PodPending })
	if status := statusIn(t, n.api, "fast"); status.Phase != v1.PodRunning {
		t.Errorf("%s: %s", status.Phase, status.Message)
	}
	n.podSeen(ctx, other)
	await(t, "it is refused", func() bool { return statusIn(t, n.api, "other").Reason == "NodeAffinity" })
}
