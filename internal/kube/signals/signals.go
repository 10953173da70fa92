// Package signals ends programs that are asked to end.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Until ends the context at the first SIGINT or SIGTERM, or SIGHUP when the terminal is closed. A
// second signal ends the process immediately. SIGHUP stays ignored in a process that was started
// so, as by nohup. SIGINT does not: a script's shell has it ignored in all that it starts in the
// background.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, ends...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
