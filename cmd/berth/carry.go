// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-k8s/berth/internal/cli/print"
)

// mover moves pods. After Stop it starts no further moves, and Run returns once the started ones
// are done.
type mover interface {
	Stop()
	Run(ctx context.Context) error
}

// carrying is one run of a mover. The meter shows its progress until the first message.
type carrying struct {
	meter  print.Meter
	cancel context.CancelFunc
}

func (c *carrying) end() {
	c.meter.Clear()
	c.cancel()
}

// carryOut runs a mover. The first signal stops it, with a message to the user; the second ends the
// command immediately. returned is false if the mover did not finish in time.
func carryOut(cmd *cobra.Command, step, stopped string, begin func(ctx context.Context, c *carrying) mover) (returned bool, err error) {
	ctx, cancel := context.WithCancel(cmd.Context())
	c := &carrying{cancel: cancel}
	defer c.end()
	c.meter.Begin(cmd.ErrOrStderr(), step)
	m := begin(ctx, c)
	return untilTwice(cmd.ErrOrStderr(), stopped+"; interrupt again to exit immediately",
		m.Stop, cancel, func() error { return m.Run(ctx) })
}

// endsWithin bounds the command's shutdown after the second signal.
const endsWithin = time.Second

// untilTwice calls run until it returns. The first signal prints words and calls stop, the second
// calls cancel. Planning cannot be interrupted, so a run that does not return soon after the second
// signal is abandoned.
func untilTwice(out io.Writer, words string, stop, cancel func(), run func() error) (returned bool, err error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(signals)
	over := make(chan error, 1)
	go func() { over <- run() }()

	for _, do := range []func(){func() {
		fmt.Fprintln(out, words)
		stop()
	}, cancel} {
		select {
		case err := <-over:
			return true, err
		case <-signals:
			do()
		}
	}

	select {
	case err := <-over:
		return true, err
	case <-time.After(endsWithin):
		return false, nil
	}
}
