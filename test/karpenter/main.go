// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
)

func main() {
	var o settings
	flag.StringVar(&o.counts, "pods", "1000", "pods to make; with -beside, several numbers, separated by commas")
	flag.StringVar(&o.beside, "beside", "", "binary of berth that is asked for the same pods: a table of both")
	flag.Int64Var(&o.seed, "seed", 42, "seed that the pods are drawn with; 42 is that of Karpenter's benchmark")
	flag.StringVar(&o.mix, "mix", "diverse", "what pods: diverse, or generic, which have no affinities and no spread")
	flag.IntVar(&o.times, "times", 3, "runs; the median of their seconds is printed")
	flag.BoolVar(&o.warmUp, "warm-up", false, "one more run before, which is not measured")
	flag.StringVar(&o.output, "o", "text", "output format: text or json")
	flag.StringVar(&o.write, "write", "", "folder that gets pods.yaml, nodepools.yaml and instance-types.json; nothing is scheduled then")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := o.run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "karpenter:", err)
		os.Exit(1)
	}
}

type settings struct {
	counts             string // numbers of pods, separated by commas, as in the flag
	pods               int
	seed               int64
	mix, output, write string
	beside             string
	times              int
	warmUp             bool
}

func (o settings) run(ctx context.Context, out io.Writer) error {
	if o.beside != "" {
		return o.compare(ctx, out)
	}
	var err error
	if o.pods, err = strconv.Atoi(o.counts); err != nil {
		return fmt.Errorf("-pods %q: must be a number", o.counts)
	}
	if o.pods < 1 || o.times < 1 || o.output != "text" && o.output != "json" {
		return fmt.Errorf("-pods %d -times %d -o %s: at least one pod and one run, and text or json", o.pods, o.times, o.output)
	}
	pods, err := makePods(o.mix, o.pods, o.seed)
	if err != nil {
		return err
	}
	if o.write != "" {
		return writeWorld(o.write, pods, nodePool(), instanceTypes())
	}

	r, err := o.measure(ctx, pods)
	if err != nil {
		return err
	}
	if o.output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	}
	return r.print(out)
}
