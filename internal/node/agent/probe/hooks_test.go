package probe

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

const hooked = `
spec:
  containers:
  - name: main
    lifecycle:
      postStart: {exec: {command: [hello, $(NOT_EXPANDED)]}}
      preStop: {sleep: {seconds: 8}}
`

func TestPostStartThatFailsSaysWhyToTheStatusOnly(t *testing.T) {
	r := newRuntime()
	pod := parsePod(t, hooked)
	c := &pod.Spec.Containers[0]
	hooks := NewHooks(r.options())
	if err := hooks.PostStart(context.Background(), pod, c, "containerd://c1", ""); err != nil {
		t.Error(err)
	}
	if !slices.Equal(r.asked, []string{"c1 hello $(NOT_EXPANDED)"}) {
		t.Errorf("asked %q", r.asked)
	}
	r.set("hello $(NOT_EXPANDED)", exitCode(1))
	r.say("hello $(NOT_EXPANDED)", "the password is geheim")
	err := hooks.PostStart(context.Background(), pod, c, "containerd://c1", "")
	const text = `Exec lifecycle hook ([hello $(NOT_EXPANDED)]) for Container "main" in Pod "web_shop(uid)" failed - error: exit, message: "the password is geheim"`
	if err == nil || err.Error() != text {
		t.Errorf("got %v\nwant %s", err, text)
	}
	if !slices.Equal(r.events, []string{"main Warning FailedPostStartHook: PostStartHook failed"}) {
		t.Errorf("events %q", r.events)
	}
	c.Lifecycle.PostStart = nil
	if err := hooks.PostStart(context.Background(), pod, c, "containerd://c1", ""); err != nil {
		t.Errorf("without a hook: %v", err)
	}
}

func TestPreStopIsPartOfTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRuntime()
		pod := parsePod(t, hooked)
		c := &pod.Spec.Containers[0]
		hooks := NewHooks(r.options())
		stop := func(grace time.Duration) time.Duration {
			return hooks.PreStop(context.Background(), pod, c, "containerd://c1", "", grace)
		}
		if left := stop(30 * time.Second); left != 22*time.Second || len(r.events) > 0 {
			t.Errorf("%v left, events %q", left, r.events)
		}
		began := time.Now()
		if left := stop(3 * time.Second); left != 0 || time.Since(began) != 3*time.Second {
			t.Errorf("%v left after %v", left, time.Since(began))
		}
		if !slices.Equal(r.events, []string{"main Warning FailedPreStopHook: PreStopHook failed"}) {
			t.Errorf("events %q", r.events)
		}
		if left := stop(0); left != 0 {
			t.Errorf("without time: %v left", left)
		}
		c.Lifecycle.PreStop.Sleep = nil
		if left := stop(30 * time.Second); left != 30*time.Second {
			t.Errorf("a hook that is nothing: %v left", left)
		}
		c.Lifecycle.PreStop = nil
		if left := stop(30 * time.Second); left != 30*time.Second {
			t.Errorf("without a hook: %v left", left)
		}
	})
}

// A sleep of any length that the API accepts lasts as long as its container may.
func TestLongSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pod := parsePod(t, hooked)
		c := &pod.Spec.Containers[0]
		c.Lifecycle.PreStop.Sleep.Seconds = 9_999_999_999
		began := time.Now()
		if NewHooks(newRuntime().options()).PreStop(t.Context(), pod, c, "c1", "", time.Hour); time.Since(began) != time.Hour {
			t.Errorf("it took %s", time.Since(began))
		}
	})
}

func TestSleepEndsWithItsContainer(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	pod := parsePod(t, hooked)
	c := &pod.Spec.Containers[0]
	err := NewHooks(newRuntime().options()).run(ctx, pod, c, c.Lifecycle.PreStop, "c1", "")
	const text = `Sleep lifecycle hook (8) for Container "main" in Pod "web_shop(uid)" failed - error: container terminated before sleep hook finished`
	if err == nil || err.Error() != text {
		t.Errorf("got %v", err)
	}
	if errors.Unwrap(err) == nil {
		t.Error("its cause is lost")
	}
}
