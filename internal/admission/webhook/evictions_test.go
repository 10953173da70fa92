// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
)

// guardedPod is a ready pod of a ReplicaSet.
func guardedPod(name string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "web", Controller: new(true)}}},
		Status: v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
}

func evictionOf(name, object string) *admissionv1.AdmissionRequest {
	return &admissionv1.AdmissionRequest{UID: "u", Operation: admissionv1.Create, Namespace: "shop", Name: name, SubResource: "eviction",
		Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: runtime.RawExtension{Raw: []byte(object)}}
}

func testEvictions(client *fake.Clientset, now *time.Time) *evictions {
	return newEvictions(client, newInstruments(), func() time.Time { return *now }, evictionguard.DefaultOptions())
}

func TestAnEvictionIsRecordedInThePodAndHeld(t *testing.T) {
	client, now := fake.NewClientset(guardedPod("web-1")), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	guard := testEvictions(client, &now)
	judge := func() *admissionv1.AdmissionResponse {
		t.Helper()
		response, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{"metadata": {"name": "web-1"}}`))
		if err != nil {
			t.Fatal(err)
		}
		return response
	}
	if got := judge(); got.Allowed || got.Result.Code != http.StatusTooManyRequests {
		t.Fatalf("first eviction: %+v", got)
	}
	pod, _ := client.CoreV1().Pods("shop").Get(t.Context(), "web-1", metav1.GetOptions{})
	if at, ok := evictionguard.Requested(pod, now, evictionguard.DefaultDeadline); !ok || !at.Equal(now) {
		t.Fatalf("the request is not recorded: %v", pod.Annotations)
	}
	pod.Annotations[evictionguard.StatusAnnotation] = evictionguard.Held + "starting a replacement on b"
	client.CoreV1().Pods("shop").Update(t.Context(), pod, metav1.UpdateOptions{})
	now = now.Add(5 * time.Second)
	if got := judge(); got.Allowed || got.Result.Message != "starting a replacement on b; retry" {
		t.Errorf("second eviction: %+v", got)
	}
	pod.Annotations[evictionguard.StatusAnnotation] = evictionguard.Admitted + "cannot surge"
	client.CoreV1().Pods("shop").Update(t.Context(), pod, metav1.UpdateOptions{})
	now = now.Add(readsEvery)
	if got := judge(); !got.Allowed {
		t.Errorf("after the controller has admitted it: %+v", got)
	}

	// Another client rewrites the annotations forever.
	for range 12 {
		now = now.Add(time.Minute)
		pod.Annotations[evictionguard.RequestedAnnotation] = now.Format(time.RFC3339)
		pod.Annotations[evictionguard.StatusAnnotation] = evictionguard.Held + "mine"
		client.CoreV1().Pods("shop").Update(t.Context(), pod, metav1.UpdateOptions{})
	}
	if got := judge(); !got.Allowed {
		t.Errorf("twelve minutes after the first eviction: %+v", got)
	}
}

func TestADenialIsGivenOnce(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	denied := guardedPod("web-1")
	denied.Annotations = map[string]string{"team": "shop", evictionguard.RequestedAnnotation: now.Add(-2 * time.Minute).Format(time.RFC3339),
		evictionguard.RepeatedAnnotation: now.Format(time.RFC3339), evictionguard.StatusAnnotation: evictionguard.Denied + "held for 2m0s"}
	client, fails := fake.NewClientset(denied), true
	client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { return fails, nil, errors.New("busy") })
	guard := testEvictions(client, &now)
	guard.options.Choices = append(guard.options.Choices, evictionguard.Deny)
	for i, want := range []int32{http.StatusForbidden, http.StatusForbidden, http.StatusTooManyRequests} {
		response, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{}`))
		if err != nil || response.Allowed || response.Result.Code != want {
			t.Errorf("eviction %d: %+v, %v, want code %d", i+1, response, err, want)
		}
		now = now.Add(readsEvery)
		fails = false
	}
	pod, _ := client.CoreV1().Pods("shop").Get(t.Context(), "web-1", metav1.GetOptions{})
	if at, ok := evictionguard.Requested(pod, now, evictionguard.DefaultDeadline); !ok || now.Sub(at) > 2*readsEvery || pod.Annotations["team"] == "" {
		t.Errorf("the last eviction is not recorded, or more than its request was removed: %v", pod.Annotations)
	}
}

