// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package signals provides a context that ends on termination signals.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Until returns a context that ends at the first SIGINT, SIGTERM or SIGHUP (which is sent when the
// terminal is closed). A second signal ends the process immediately. If SIGHUP was ignored when the
// process started, for example because of nohup, it stays ignored. This does not apply to SIGINT,
// because shells start the background processes of a script with SIGINT ignored.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, ends...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
