// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-k8s/berth/internal/answer"
	"github.com/berth-k8s/berth/internal/cli/parse"
	"github.com/berth-k8s/berth/internal/cli/print"
	"github.com/berth-k8s/berth/internal/inspect/record"
	"github.com/berth-k8s/berth/internal/inspect/snapshot"
	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/kube/signals"
)

// recording holds the flags of berth record.
type recording struct {
	cluster   connect.Flags
	dir, size string
	options   record.Options
}

func newRecordCommand() *cobra.Command {
	r := recording{}
	cmd := &cobra.Command{
		Use:     "record -o DIR",
		GroupID: groupAsk,
		Short:   "Record a live cluster's objects and changes, for later queries",
		Args:    parse.None,
		RunE:    func(cmd *cobra.Command, _ []string) error { return r.runRecord(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&r.dir, "output", "o", "", "the folder to write to (required)")
	flags.DurationVar(&r.options.For, "for", 0, "how long to record changes once all objects are listed (default: until Ctrl-C)")
	flags.BoolVar(&r.options.Once, "once", false, "record the objects as they are now, and exit")
	flags.StringVar(&r.size, "max-size", "1Gi", "size limit of the recorded history in addition to the newest objects, such as 200Mi")
	flags.DurationVar(&r.options.Every, "every", time.Minute, "how often the objects in the folder are updated")
	r.cluster.AddKubectlFlags(flags)
	return cmd
}

func (r *recording) runRecord(cmd *cobra.Command) error {
	size, err := resource.ParseQuantity(r.size)
	switch {
	case r.dir == "":
		return usagef("no folder specified: use -o DIR")
	case err != nil || size.Value() < 1<<20:
		return usagef("--max-size %q: must be a quantity of 1Mi or more, such as 200Mi", r.size)
	case r.options.For < 0:
		return usagef("--for %s: must not be negative", r.options.For)
	case r.options.Every <= 0:
		return usagef("--every %s: must be positive", r.options.Every)
	}

	cfg, err := r.cluster.Config("berth-record")
	if err != nil {
		return err
	}

	client, err := snapshot.NewClient(cfg)
	if err != nil {
		return err
	}

	ctx, stop := signals.Until(cmd.Context())
	defer stop()
	var objects, changes int
	r.options.Dir, r.options.MaxBytes = r.dir, size.Value()
	terminal := print.NewProgress(cmd.ErrOrStderr())
	var reading print.Meter
	reading.Begin(cmd.ErrOrStderr(), "reading the cluster")

	r.options.Progress = func(o, c int) {
		reading.End()
		if objects, changes = o, c; terminal.Terminal {
			terminal.Step("record", countOf(o, c)+"; Ctrl-C ends it")
		}
	}

	err = record.Run(ctx, client, r.options)
	reading.End()
	terminal.Final("")
	if err != nil {
		return err
	}

	fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", r.dir, countOf(objects, changes))
	return nil
}

func countOf(objects, changes int) string {
	return answer.Count(objects, "object") + ", " + answer.Count(changes, "change")
}
