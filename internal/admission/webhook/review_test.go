// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"

	"github.com/berth-k8s/berth/internal/admission"
	"github.com/berth-k8s/berth/internal/admission/lookup"
)

// testReviewer returns a reviewer for a namespace with dedicated nodes and a runtime class.
func testReviewer(t testing.TB) *reviewer {
	client := fake.NewClientset(
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "group", Annotations: map[string]string{admission.DedicatedNodesAnnotation: "a=b"}}},
		&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "kata"}, Overhead: &nodev1.Overhead{PodFixed: v1.ResourceList{"cpu": resource.MustParse("250m")}}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "usual"}, Value: 5, GlobalDefault: true},
	)
	factory := informers.NewSharedInformerFactory(client, 0)
	caches := lookup.NewCaches(client, factory)
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { cancel(); factory.Shutdown() })
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	return &reviewer{rules: admission.Config{AfterAPIServer: true}, caches: caches, now: func() time.Time { return time.Unix(100, 0) }}
}

func creation(resource, object string) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{
		UID: "u", Operation: admissionv1.Create, Namespace: "group", Resource: metav1.GroupVersionResource{Version: "v1", Resource: resource},
		Object: runtime.RawExtension{Raw: []byte(object)},
	}
}

// applied returns the object after the API server has applied the response.
func applied(t testing.TB, object []byte, response *admissionv1.AdmissionResponse) []byte {
	t.Helper()
	if response.Patch == nil {
		return object
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	if err != nil {
		t.Fatal(err)
	}
	result, err := patch.Apply(object)
	if err != nil {
		t.Fatalf("%s does not take %s: %v", object, response.Patch, err)
	}
	return result
}

// TestWhatTheWebhookDoesNotKnowStays verifies that a pod keeps a field of a later version of the
// API.
func TestWhatTheWebhookDoesNotKnowStays(t *testing.T) {
	pod := `{"metadata":{"name":"p"},"spec":{"runtimeClassName":"kata","containers":[{"name":"c","later":{"a":1}}],"later":[1,2]}}`
	response, err := testReviewer(t).mutateObject(t.Context(), creation("pods", pod))
	if err != nil || !response.Allowed {
		t.Fatal(response, err)
	}
	result := string(applied(t, []byte(pod), response))
	for _, want := range []string{`"later":{"a":1}`, `"later":[1,2]`, `"overhead":{"cpu":"250m"}`, `"priority":5`, `"priorityClassName":"usual"`,
		`{"key":"a","operator":"In","values":["b"]}`} {
		if !strings.Contains(result, want) {
			t.Errorf("no %s in %s", want, result)
		}
	}
}

func TestRefusalsCarryTheStatusOfTheAPIServer(t *testing.T) {
	response, err := testReviewer(t).mutateObject(t.Context(),
		creation("pods", `{"metadata":{"name":"p"},"spec":{"runtimeClassName":"absent"}}`))
	if err != nil || response.Allowed || response.Result.Code != http.StatusForbidden || response.Result.Reason != metav1.StatusReasonForbidden ||
		response.Result.Message != `pods "p" is forbidden: pod rejected: RuntimeClass "absent" not found` {
		t.Fatalf("%+v, %v", response, err)
	}
}

func TestNodesAreTaintedAndTimed(t *testing.T) {
	r := testReviewer(t)
	node := `{"metadata":{"name":"n"},"spec":{"taints":[{"key":"x","effect":"NoExecute"}]}}`
	response, err := r.mutateObject(t.Context(), creation("nodes", node))
	if err != nil {
		t.Fatal(err)
	}
	result := string(applied(t, []byte(node), response))
	for _, want := range []string{"node.kubernetes.io/not-ready", `"timeAdded":"1970-01-01T00:01:40Z"`} {
		if !strings.Contains(result, want) {
			t.Errorf("no %s in %s", want, result)
		}
	}
	request := creation("nodes", node)
	request.Operation, request.OldObject.Raw = admissionv1.Update, []byte(strings.Replace(result, "01:40", "00:07", 1))
	if response, err = r.mutateObject(t.Context(), request); err != nil || !bytes.Contains(response.Patch, []byte("00:00:07Z")) {
		t.Errorf("a taint that was there has another time: %s, %v", response.Patch, err)
	}
}

func TestSubresourcesAreLeftAlone(t *testing.T) {
	for _, subresource := range []string{"status", "binding", "resize", "ephemeralcontainers", "eviction"} {
		request := creation("pods", `{"kind":"anything","spec":7}`)
		request.SubResource = subresource
		for name, answer := range map[string]answer{"mutate": testReviewer(t).mutateObject, "validate": testReviewer(t).validateObject} {
			if response, err := answer(t.Context(), request); err != nil || !response.Allowed || response.Patch != nil {
				t.Errorf("%s of pods/%s: %+v, %v", name, subresource, response, err)
			}
		}
	}
}

// FuzzReview sends arbitrary objects, created or updated. It verifies that no review panics, that a
// changed object is not changed again, and that validate accepts it.
func FuzzReview(f *testing.F) {
	r := testReviewer(f)
	f.Add("pods", `{"spec":{"runtimeClassName":"kata","tolerations":[{"operator":"Exists"}],"containers":[{"resources":{"requests":{"nvidia.com/gpu":"1"}}}]}}`, "")
	f.Add("pods", `{"spec":{"containers":[{"resources":{"requests":{"cpu":"1"}}}]}}`, `{"spec":{"priority":3}}`)
	f.Add("pods", `{"metadata":{"managedFields":[{"fieldsV1":{"f:spec":{"f:tolerations":{}}}}]},"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{},{"matchFields":[{}]}]}}}}}`, "")
	f.Add("nodes", `{"spec":{"taints":[{"key":"a","effect":"NoExecute"}]}}`, `{"spec":{"taints":[{"key":"a","effect":"NoExecute","timeAdded":"1970-01-01T00:00:00Z"}]}}`)
	f.Fuzz(func(t *testing.T, resource, object, old string) {
		request := creation(resource, object)
		if old != "" {
			request.Operation, request.OldObject.Raw = admissionv1.Update, []byte(old)
		}
		response, err := r.mutateObject(t.Context(), request)
		if err != nil || !response.Allowed {
			_, _ = r.validateObject(t.Context(), request)
			return
		}
		var sound struct {
			Spec map[string]any `json:"spec"`
		}
		if json.Unmarshal([]byte(object), &sound) != nil || sound.Spec == nil || strings.Count(object, `"spec"`) != 1 {
			return // the API server always sends exactly one spec
		}
		request.Object.Raw = applied(t, []byte(object), response)
		again, err := r.mutateObject(t.Context(), request)
		if err != nil || !again.Allowed || again.Patch != nil && resource != "nodes" {
			t.Fatalf("changed into\n%s\nand then by\n%s, %+v, %v", request.Object.Raw, again.Patch, again.Result, err)
		}
		if verdict, err := r.validateObject(t.Context(), request); err != nil || !verdict.Allowed {
			t.Fatalf("changed, then refused: %+v, %v", verdict, err)
		}
	})
}

func testWebhook() *Webhook {
	return &Webhook{options: DefaultOptions(), metrics: newInstruments(), lanes: newLanes(), warm: make(chan struct{}), ready: make(chan struct{})}
}

func post(handler http.Handler, path, body string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	handler.ServeHTTP(recorder, httptest.NewRequest(http.MethodPost, path, strings.NewReader(body)))
	return recorder
}

func reviewOf(object string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CREATE","namespace":"group",
"resource":{"version":"v1","resource":"pods"},"object":%s}}`, object)
}

func TestWhatIsNoReviewIsABadRequest(t *testing.T) {
	w := testWebhook()
	close(w.warm)
	handler := w.newHandler(testReviewer(t))
	for _, body := range []string{"", "{", "[]", `{"apiVersion":"admission.k8s.io/v1beta1","request":{}}`, `{"apiVersion":"admission.k8s.io/v1"}`} {
		if got := post(handler, mutatePath, body); got.Code != http.StatusBadRequest {
			t.Errorf("%q: %d %s", body, got.Code, got.Body)
		}
	}
	if got := post(handler, mutatePath, reviewOf(`{"spec":7}`)); got.Code != http.StatusInternalServerError {
		t.Errorf("a pod that is none: %d %s", got.Code, got.Body)
	}
	got := post(handler, mutatePath, reviewOf(`{"metadata":{"name":"p"},"spec":{}}`))
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(got.Body.Bytes(), &review); err != nil || review.Response == nil || review.Response.UID != "u" || !review.Response.Allowed {
		t.Errorf("a pod: %d %s", got.Code, got.Body)
	}
}

// TestColdCachesGiveNoAnswer sends reviews before the caches are filled. It verifies that the
// response is sent as soon as the caches are filled, but not after the API server's timeout.
func TestColdCachesGiveNoAnswer(t *testing.T) {
	reviewer := testReviewer(t)
	synctest.Test(t, func(t *testing.T) {
		w := testWebhook()
		handler := w.newHandler(reviewer)
		began := time.Now()
		got := post(handler, mutatePath+"?timeout=2s", reviewOf(`{"spec":{}}`))
		if took := time.Since(began); got.Code != http.StatusServiceUnavailable || took != 2*time.Second-answerEarly {
			t.Errorf("%d after %v: %s", got.Code, took, got.Body)
		}
		time.AfterFunc(time.Second, func() { close(w.warm) })
		if got := post(handler, mutatePath+"?timeout=2s", reviewOf(`{"spec":{}}`)); got.Code != http.StatusOK {
			t.Errorf("%d: %s", got.Code, got.Body)
		}
	})
}

func TestEndpointsSayWhatIsMissing(t *testing.T) {
	w := testWebhook()
	get := func(path string) (int, string) {
		recorder := httptest.NewRecorder()
		w.endpointHandler().ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, path, nil))
		body, _ := io.ReadAll(recorder.Body)
		return recorder.Code, string(body)
	}
	certs, _, err := certificates{}.renewIfDue([]string{"a"}, validity{time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		ready  string
		follow func()
	}{
		{"no certificate yet\n", func() { w.serving.Store(certs.tlsCertificate()) }},
		{"namespaces, priority classes and runtime classes are not known yet\n", func() { close(w.warm) }},
		{"the webhook configurations are not written yet\n", func() { close(w.ready) }},
		{"ok\n", func() { w.leaving.Store(true) }},
		{"shutting down\n", func() {}},
	} {
		if _, body := get("/readyz"); body != step.ready {
			t.Errorf("/readyz: %q, want %q", body, step.ready)
		}
		if code, _ := get("/livez"); code != http.StatusOK {
			t.Errorf("/livez: %d", code)
		}
		step.follow()
	}
	w.metrics.countReview("mutate", creation("pods", ""), allowResponse(), nil, time.Millisecond)
	if _, body := get("/metrics"); !strings.Contains(body, `berth_webhook_reviews_total{operation="CREATE",path="mutate",resource="pods",result="allowed"} 1`) {
		t.Error("the review is not in /metrics")
	}
}

// BenchmarkReview measures a pod's cost in the webhook, without the connection.
func BenchmarkReview(b *testing.B) {
	w := testWebhook()
	close(w.warm)
	handler := w.newHandler(testReviewer(b))
	body := reviewOf(`{"metadata":{"name":"p","labels":{"app":"web"},"managedFields":[{"manager":"kubectl","operation":"Update","fieldsType":"FieldsV1",
"fieldsV1":{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{},"f:name":{}}}}}}]},
"spec":{"containers":[{"name":"c","image":"nginx","resources":{"requests":{"cpu":"10m"}}}],"priority":0,"tolerations":[
{"key":"node.kubernetes.io/not-ready","operator":"Exists","effect":"NoExecute","tolerationSeconds":300},
{"key":"node.kubernetes.io/unreachable","operator":"Exists","effect":"NoExecute","tolerationSeconds":300}]}}`)
	for _, path := range []string{mutatePath, validatePath} {
		b.Run(path[1:], func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if got := post(handler, path, body); got.Code != http.StatusOK {
					b.Fatal(got.Body)
				}
			}
		})
	}
}

// TestValidationFailsClosed verifies that a pod is refused if the rules of its namespace cannot be
// looked up: without a response, the failure policy Ignore would store the pod.
func TestValidationFailsClosed(t *testing.T) {
	request := creation("pods", `{"spec":{}}`)
	request.Namespace = "new"
	response, err := testReviewer(t).validateObject(t.Context(), request)
	if err != nil || response.Allowed || !strings.Contains(response.Result.Message, "try again") {
		t.Errorf("answered %+v, %v", response, err)
	}
}

// TestAClassThatWasCreatedAgainIsReadAgain verifies that a pod is not refused for the value of its
// priority class if the cache has an outdated value.
func TestAClassThatWasCreatedAgainIsReadAgain(t *testing.T) {
	client := fake.NewClientset(
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "group"}},
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "again"}, Value: 5},
	)
	factory := informers.NewSharedInformerFactory(client, 0)
	caches := lookup.NewCaches(client, factory)
	ctx, cancel := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	cancel() // the cache gets no further updates
	factory.Shutdown()
	if err := client.Tracker().Update(schedulingv1.SchemeGroupVersion.WithResource("priorityclasses"),
		&schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "again"}, Value: 7}, ""); err != nil {
		t.Fatal(err)
	}
	r := &reviewer{rules: admission.Config{AfterAPIServer: true}, caches: caches, now: time.Now}
	for value, allowed := range map[int]bool{7: true, 5: true, 6: false} {
		pod := fmt.Sprintf(`{"spec":{"priorityClassName":"again","priority":%d}}`, value)
		response, err := r.mutateObject(t.Context(), creation("pods", pod))
		if err != nil || response.Allowed != allowed {
			t.Errorf("priority %d: %+v, %v", value, response, err)
		}
	}
}

// TestHugeQuantitiesHoldNobodyUp verifies that reviews of pods with huge quantities take little
// time. Decoding these quantities with encoding/json would take forever.
func TestHugeQuantitiesHoldNobodyUp(t *testing.T) {
	r := testReviewer(t)
	began := time.Now()
	for _, text := range []string{"1e60000000", "1e2147483647", "1e-2000000000", "0e2000000000"} {
		request := creation("pods", `{"metadata":{"name":"p"},"spec":{"runtimeClassName":"kata","containers":[{"name":"c","resources":{"requests":{"cpu":"`+
			text+`"}}}]}}`)
		if response, err := r.mutateObject(t.Context(), request); err != nil || !response.Allowed {
			t.Errorf("%s: %+v, %v", text, response, err)
		}
		if response, err := r.validateObject(t.Context(), request); err != nil || response.Allowed {
			t.Errorf("%s without overhead was admitted: %+v, %v", text, response, err)
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("took %v", took)
	}
}
