// Benchplaces plays the tasks of a trace and prints how much of the GPUs is allocated in the end,
// by mix and policy; see package places.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/berth-k8s/berth/test/bench/places"
)

func main() {
	dir := flag.String("trace", "bench/places/openb", "folder with nodes.csv and pods-MIX.csv or pods-MIX.csv.gz")
	out := flag.String("out", "",
		"folder to write the placements of Fragmentation to, as MIX-SEED.csv, and those with moves, as MIX-SEED-moves.csv")
	policies := flag.String("policies", strings.Join(places.Policies, ","), "what is played; FILE.yaml is a profile, without the tasks that it names: it learns")
	tasks := flag.String("tasks", places.AllTasks, "which tasks come: all; whole, that want whole GPUs; cpu, that want none, half the CPU in all")
	mixes := flag.String("mixes", "", "mixes that are played, separated by commas (default all)")
	seeds := flag.Int("seeds", 10, "how many orders of arrival are played")
	first := flag.Uint64("first-seed", 42, "the seed of the first")
	live := flag.String("live", "", "folder with berth and berth-controlplane: play on berth up, and Fragmentation offline beside it")
	nodes := flag.Int("nodes", 0, "how many of the nodes are there, in even distances (default all)")
	flag.Parse()
	if *live != "" {
		if err := runLive(*live, *dir, *out, split(*mixes), *first, *seeds, *nodes, *tasks); err != nil {
			fmt.Fprintln(os.Stderr, "benchplaces:", err)
			os.Exit(1)
		}
		return
	}
	if err := run(*dir, *out, split(*policies), split(*mixes), *first, *seeds, *nodes, *tasks); err != nil {
		fmt.Fprintln(os.Stderr, "benchplaces:", err)
		os.Exit(1)
	}
}

func split(list string) []string {
	return slices.DeleteFunc(strings.Split(list, ","), func(s string) bool { return s == "" })
}

func run(dir, out string, policies, mixes []string, first uint64, seeds, nodes int, tasks string) error {
	for _, p := range policies {
		if !slices.Contains(places.Policies, p) && !places.IsProfile(p) {
			return fmt.Errorf("-policies: no policy %q; there are %s", p, strings.Join(places.Policies, ", "))
		}
	}

	trace, err := places.ReadTrace(dir)
	if err != nil {
		return err
	}

	trace.Reduce(nodes)
	if err := trace.Keep(tasks); err != nil {
		return err
	}
	if out != "" {
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
	}

	report := places.NewReport(policies)
	for i := range trace.Mixes {
		m := &trace.Mixes[i]
		if len(mixes) > 0 && !slices.Contains(mixes, m.Name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "mix %s: %d tasks\n", m.Name, len(m.Tasks))
		for seed := first; seed < first+uint64(seeds); seed++ {
			for _, policy := range policies {
				r, err := trace.Play(policy, m, seed)
				if err != nil {
					return err
				}
				report.Add(r)
				if out != "" && (policy == "Fragmentation" || policy == "moves") {
					if err := r.WriteCSV(out); err != nil {
						return err
					}
				}
			}
		}
	}

	return report.Write(os.Stdout)
}

// runLive plays the mixes on clusters, one after the other, and offline.
func runLive(bin, dir, out string, mixes []string, first uint64, seeds, nodes int, tasks string) error {
	trace, err := places.ReadTrace(dir)
	if err != nil {
		return err
	}
	trace.Reduce(nodes)
	if err := trace.Keep(tasks); err != nil {
		return err
	}
	if out != "" {
		if err := os.MkdirAll(out, 0o755); err != nil {
			return err
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	data, err := os.MkdirTemp("", "places")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data)

	for i := range trace.Mixes {
		m := &trace.Mixes[i]
		if len(mixes) > 0 && !slices.Contains(mixes, m.Name) {
			continue
		}
		for seed := first; seed < first+uint64(seeds); seed++ {
			offline, err := trace.Play("Fragmentation", m, seed)
			if err != nil {
				return err
			}
			live := &places.Live{Program: filepath.Join(bin, "berth"), Dir: filepath.Join(data, fmt.Sprint(m.Name, seed)), Log: os.Stderr}
			r, err := live.Play(ctx, trace, m, seed)
			if err != nil {
				return err
			}
			places.WriteLive(os.Stdout, r, offline)
			if out != "" {
				if err := r.WriteCSV(out); err != nil {
					return err
				}
			}
		}
	}

	return nil
}