func TestOtherEvictionsPassWithoutAWrite(t *testing.T) {
	stateful := guardedPod("db-0")
	stateful.OwnerReferences[0].Kind = "StatefulSet"
	dry := evictionOf("web-1", `{}`)
	dry.DryRun = new(true)
	for name, request := range map[string]*admissionv1.AdmissionRequest{
		"a dry run":                          dry,
		"a dry run in the options":           evictionOf("web-1", `{"deleteOptions": {"dryRun": ["All"]}}`),
		"with a replacement":                 evictionOf("web-1", `{"metadata": {"annotations": {"berth.dev/replaced": "true"}}}`),
		"of a pod that cannot be replaced":   evictionOf("db-0", `{}`),
		"of a pod that does not exist":       evictionOf("none", `{}`),
		"of a pod that cannot be written":    evictionOf("forbidden", `{}`),
		"not an eviction, but a misdelivery": {Operation: admissionv1.Delete},
	} {
		client, now := fake.NewClientset(guardedPod("web-1"), guardedPod("forbidden"), stateful), time.Unix(0, 0)
		client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			return action.(clienttesting.PatchAction).GetName() == "forbidden", nil, errors.New("no permission")
		})
		response, err := testEvictions(client, &now).judgeEviction(t.Context(), request)
		if err != nil || !response.Allowed {
			t.Errorf("%s: %+v, %v", name, response, err)
		}
		pod, _ := client.CoreV1().Pods("shop").Get(t.Context(), "web-1", metav1.GetOptions{})
		if len(pod.Annotations) > 0 {
			t.Errorf("%s: wrote %v", name, pod.Annotations)
		}
	}
}

func TestRememberedEvictionsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	guard := testEvictions(fake.NewClientset(), &now)
	for i := range mostHeld {
		guard.begin(fmt.Sprint(i), "shop") // pods that do not exist, of which few are read
	}
	if _, answer := guard.begin("one more", "other"); answer != nil && answer.Allowed || len(guard.first) > mostHeld {
		t.Errorf("%+v; %d evictions are remembered", answer, len(guard.first))
	}
	for i := range mostHeld {
		guard.first[fmt.Sprint(i)] = sighting{at: now, uid: "a"}
	}
	if _, answer := guard.begin("two more", "other"); answer == nil || !answer.Allowed || len(guard.first) > mostHeld {
		t.Errorf("%+v; %d evictions are remembered", answer, len(guard.first))
	}
	now = now.Add(2 * guard.options.Deadline)
	if guard.begin("later", "shop"); len(guard.first) != 1 {
		t.Errorf("%d evictions are remembered after their deadlines", len(guard.first))
	}
}

// TestATenantWithManyNamespacesLeavesReads covers a tenant that evicts the pods of ten namespaces
// all the time, and another namespace, whose pods are evicted every five seconds.
func TestATenantWithManyNamespacesLeavesReads(t *testing.T) {
	const spaces, pods = 10, 60
	inSpace := func(namespace, name string) *v1.Pod {
		p := guardedPod(name)
		p.Namespace = namespace
		return p
	}
	var objects []runtime.Object
	for i := range spaces * pods {
		objects = append(objects, inSpace(fmt.Sprint("hostile-", i%spaces), fmt.Sprint("web-", i/spaces)))
	}
	for i := range 10 {
		objects = append(objects, inSpace("other", fmt.Sprint("db-", i)))
	}
	client, now := fake.NewClientset(objects...), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	begin, recorded, reads := now, map[string]time.Time{}, 0
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		reads++
		return false, nil, nil
	})
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if name := action.(clienttesting.PatchAction).GetName(); action.GetNamespace() == "other" && recorded[name].IsZero() {
			recorded[name] = now
		}
		return false, nil, nil
	})
	guard := testEvictions(client, &now)
	evict := func(namespace, name string) {
		t.Helper()
		request := evictionOf(name, `{}`)
		request.Namespace = namespace
		guard.alive = now // the controller is busy
		if response, err := guard.judgeEviction(t.Context(), request); err != nil || response.Allowed {
			t.Fatalf("%s/%s at %v: %+v, %v", namespace, name, now.Sub(begin), response, err)
		}
	}
	const step, calm = 5 * time.Millisecond, 6 * time.Second // the bursts are over then
	for i := 0; now.Sub(begin) < calm+10*time.Second; i++ {
		evict(fmt.Sprint("hostile-", i%spaces), fmt.Sprint("web-", i/spaces%pods))
		if now.Sub(begin) >= calm && (now.Sub(begin)-calm)%(4*time.Second) == 0 {
			for i := range 10 {
				evict("other", fmt.Sprint("db-", i))
			}
		}
		now = now.Add(step)
	}
	for name, at := range recorded {
		if at.Sub(begin) > calm+8*time.Second {
			t.Errorf("%s is recorded after %v", name, at.Sub(begin))
		}
	}
	if most := int(now.Sub(begin).Seconds())*4*readsOfOne + 4*burstOfOne; len(recorded) != 10 || reads > most {
		t.Errorf("%d of 10 pods are recorded; %d reads, at most %d", len(recorded), reads, most)
	}
}

