package seldom

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestFirstAndThenOneEachWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line Line
		due := 0
		for range 600 {
			if line.Due() {
				due++
			}
			time.Sleep(100 * time.Millisecond)
		}
		if due != 6 {
			t.Errorf("due %d times in a minute, want 6", due)
		}
	})
}
