package objects

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"
)

const patient = 30 * time.Second

// world is a Store and the API that it watches.
type world struct {
	*Store
	t       *testing.T
	client  *fake.Clientset
	changes chan types.UID
	lists   atomic.Int64
	watches atomic.Int64
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, client: fake.NewClientset(), changes: make(chan types.UID, 100)}
	w.client.PrependReactor("list", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		w.lists.Add(1)
		return false, nil, nil
	})
	w.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		defer w.watches.Add(1) // from here on nothing is missed; what comes between a list and its watch, the fake API loses
		changes, err := w.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		return true, changes, err
	})
	ctx, cancel := context.WithCancel(context.Background())
	running := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		cancel()
		goleak.VerifyNone(t, running)
	})
	w.Store = New(ctx, w.client, func(uid types.UID) { w.changes <- uid })
	return w
}

func (w *world) create(name string, data map[string]string, immutable bool) {
	w.t.Helper()
	object := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "1"}, Data: data, Immutable: &immutable}
	if _, err := w.client.CoreV1().ConfigMaps("shop").Create(context.Background(), object, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) change(name, version string, data map[string]string) {
	w.t.Helper()
	object := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: version}, Data: data}
	if _, err := w.client.CoreV1().ConfigMaps("shop").Update(context.Background(), object, metav1.UpdateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// told waits until the Store says that the pod's objects have changed.
func (w *world) told(uid types.UID) {
	w.t.Helper()
	deadline := time.After(patient)
	for {
		select {
		case got := <-w.changes:
			if got == uid {
				return
			}
		case <-deadline:
			w.t.Fatalf("never told that an object of %s changed", uid)
		}
	}
}

// until waits for the configMap to be as it should be.
func (w *world) until(name string, holds func(*v1.ConfigMap, error) bool) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, patient, true, func(context.Context) (bool, error) {
		return holds(w.ConfigMap("shop", name)), nil
	})
	if err != nil {
		found, err := w.ConfigMap("shop", name)
		w.t.Fatalf("%s is %v, %v", name, found, err)
	}
}

// watched waits until so many watches have begun.
func (w *world) watched(count int64) {
	w.t.Helper()
	err := wait.PollUntilContextTimeout(context.Background(), time.Millisecond, patient, true, func(context.Context) (bool, error) {
		return w.watches.Load() >= count, nil
	})
	if err != nil {
		w.t.Fatalf("%d watches, want %d", w.watches.Load(), count)
	}
}

func user(uid types.UID, names ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Namespace: "shop"}}
	for _, name := range names {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{
			ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}},
		}})
	}
	return pod
}

