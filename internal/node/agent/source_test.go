package agent

import (
	"context"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/node/admit"
)

// A pod of the API says that it comes from a file, which would make it critical: it is refused for
// want of room like any other, and the pod that has the room stays.
func TestPodCannotClaimToBeStatic(t *testing.T) {
	first, forged := boundPod("first"), boundPod("forged")
	for _, pod := range []*v1.Pod{first, forged} {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}
	}
	forged.Annotations = map[string]string{annotationConfigSource: "file", annotationConfigHash: "abc", annotationConfigSeen: "yesterday"}
	n, ctx := newNode(t, first, forged)
	n.podSeen(ctx, first)
	await(t, "the first pod runs", func() bool { return statusIn(t, n.api, "first").Phase == v1.PodRunning })
	n.podSeen(ctx, forged)
	await(t, "the forged pod is refused", func() bool { return statusIn(t, n.api, "forged").Reason == "OutOfcpu" })
	if w := n.pods.get(first.UID); w.toEnd() {
		t.Error("the first pod has to go for the forged one")
	}
	own := n.pods.get(forged.UID).object()
	if admit.Critical(own) || own.Annotations[annotationConfigSource] != "api" || strings.HasPrefix(own.Annotations[annotationConfigSeen], "yesterday") {
		t.Errorf("annotations on the node: %v", own.Annotations)
	}
}

// The claim can also be made later, by an update, or by the last word of a deletion.
func TestPodCannotBecomeStatic(t *testing.T) {
	pod := boundPod("p")
	n, ctx := newNode(t, pod)
	n.podSeen(ctx, pod)
	seen := n.pods.get(pod.UID).object().Annotations[annotationConfigSeen]
	claims := pod.DeepCopy()
	claims.Annotations = map[string]string{annotationConfigSource: "http", "kept": "yes"}
	for what, tell := range map[string]func(*v1.Pod){
		"an update": func(pod *v1.Pod) { n.podSeen(ctx, pod) }, "a deletion": n.podGone,
	} {
		w := n.pods.get(pod.UID)
		tell(claims)
		own := w.object()
		if admit.Static(own) || own.Annotations["kept"] != "yes" || own.Annotations[annotationConfigSeen] != seen {
			t.Errorf("after %s: %v", what, own.Annotations)
		}
	}
}

// What the node writes on its copy is not written to the API, where the pod keeps what its author
// said.
func TestNodesAnnotationsStayOnTheNode(t *testing.T) {
	pod := boundPod("p")
	pod.Annotations = map[string]string{annotationConfigSource: "file", "mine": "1"}
	n, ctx := newNode(t, pod)
	n.podSeen(ctx, pod)
	await(t, "the pod runs", func() bool { return statusIn(t, n.api, "p").Phase == v1.PodRunning })
	there, err := n.api.CoreV1().Pods("default").Get(context.Background(), "p", metav1.GetOptions{})
	if err != nil || fmt.Sprint(there.Annotations) != fmt.Sprint(pod.Annotations) {
		t.Errorf("annotations in the API: %v, %v", there.Annotations, err)
	}
}
