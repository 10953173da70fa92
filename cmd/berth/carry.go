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
	"k8s.io/klog/v2"

	"github.com/berth-k8s/berth/internal/cli/print"
)

// mover moves pods. After Stop it begins nothing further, and Run returns when what it began is
// done.
type mover interface {
	Stop()
	Run(ctx context.Context) error
}

// carrying is a mover's run: the meter shows what is done until there is something to tell.
type carrying struct {
	meter  print.Meter
	cancel context.CancelFunc
}

// end ends the run.
func (c *carrying) end() {
	c.meter.Clear()
	c.cancel()
}

// carryOut runs a mover. The first signal stops it, which the user is told in words; the second
// ends the command at once, and returned is false if the mover was left behind.
func carryOut(cmd *cobra.Command, step, stopped string, begin func(ctx context.Context, c *carrying) mover) (returned bool, err error) {
	ctx, cancel := context.WithCancel(klog.NewContext(cmd.Context(), klog.Logger{})) // what it does is told in lines of its own
	c := &carrying{cancel: cancel}
	defer c.end()
	c.meter.Begin(cmd.ErrOrStderr(), step)
	m := begin(ctx, c)
	return untilTwice(cmd.ErrOrStderr(), stopped+"; again to end at once", m.Stop, cancel, func() error { return m.Run(ctx) })
}

// endsWithin is how long a command may take to end after the second signal.
const endsWithin = time.Second

// untilTwice calls run until it returns. At the first signal it says something and calls stop, at
// the second cancel. Nothing cuts a plan short that is being made: what has not returned soon after
// the second signal is left behind.
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