// TestAMassEvictionIsHeldWithFewRequests covers 600 pods of a tenant, evicted again every five
// seconds: none is admitted, all are recorded within a minute and again within another, the
// requests are bounded, and a pod of another namespace is recorded with its first attempt.
func TestAMassEvictionIsHeldWithFewRequests(t *testing.T) {
	const pods, limit = 600, 75 * time.Second
	var objects []runtime.Object
	for i := range pods {
		objects = append(objects, guardedPod(fmt.Sprint("web-", i)))
	}
	other := guardedPod("db-1")
	other.Namespace = "other"
	client, now := fake.NewClientset(append(objects, other)...), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	begin, recorded, last, reads := now, map[string]time.Time{}, map[string]time.Time{}, map[time.Time]int{}
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		reads[now.Truncate(time.Second)]++
		return false, nil, nil
	})
	client.PrependReactor("patch", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		key := action.GetNamespace() + "/" + action.(clienttesting.PatchAction).GetName()
		if _, ok := recorded[key]; !ok {
			recorded[key] = now
		}
		last[key] = now
		return false, nil, nil
	})
	guard := testEvictions(client, &now)
	evict := func(namespace, name string) {
		t.Helper()
		request := evictionOf(name, `{}`)
		request.Namespace = namespace
		guard.alive = now // the controller is busy
		if response, err := guard.judgeEviction(t.Context(), request); err != nil || response.Allowed {
			t.Fatalf("%s at %v: %+v, %v", name, now.Sub(begin), response, err)
		}
	}
	for i := 0; now.Sub(begin) < limit; i++ {
		evict("shop", fmt.Sprint("web-", i%pods))
		if i%pods == pods/2 {
			evict("other", "db-1")
		}
		now = now.Add(5 * time.Second / pods)
	}
	most, sum, oldest, latest := 0, 0, now, begin
	for _, count := range reads {
		most, sum = max(most, count), sum+count
	}
	for key, at := range last {
		oldest = slices.MinFunc([]time.Time{oldest, at}, time.Time.Compare)
		latest = slices.MaxFunc([]time.Time{latest, recorded[key]}, time.Time.Compare)
	}
	if at, ok := recorded["other/db-1"]; !ok || at.Sub(begin) > 5*time.Second || len(recorded) != pods+1 || latest.Sub(begin) > time.Minute ||
		now.Sub(oldest) > evictionguard.RepeatsWithin || most > burstOfOne+2*readsOfOne || sum > int(limit.Seconds())*(readsOfOne+1)+burstOfOne {
		t.Errorf("the other pod is recorded after %v, %d pods in all, the last one after %v; the last record of a pod is %v old; %d reads, "+
			"at most %d in a second", at.Sub(begin), len(recorded), latest.Sub(begin), now.Sub(oldest), sum, most)
	}
}

