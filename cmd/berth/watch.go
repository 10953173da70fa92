package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/kube/signals"
)

// watching has the flags for repeated questions.
type watching struct {
	watch bool
	every time.Duration
}

// mostOften is how often a cluster may be read: each question lists everything.
const mostOften = time.Second

func (v *watching) addFlags(flags *pflag.FlagSet) {
	flags.BoolVarP(&v.watch, "watch", "w", false, "ask again and again, and print the answer when it has changed, until Ctrl-C")
	flags.DurationVar(&v.every, "every", 5*time.Second, "with --watch, how often the cluster is read, 1s at least")
}

func (v *watching) checkFlags(files []string) error {
	switch {
	case v.watch && len(files) > 0:
		return usagef("--watch: files do not change; leave it out, or -f")
	case v.every < mostOften:
		return usagef("--every %s: must be %s or more", v.every, mostOften)
	}
	return nil
}

// spoken is an answer that can be written. Two answers that tell the reader the same have the same
// gist, whenever they were asked for.
type spoken struct {
	gist  string
	write func() error
}

// askRepeatedly writes the answer. With --watch it repeats the question until Ctrl-C, and writes
// each answer that differs from the one before.
func (v *watching) askRepeatedly(cmd *cobra.Command, ask func() (*spoken, error)) error {
	if !v.watch {
		said, err := ask()
		if err != nil {
			return err
		}
		return said.write()
	}
	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	cmd.SetContext(ctx) // Ctrl-C also ends a question under way
	for before, first := "", true; ; first = false {
		said, err := ask()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		if first || said.gist != before {
			before = said.gist
			if err := said.write(); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout())
		}
		if !sleepFor(ctx, v.every) {
			return nil
		}
	}
}

// sleepFor waits; it returns false if the context has ended.
func sleepFor(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
