// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package query

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/simulate"
	"github.com/berth-k8s/berth/internal/kube/signals"
	"github.com/berth-k8s/berth/internal/usage"
)

// Document is a result in the formats of --output.
type Document interface {
	Write(out io.Writer, format string) error
}

// Answer is the result of a possibly repeated query.
type Answer struct {
	Document interface {
		Document
		// Fingerprint returns the result without times: results with equal fingerprints are the
		// same to the reader.
		Fingerprint() string
	}
	// Certain is set if the result does not depend on the scheduler's configuration.
	Certain bool
	// Held, if not nil, is the error of the command after the result is written: a condition of
	// --fail-on holds.
	Held error
}

// mostOften is the minimum interval between reads of a cluster: each lists everything.
const mostOften = time.Second

// AddWatchFlags adds the flags for repeated queries.
func (q *Question) AddWatchFlags(flags *pflag.FlagSet) {
	flags.BoolVarP(&q.watch, "watch", "w", false, "repeat the query, and print the answer whenever it changes, until Ctrl-C")
	flags.DurationVar(&q.every, "every", 5*time.Second, "with --watch, how often the cluster is read, 1s at least")
}

// Ask reads the cluster and writes view's result. With --watch it repeats that until Ctrl-C, and
// writes each result that differs from the previous one.
func (q *Question) Ask(cmd *cobra.Command, view func(*simulate.World, simulate.Source) (*Answer, error)) error {
	switch {
	case q.watch && len(q.Files) > 0:
		return usage.Errorf("--watch: cannot be used with -f: files do not change")
	case q.every < mostOften:
		return usage.Errorf("--every %s: must be %s or more", q.every, mostOften)
	}
	if err := print.CheckFormat(q.Output, print.Formats); err != nil {
		return err
	}
	ctx := cmd.Context()
	if q.watch {
		var stop context.CancelFunc
		ctx, stop = signals.Until(ctx)
		defer stop()
		cmd.SetContext(ctx) // Ctrl-C also ends a question in progress
	}
	for before, first := "", true; ; first = false {
		said, err := q.askOnce(cmd, view)
		switch {
		case err != nil && q.watch && ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case !q.watch:
			return q.write(cmd, said)
		}

		if gist := said.Document.Fingerprint(); first || gist != before {
			before = gist
			if err := q.write(cmd, said); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout())
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(q.every):
		}
	}
}

func (q *Question) askOnce(cmd *cobra.Command, view func(*simulate.World, simulate.Source) (*Answer, error)) (*Answer, error) {
	w, source, err := q.ReadWorld(cmd)
	if err != nil {
		return nil, err
	}
	defer q.Meter.End()
	return view(w, source)
}

func (q *Question) write(cmd *cobra.Command, said *Answer) error {
	if said.Certain {
		q.assumed, q.stopped = "", nil
	}
	if err := q.Write(cmd, said.Document); err != nil {
		return err
	}
	return said.Held
}

// Write writes a result, preceded by the assumptions.
func (q *Question) Write(cmd *cobra.Command, said Document) error {
	if err := q.WriteOpening(cmd); err != nil {
		return err
	}
	return said.Write(cmd.OutOrStdout(), q.Output)
}