func TestObjectIsFoundWhenItComesAndChangesAndGoes(t *testing.T) {
	w := newWorld(t)
	w.Use(user("pod", "settings"))
	missing := func(_ *v1.ConfigMap, err error) bool {
		return apierrors.IsNotFound(err) && err.Error() == `configmap "settings" not found`
	}
	w.until("settings", missing)
	w.watched(1)
	w.create("settings", map[string]string{"a": "1"}, false)
	w.told("pod")
	w.until("settings", func(found *v1.ConfigMap, err error) bool { return err == nil && found.Data["a"] == "1" })
	w.change("settings", "2", map[string]string{"a": "2"})
	w.told("pod")
	w.until("settings", func(found *v1.ConfigMap, err error) bool { return err == nil && found.Data["a"] == "2" })
	if err := w.client.CoreV1().ConfigMaps("shop").Delete(context.Background(), "settings", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.told("pod")
	w.until("settings", missing)
}

func TestObjectIsWatchedOnceAndAsLongAsItIsUsed(t *testing.T) {
	w := newWorld(t)
	w.create("settings", nil, false)
	there := func(found *v1.ConfigMap, err error) bool { return err == nil }
	for _, uid := range []types.UID{"one", "two", "one"} {
		w.Use(user(uid, "settings"))
		w.until("settings", there)
	}
	if got := w.lists.Load(); got != 1 {
		t.Errorf("it was listed %d times", got)
	}
	w.Release("one")
	w.until("settings", there)
	w.Use(user("two")) // it does not use it any more
	if _, err := w.ConfigMap("shop", "settings"); err == nil || err.Error() != `object "shop"/"settings" not registered` {
		t.Errorf("nobody uses it, but it is there (%v)", err)
	}
	w.Release("two")
	w.Release("nobody")
	if len(w.objects)+len(w.uses) > 0 {
		t.Errorf("remembered: %v, %v", w.objects, w.uses)
	}
}

func TestImmutableObjectIsNotAskedForAgain(t *testing.T) {
	w := newWorld(t)
	w.create("settings", map[string]string{"a": "1"}, true)
	w.Use(user("one", "settings"))
	w.told("one")
	w.until("settings", func(found *v1.ConfigMap, err error) bool { return err == nil && found.Data["a"] == "1" })
	w.change("settings", "2", map[string]string{"a": "2"})
	w.Use(user("two", "settings"))
	w.until("settings", func(found *v1.ConfigMap, err error) bool { return err == nil && found.Data["a"] == "1" })
	if got := w.lists.Load(); got != 1 {
		t.Errorf("it was listed %d times", got)
	}
}

func TestApiThatDoesNotAnswerIsNotAMissingObject(t *testing.T) {
	w := newWorld(t)
	w.client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("no")
	})
	w.Use(user("pod", "settings"))
	_, err := w.ConfigMap("shop", "settings")
	if err == nil || apierrors.IsNotFound(err) || err.Error() != "failed to sync configmap cache: timed out waiting for the condition" {
		t.Errorf("got %v", err)
	}
}

func TestEverythingThatAPodRefersToIsKnown(t *testing.T) {
	pod := &v1.Pod{}
	const manifest = `
metadata: {namespace: shop}
spec:
  imagePullSecrets: [{name: pull}, {name: ""}]
  initContainers:
  - name: first
    envFrom: [{configMapRef: {name: c1}}, {secretRef: {name: s1}}]
  containers:
  - name: main
    env:
    - {name: A, valueFrom: {configMapKeyRef: {name: c2, key: k}}}
    - {name: B, valueFrom: {secretKeyRef: {name: s2, key: k}}}
    - {name: C, value: c}
    - {name: D, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
  ephemeralContainers:
  - name: debug
    envFrom: [{configMapRef: {name: c3}}]
  volumes:
  - {name: a, configMap: {name: c4}}
  - {name: b, secret: {secretName: s3}}
  - {name: c, projected: {sources: [{configMap: {name: c5}}, {secret: {name: s4}}, {serviceAccountToken: {path: t}}]}}
  - {name: d, emptyDir: {}}
`
	if err := yaml.UnmarshalStrict([]byte(manifest), pod); err != nil {
		t.Fatal(err)
	}
	wanted := references(pod)
	for kind, all := range map[kind][]string{configMaps: {"c1", "c2", "c3", "c4", "c5"}, secrets: {"pull", "s1", "s2", "s3", "s4"}} {
		for _, name := range all {
			if !wanted[key{kind, "shop", name}] {
				t.Errorf("%s %s is missing", kind, name)
			}
		}
	}
	if len(wanted) != 10 {
		t.Errorf("%d references: %v", len(wanted), wanted)
	}
}

func TestSecretIsFound(t *testing.T) {
	w := newWorld(t)
	w.Use(&v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "pod", Namespace: "shop"}, Spec: v1.PodSpec{ImagePullSecrets: []v1.LocalObjectReference{{Name: "pull"}}}})
	if _, err := w.Secret("shop", "pull"); err == nil || err.Error() != `secret "pull" not found` {
		t.Errorf("got %v", err)
	}
	w.watched(1)
	secret := &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "pull"}, Data: map[string][]byte{"a": []byte("A")}}
	if _, err := w.client.CoreV1().Secrets("shop").Create(context.Background(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.told("pod")
	if found, err := w.Secret("shop", "pull"); err != nil || string(found.Data["a"]) != "A" {
		t.Errorf("got %v, %v", found, err)
	}
}
