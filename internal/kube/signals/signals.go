// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package signals ends programs on signals.
package signals

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Until ends the context at the first SIGINT or SIGTERM, or SIGHUP when the terminal is closed. A
// second signal ends the process immediately. SIGHUP stays ignored if it was at the start, as by
// nohup. SIGINT does not: a script's shell makes all its background processes ignore it.
func Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ends := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(ctx, ends...)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}