// TestABusyControllerIsNotTakenForAbsent covers a mass eviction, in which the controller reports
// the last statuses after more than 30 s.
func TestABusyControllerIsNotTakenForAbsent(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	client := fake.NewClientset(guardedPod("web-1"), guardedPod("web-2"))
	guard := testEvictions(client, &now)
	admits := func(name string) bool {
		t.Helper()
		response, err := guard.judgeEviction(t.Context(), evictionOf(name, `{}`))
		if err != nil {
			t.Fatal(err)
		}
		return response.Allowed
	}
	for range 8 { // for 40 s, the controller reports a new status from time to time
		if admits("web-1") || admits("web-2") {
			t.Fatalf("admitted at %v", now)
		}
		now = now.Add(5 * time.Second)
		pod, _ := client.CoreV1().Pods("shop").Get(t.Context(), "web-2", metav1.GetOptions{})
		if pod.Annotations[evictionguard.StatusAnnotation] == "" {
			pod.Annotations[evictionguard.StatusAnnotation] = evictionguard.Held + "waiting"
		} else {
			delete(pod.Annotations, evictionguard.StatusAnnotation)
		}
		client.CoreV1().Pods("shop").Update(t.Context(), pod, metav1.UpdateOptions{})
	}
	now = now.Add(31 * time.Second)
	if !admits("web-1") {
		t.Error("held without a controller")
	}
}

// TestASlowAPIServerDoesNotAdmitEvictions covers reads of the pod and writes of the request that
// time out or fail, until the eviction is admitted.
func TestASlowAPIServerDoesNotAdmitEvictions(t *testing.T) {
	timeout, internal := context.DeadlineExceeded, apierrors.NewInternalError(errors.New("no webhook"))
	for _, row := range []struct {
		verb     string
		err      error
		recovers bool // the second attempt succeeds
		after    time.Duration
	}{
		{"get", timeout, false, evictionguard.DefaultDeadline},
		{"get", internal, false, recordsWithin},
		{"get", internal, true, recordsWithin + 50*time.Second},
		{"get", errors.New("no permission"), false, 0},
		{"patch", timeout, false, evictionguard.DefaultDeadline},
		{"patch", internal, false, recordsWithin},
		{"patch", errors.New("no permission"), false, 0},
	} {
		begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		client, now, fails := fake.NewClientset(guardedPod("web-1")), begin, true
		client.PrependReactor(row.verb, "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return fails, nil, fmt.Errorf("%s: %w", row.verb, row.err)
		})
		guard := testEvictions(client, &now)
		for ; now.Sub(begin) <= row.after; now = now.Add(10 * time.Second) {
			fails = !row.recovers || now.Sub(begin) != 40*time.Second
			response, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{}`))
			if want := now.Sub(begin) >= row.after; err != nil || response.Allowed != want {
				t.Errorf("%s with %v: after %v: %+v, %v", row.verb, row.err, now.Sub(begin), response, err)
			}
		}
	}
}

// TestSlowReadsOfANamespaceLeaveOthers covers a namespace as many of whose pods are being read as
// allowed. Its pods are read less often afterwards, and those of another namespace as before.
func TestSlowReadsOfANamespaceLeaveOthers(t *testing.T) {
	other := guardedPod("db-1")
	other.Namespace = "other"
	client, now := fake.NewClientset(guardedPod("web-1"), guardedPod("web-2"), other), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	guard := testEvictions(client, &now)
	recorded := func(namespace, name string) bool {
		t.Helper()
		request := evictionOf(name, `{}`)
		request.Namespace = namespace
		response, err := guard.judgeEviction(t.Context(), request)
		if err != nil || response.Allowed {
			t.Fatalf("%s: %+v, %v", name, response, err)
		}
		pod, err := client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return pod.Annotations[evictionguard.RequestedAnnotation] != ""
	}
	if !recorded("shop", "web-1") {
		t.Fatal("the first eviction is not recorded")
	}
	shop := guard.shares["shop"]
	shop.under, guard.under = mostOfOne, mostOfOne
	for range 10 {
		now = now.Add(time.Second)
		if recorded("shop", "web-2") {
			t.Fatal("a pod is read beyond the bound")
		}
	}
	if shop.spacing != readsTurn {
		t.Errorf("the time between two reads of a pod: %v", shop.spacing)
	}
	if !recorded("other", "db-1") {
		t.Error("an eviction of another namespace is not recorded")
	}
	shop.under, guard.under = 0, 0
	if !recorded("shop", "web-2") || shop.spacing != readsEvery {
		t.Errorf("when the API server answers again, the time between two reads is %v", shop.spacing)
	}
}

// TestASlowAPIServerDelaysTheControllersAnswer covers a pod whose status the controller cannot
// write because the API server is slow. The controller counts as ended only after a while without
// timeouts.
func TestASlowAPIServerDelaysTheControllersAnswer(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	client, now, fails := fake.NewClientset(guardedPod("web-1")), begin, false
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fails, nil, context.DeadlineExceeded
	})
	guard := testEvictions(client, &now)
	const slow = 2 * time.Minute
	for i := 0; now.Sub(begin) < slow+time.Minute; i++ {
		fails = i%2 == 1 && now.Sub(begin) <= slow
		response, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{}`))
		if want := now.Sub(begin) >= slow+20*time.Second; err != nil || response.Allowed != want {
			t.Errorf("after %v: %+v, %v", now.Sub(begin), response, err)
		}
		now = now.Add(10 * time.Second)
	}
}

