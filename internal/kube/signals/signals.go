// Package signals ends programs that are asked to end.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Until ends the context at the first SIGINT or SIGTERM, or SIGHUP when the terminal is closed. A
// second signal ends the process immediately.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
