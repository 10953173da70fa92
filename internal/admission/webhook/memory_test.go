// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
)

// TestRememberedEvictionsAreSmall covers a client that evicts made-up pods with long names (the API
// server calls admission before it looks for the pod), and a tenant whose pods have long statuses.
func TestRememberedEvictionsAreSmall(t *testing.T) {
	const evictions, long = 2_000, 100 << 10
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pod := guardedPod("web-1")
	pod.Annotations = map[string]string{evictionguard.RequestedAnnotation: now.Format(time.RFC3339),
		evictionguard.StatusAnnotation: evictionguard.Held + strings.Repeat("x", long)}
	guard := testEvictions(fake.NewClientset(pod), &now)
	remembered := func() (n int) {
		for key, s := range guard.first {
			n += len(key) + len(s.message)
		}
		for namespace := range guard.shares {
			n += len(namespace)
		}
		return n
	}
	if _, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{}`)); err != nil {
		t.Fatal(err)
	}
	if n := remembered(); n > 8<<10 {
		t.Errorf("%d bytes are remembered of one pod's status", n)
	}
	for i := range evictions {
		request := evictionOf(fmt.Sprint(i, "-", strings.Repeat("x", long)), `{}`)
		_, _ = guard.judgeEviction(t.Context(), request)
	}
	if n := remembered(); n > evictions*1024 {
		t.Errorf("%d MiB are remembered of %d evictions of pods that do not exist", n>>20, evictions)
	}
}

// TestReviewsOfManyObjectsTakeBoundedMemory covers a client that sends empty containers: three
// bytes each in a review.
func TestReviewsOfManyObjectsTakeBoundedMemory(t *testing.T) {
	t.Logf("a container takes %d bytes", unsafe.Sizeof(v1.Container{}))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(921 << 20)) // GOMEMLIMIT of the manifest, whose limit is 1 GiB
	w := testWebhook()
	close(w.warm)
	handler := w.newHandler(testReviewer(t))
	body := reviewOf(`{"metadata":{"name":"p"},"spec":{"containers":[` + strings.TrimSuffix(strings.Repeat("1,", 128_000), ",") + `]}}`)
	if len(body) > smallReview {
		t.Fatal(len(body))
	}
	var most uint64
	done, sampled := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sampled)
		for {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapInuse)
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	var reviews sync.WaitGroup
	for range 32 { // half of what one source may have in progress
		reviews.Go(func() { post(handler, mutatePath, body) })
	}
	reviews.Wait()
	close(done)
	<-sampled
	if most > 1<<30 {
		t.Errorf("32 reviews of %d KiB took %d MiB; the container has 1024 MiB", len(body)>>10, most>>20)
	}
}

// TestTheLargestPodIsReviewed covers an update of a pod that just fits into etcd (1.5 MiB), of a
// character that takes six bytes in the API server's JSON. Without an answer, the failure policy
// Ignore stores it unchecked.
func TestTheLargestPodIsReviewed(t *testing.T) {
	pod := &v1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "group", Name: "p"},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "A", Value: strings.Repeat("<", 1_450_000)}}}}}}
	if stored, err := pod.Marshal(); err != nil || len(stored) > 3<<19 {
		t.Fatal(len(stored), err)
	}
	changed := pod.DeepCopy()
	changed.Spec.Tolerations = []v1.Toleration{{Operator: v1.TolerationOpExists}}
	body, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "u", Operation: admissionv1.Update, Namespace: "group", Name: "p",
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: kuberuntime.RawExtension{Object: changed}, OldObject: kuberuntime.RawExtension{Object: pod}},
	})
	if err != nil {
		t.Fatal(err)
	}
	w := testWebhook()
	close(w.warm)
	if got := post(w.newHandler(testReviewer(t)), validatePath, string(body)); got.Code != http.StatusOK {
		t.Errorf("a review of %d bytes: %d %s", len(body), got.Code, got.Body)
	}
}