// TestAnAdmittedEvictionIsNoFailure covers a pod that is admitted, but kept by its budget. A read
// fails later for the first time, and does not admit it.
func TestAnAdmittedEvictionIsNoFailure(t *testing.T) {
	pod, now, fails := guardedPod("web-1"), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), false
	pod.Annotations = map[string]string{evictionguard.RequestedAnnotation: now.Format(time.RFC3339),
		evictionguard.StatusAnnotation: evictionguard.Admitted + "cannot surge"}
	client := fake.NewClientset(pod)
	client.PrependReactor("get", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return fails, nil, apierrors.NewInternalError(errors.New("no webhook"))
	})
	guard := testEvictions(client, &now)
	for _, fails = range []bool{false, true} {
		response, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{}`))
		if err != nil || response.Allowed == fails {
			t.Errorf("failing reads %v: %+v, %v", fails, response, err)
		}
		now = now.Add(2 * recordsWithin)
	}
}

// TestAfterItsDeadlineAPodIsReadInAMassEviction covers a namespace without reads left.
func TestAfterItsDeadlineAPodIsReadInAMassEviction(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	guard := testEvictions(fake.NewClientset(), &now)
	guard.mayRead(&sighting{}, "shop")
	own := guard.shares["shop"]
	own.AllowN(now, burstOfOne)
	own.spacing = readsTurn
	for _, row := range []struct {
		age, read time.Duration
		want      bool
	}{
		{guard.options.Deadline, readsEvery, true},
		{guard.options.Deadline, readsEvery / 2, false},
		{guard.options.Deadline - time.Second, readsTurn, false},
	} {
		if got := guard.mayRead(&sighting{at: now.Add(-row.age), read: now.Add(-row.read)}, "shop"); got != row.want {
			t.Errorf("%v after the first eviction, and %v after the last read: %v", row.age, row.read, got)
		}
	}
}

// TestRepeatedEvictionsWriteRarely covers a tenant that evicts its pods 10,000 times per second,
// and an evictor that retries every five seconds.
func TestRepeatedEvictionsWriteRarely(t *testing.T) {
	begin := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, row := range []struct {
		evictions  int
		every      time.Duration
		most       int
		lastWithin time.Duration
		strips     bool // a policy removes the annotations
	}{
		{evictions: 20_000, every: 100 * time.Microsecond, most: 1, lastWithin: 2 * time.Second},
		{evictions: 20_000, every: 100 * time.Microsecond, most: 2, strips: true},
		{evictions: 25, every: 5 * time.Second, most: 5, lastWithin: 30 * time.Second},
	} {
		client, now, writes := fake.NewClientset(guardedPod("web-1")), begin, 0
		client.PrependReactor("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			writes++
			return row.strips, guardedPod("web-1"), nil
		})
		guard := testEvictions(client, &now)
		for range row.evictions {
			guard.alive = now // the controller is busy
			if response, err := guard.judgeEviction(t.Context(), evictionOf("web-1", `{}`)); err != nil || response.Allowed {
				t.Fatalf("%v, %v", response, err)
			}
			now = now.Add(row.every)
		}
		pod, _ := client.CoreV1().Pods("shop").Get(t.Context(), "web-1", metav1.GetOptions{})
		first, _ := evictionguard.Requested(pod, now, evictionguard.DefaultDeadline)
		last := now.Sub(evictionguard.LastRequested(pod, now, first))
		if writes < 1 || writes > row.most || !row.strips && (!first.Equal(begin) || last > row.lastWithin) {
			t.Errorf("%d evictions, one per %v: %d writes; the first is of %v, the last %v old", row.evictions, row.every, writes, first, last)
		}
	}
}
