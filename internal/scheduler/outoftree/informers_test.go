// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package outoftree

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAPodIsDecidedWhenPluginsCanListIt verifies that a decision waits, for a limited time, until
// plugins can list the pod's current version.
func TestAPodIsDecidedWhenPluginsCanListIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		f, store := newInformerFactory(client), NewStore()
		if err := store.Need(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer f.Shutdown()
		defer stop()
		p := pod("p", "1")
		await := func(version string, want time.Duration) {
			t.Helper()
			asked := p.DeepCopy()
			asked.ResourceVersion = version
			synctest.Wait() // the informer has received all earlier events
			begin := time.Now()
			f.awaitPod(asked, store)
			if waited := time.Since(begin); waited < want || waited > want+2*time.Millisecond {
				t.Errorf("version %s is waited for %v, want %v", version, waited, want)
			}
		}
		await("7", 0) // plugins do not list pods
		f.Core().V1().Pods().Lister()
		if err := f.startInformers(ctx, ctx); err != nil {
			t.Fatal(err)
		}
		const lag = 20 * time.Millisecond // lag of the informer
		later := func(act func() error) {
			time.AfterFunc(lag, func() {
				if err := act(); err != nil {
					t.Error(err)
				}
			})
		}
		update := func(version string) error {
			shown := p.DeepCopy()
			shown.ResourceVersion = version
			_, err := client.CoreV1().Pods("default").Update(ctx, shown, metav1.UpdateOptions{})
			return err
		}
		show := func(version string) {
			t.Helper()
			if err := update(version); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		show("6")
		later(func() error { return update("7") })
		await("7", lag)
		await("6", 0)
		await("8", patience)
		await("8", 0) // no second wait, since the informer has received nothing
		show("8")
		later(func() error { return update("9") })
		await("9", lag)

		// Plugins can also list the other pods known to the scheduler.
		other := pod("other", "1")
		other.ResourceVersion = "10"
		store.Pod(other)
		later(func() error { return client.Tracker().Add(other) })
		await("9", lag)
		store.PodGone(other.UID)
		later(func() error { return client.CoreV1().Pods("default").Delete(ctx, "other", metav1.DeleteOptions{}) })
		await("9", lag)
		await("9", 0)
		store.Pod(other) // the informer is ahead
		await("9", settled)
	})
}
