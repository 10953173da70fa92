// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// soak runs a campaign of package soak, which injects faults drawn from one seed into a cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/test/soak"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	o := soak.Defaults()
	flags := pflag.NewFlagSet("soak", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.Usage = func() {}
	flags.DurationVar(&o.For, "for", o.For, "begin rounds until then")
	flags.Uint64Var(&o.Seed, "seed", o.Seed, "what all chance comes from")
	flags.IntVar(&o.Nodes, "nodes", o.Nodes, "simulated nodes")
	flags.DurationVar(&o.Storm, "storm", o.Storm, "how long faults go on in a round")

	flags.DurationVar(&o.Rest, "rest", o.Rest, "within what time the cluster has to come to rest when faults have ended")
	flags.DurationVar(&o.Silence, "silence", o.Silence, "how long a node may give no sign of life")
	flags.BoolVar(&o.Disk, "disk", o.Disk, "let the disk of etcd run full (where a tmpfs can be mounted)")
	tenant := flags.Bool("tenant", false,
		"in place of faults: somebody who may do anything in one namespace, and a witness in another (--for, --nodes, --seed, --dir)")
	flags.BoolVar(&o.Faults, "faults", false,
		"instead: the faults of package virtual, to one scheduler, controller, webhook, and berth drain (--storm 150s)")
	flags.BoolVar(&o.First, "first", o.First, "end at the first violation")
	flags.StringVar(&o.Bin, "bin", "bin", "folder of berth and berth-controlplane")
	flags.StringVar(&o.Dir, "dir", "", "where logs and the report are kept (default: a new folder, kept if there is a violation)")

	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Printf("soak plays a campaign of faults against a cluster of processes and says which promises were "+
			"broken.\n\nFlags:\n%s", flags.FlagUsages())
		return 0
	case err != nil:
		return fail(2, err)
	case flags.NArg() > 0:
		return fail(2, fmt.Errorf("%q: takes flags only; see --help", flags.Arg(0)))
	}

	temporary := o.Dir == ""
	if temporary {
		var err error
		if o.Dir, err = os.MkdirTemp("", "berth-soak-"); err != nil {
			return fail(1, err)
		}
	}

	if o.Faults && !flags.Changed("storm") {
		o.Storm = 150 * time.Second // two faults
	}
	if err := o.Validate(); err != nil {
		return fail(2, err)
	}
	if *tenant {
		t := soak.TenantDefaults()
		t.For, t.Seed, t.Bin, t.Dir = o.For, o.Seed, o.Bin, o.Dir
		if flags.Changed("nodes") {
			t.Nodes = o.Nodes
		}
		return play(t.Options, temporary, func(ctx context.Context) (report, error) {
			r, err := soak.RunTenant(ctx, t)
			if r == nil {
				return nil, err
			}
			return r, err
		})
	}

	return play(o, temporary, func(ctx context.Context) (report, error) {
		r, err := soak.Run(ctx, o)
		if r == nil {
			return nil, err
		}
		return r, err
	})
}

// report is the result of a campaign.
type report interface {
	Print(to io.Writer)
	Broken() int
}

func play(o soak.Options, temporary bool, campaign func(context.Context) (report, error)) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	report, err := campaign(ctx)
	if report != nil {
		report.Print(o.Out)
	}

	if err != nil {
		return fail(1, err)
	}
	if report.Broken() == 0 {
		if temporary {
			os.RemoveAll(o.Dir)
		}
		return 0
	}

	path := filepath.Join(o.Dir, "report.txt")
	if file, err := os.Create(path); err == nil {
		report.Print(file)
		file.Close()
	}

	fmt.Fprintf(os.Stderr, "soak: %d violations; logs and report are in %s; again with --seed %d\n", report.Broken(), o.Dir, o.Seed)
	return 1
}

func fail(code int, err error) int {
	fmt.Fprintln(os.Stderr, "soak:", err)
	return code
}
