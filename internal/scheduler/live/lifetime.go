package live

import (
	"context"
	"math/rand/v2"
	"time"
)

// lifetime is how long the scheduler may still do what. Both contexts are set by Run before
// anything else runs, and are only read after that.
type lifetime struct {
	running   context.Context // ends when the scheduler is to stop: nothing is begun after that
	finishing context.Context // ends finishWithin later: until then what is under way may finish
}

// retryUntilStopped tries until it works or the scheduler stops. Each try has readWithin; the
// pauses between them double from firstPause to lastPause.
func (l *lifetime) retryUntilStopped(ctx context.Context, try func(context.Context) bool) {
	once := func() bool {
		ctx, cancel := context.WithTimeout(ctx, readWithin)
		defer cancel()
		return try(ctx)
	}
	for pause := firstPause; !once() && l.sleepAbout(pause); pause = min(2*pause, lastPause) {
	}
}

// sleepAbout waits for about this long, and returns false if the scheduler stops. The waits differ,
// so that requests that failed together do not return together.
func (l *lifetime) sleepAbout(d time.Duration) bool {
	select {
	case <-l.running.Done():
		return false
	case <-time.After(d/2 + rand.N(d)):
		return true
	}
}
