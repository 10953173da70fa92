// Package signals ends programs that are asked to end.
package signals

import (
	"context"
	"os"
	"os/signal"
	"slices"
	"syscall"
)

// Until ends the context at the first SIGINT or SIGTERM, or SIGHUP when the terminal is closed. A
// second signal ends the process immediately. SIGINT and SIGHUP stay ignored in a process that was
// started so, as by nohup.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ends := slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGHUP}, signal.Ignored)
	ctx, stop := signal.NotifyContext(ctx, append(ends, syscall.SIGTERM)...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
