// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Benchplaces plays the tasks of a trace and prints the share of the GPUs allocated at the end, by
// mix and policy; see package places.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/bench/places"
)

func main() {
	dir := flag.String("trace", "bench/places/openb", "folder with nodes.csv and pods-MIX.csv or pods-MIX.csv.gz")
	out := flag.String("out", "",
		"folder to write the placements of Fragmentation to, as MIX-SEED.csv, and those with moves, as MIX-SEED-moves.csv")
	policies := flag.String("policies", strings.Join(places.Policies, ","),
		"what is played; FILE.yaml is a profile, without the tasks that it names: it learns")
	tasks := flag.String("tasks", places.AllTasks,
		"which tasks come: all; whole, that want whole GPUs; cpu, that want none, half the CPU in all")
	mixes := flag.String("mixes", "", "mixes that are played, separated by commas (default all)")
	seeds := flag.Int("seeds", 10, "how many orders of arrival are played")
	first := flag.Uint64("first-seed", 42, "the seed of the first")
	live := flag.String("live", "", "folder with berth and berth-controlplane: play on berth up, and Fragmentation offline beside it")
	nodes := flag.Int("nodes", 0, "how many of the nodes are there, in even distances (default all)")

	driver.Main("benchplaces", "How much work a GPU cluster takes, by policy.", func(ctx context.Context) error {
		p, err := openPlays(*dir, *out, *mixes, *first, *seeds, *nodes, *tasks)
		if err != nil {
			return err
		}
		if *live != "" {
			return p.runLive(ctx, *live)
		}
		return p.run(ctx, strings.Split(*policies, ","))
	})
}

// plays holds the mixes to play, each in several orders of arrival.
type plays struct {
	trace *places.Trace
	out   string // folder for the placements, if any
	mixes []string
	first uint64
	seeds int
}

func openPlays(dir, out, mixes string, first uint64, seeds, nodes int, tasks string) (*plays, error) {
	trace, err := places.ReadTrace(dir)
	if err != nil {
		return nil, err
	}
	trace.Reduce(nodes)
	if err := trace.Keep(tasks); err != nil {
		return nil, err
	}

	p := &plays{trace: trace, out: out, first: first, seeds: seeds}
	if mixes != "" {
		p.mixes = strings.Split(mixes, ",")
	}
	if out != "" {
		return p, os.MkdirAll(out, 0o755)
	}
	return p, nil
}

// each calls play for each chosen mix and each order of arrival.
func (p *plays) each(ctx context.Context, play func(m *places.Mix, seed uint64) error) error {
	for i := range p.trace.Mixes {
		m := &p.trace.Mixes[i]
		if !driver.Chosen(p.mixes, m.Name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "mix %s: %d tasks\n", m.Name, len(m.Tasks))
		for seed := p.first; seed < p.first+uint64(p.seeds); seed++ {
			if err := play(m, seed); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	return nil
}

// keep writes the placements of a run, if requested.
func (p *plays) keep(r *places.Run) error {
	if p.out == "" {
		return nil
	}
	return r.WriteCSV(p.out)
}

// run plays the mixes offline, with each policy.
func (p *plays) run(ctx context.Context, policies []string) error {
	for _, policy := range policies {
		if !slices.Contains(places.Policies, policy) && !places.IsProfile(policy) {
			return fmt.Errorf("-policies: no policy %q; there are %s", policy, strings.Join(places.Policies, ", "))
		}
	}

	report := places.NewReport(policies)
	err := p.each(ctx, func(m *places.Mix, seed uint64) error {
		for _, policy := range policies {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			r, err := p.trace.Play(policy, m, seed)
			if err != nil {
				return err
			}
			report.Add(r)
			if policy != "Fragmentation" && policy != "moves" {
				continue
			}
			if err := p.keep(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	report.Write(os.Stdout)
	return nil
}

// runLive plays each mix offline and on a live cluster, and prints both results.
func (p *plays) runLive(ctx context.Context, bin string) error {
	return p.each(ctx, func(m *places.Mix, seed uint64) error {
		offline, err := p.trace.Play("Fragmentation", m, seed)
		if err != nil {
			return err
		}
		run := &driver.Run{Bin: bin}
		remove, err := run.Open()
		defer remove()
		if err != nil {
			return err
		}
		r, err := p.trace.PlayLive(ctx, run, m, seed)
		if err != nil {
			return err
		}
		places.WriteLive(os.Stdout, r, offline)
		return p.keep(r)
	})
}
