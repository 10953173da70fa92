// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/berth-k8s/berth/internal/pacing"
)

// lifetime holds the contexts that bound the scheduler's work. Run sets them before it starts any
// goroutine.
type lifetime struct {
	running   context.Context // ends when the scheduler stops; no work begins after that
	finishing context.Context // ends finishWithin later; until then, work in progress may finish
}

// retryUntilStopped calls try until it returns true or the scheduler stops. Each call has a timeout
// of readWithin; the pauses between calls double from firstPause to lastPause.
func (l *lifetime) retryUntilStopped(ctx context.Context, try func(context.Context) bool) {
	once := func() bool {
		ctx, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		return try(ctx)
	}
	for pause := firstPause; !once() && l.sleepAbout(pause); pause = min(2*pause, lastPause) {
	}
}

// sleepAbout sleeps for about d, and returns false if the scheduler stops. Because of the jitter,
// requests that failed together are not retried together.
func (l *lifetime) sleepAbout(d time.Duration) bool {
	return pacing.Sleep(l.running, d/2+rand.N(d))
}
