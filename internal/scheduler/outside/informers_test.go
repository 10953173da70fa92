package outside

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestAPodIsDecidedWhenPluginsCanListIt as it is, if that is not too long.
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
			begin := time.Now()
			f.await(asked, store)
			if waited := time.Since(begin); waited < want || waited > want+2*time.Millisecond {
				t.Errorf("version %s is waited for %v, want %v", version, waited, want)
			}
		}
		await("7", 0) // no plugin lists pods
		f.Core().V1().Pods().Lister()
		if err := f.start(ctx, ctx); err != nil {
			t.Fatal(err)
		}
		show := func(version string, after time.Duration) {
			p.ResourceVersion = version
			go func() {
				time.Sleep(after)
				if _, err := client.CoreV1().Pods("default").Update(ctx, p, metav1.UpdateOptions{}); err != nil {
					t.Error(err)
				}
			}()
		}
		if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		show("6", 0)
		synctest.Wait()
		show("7", 20*time.Millisecond)
		await("7", 20*time.Millisecond)
		await("6", 0)
		await("8", patience)
		await("8", 0) // the informer did not move
		show("8", 0)
		synctest.Wait()
		show("9", 20*time.Millisecond)
		await("9", 20*time.Millisecond)

		// What else the scheduler knows of pods, they can list, too.
		other := pod("other", "1")
		other.ResourceVersion = "10"
		store.Pod(other)
		put := func(act func() error) {
			go func() {
				time.Sleep(20 * time.Millisecond)
				if err := act(); err != nil {
					t.Error(err)
				}
			}()
		}
		put(func() error { return client.Tracker().Add(other) })
		await("9", 20*time.Millisecond)
		store.PodGone(other.UID)
		put(func() error { return client.CoreV1().Pods("default").Delete(ctx, "other", metav1.DeleteOptions{}) })
		await("9", 20*time.Millisecond)
		await("9", 0)
		store.Pod(other) // the informer is ahead
		await("9", settled)
	})
}
