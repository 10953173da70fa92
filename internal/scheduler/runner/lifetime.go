// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"math/rand/v2"
	"time"
)

// lifetime bounds the scheduler's work in time. Run sets both contexts before anything else runs;
// they are only read after that.
type lifetime struct {
	running   context.Context // ends when the scheduler stops: after that nothing new is begun
	finishing context.Context // ends finishWithin later: until then, work in flight may finish
}

// retryUntilStopped retries until try succeeds or the scheduler stops. Each try has readWithin; the
// pauses between tries double from firstPause to lastPause.
func (l *lifetime) retryUntilStopped(ctx context.Context, try func(context.Context) bool) {
	once := func() bool {
		ctx, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		return try(ctx)
	}
	for pause := firstPause; !once() && l.sleepAbout(pause); pause = min(2*pause, lastPause) {
	}
}

// sleepAbout sleeps for about this long, and returns false if the scheduler stops. The jitter keeps
// requests that failed together from being retried together.
func (l *lifetime) sleepAbout(d time.Duration) bool {
	select {
	case <-l.running.Done():
		return false
	case <-time.After(d/2 + rand.N(d)):
		return true
	}
}
