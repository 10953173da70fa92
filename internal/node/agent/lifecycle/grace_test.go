package lifecycle

import (
	"math"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// A grace period that is meant to last for ever is not over at once.
func TestGracePeriods(t *testing.T) {
	const years = 24 * 365 * time.Hour
	for seconds, want := range map[int64][2]time.Duration{
		-1: {0, 0}, 0: {0, 0}, 30: {30 * time.Second, 30 * time.Second}, math.MaxInt32: {60 * years, 70 * years},
		9_999_999_999: {60 * years, 70 * years}, 4_611_686_018_427_387_904: {60 * years, 70 * years}, math.MaxInt64: {60 * years, 70 * years},
	} {
		pod := &v1.Pod{Spec: v1.PodSpec{TerminationGracePeriodSeconds: &seconds}}
		if got := GraceOf(pod); got < want[0] || got > want[1] {
			t.Errorf("%d seconds: %s", seconds, got)
		}
	}
}

// The same for that of a probe.
func TestGracePeriodOfAProbe(t *testing.T) {
	w := newWorld(t, "containers: [{name: a, image: x, livenessProbe: {exec: {command: ['true']}}}]")
	w.settle()
	grace := int64(math.MaxInt64)
	w.verdicts[w.seen.newest("a").ID] = Verdict{Started: true, LivenessFailed: true, Grace: &grace}
	w.settle()
	if got := w.last.Actions; len(got) != 1 || got[0].Kind != StopContainer || got[0].By.Before(w.now.Add(time.Hour)) {
		t.Errorf("%v", got)
	}
}
