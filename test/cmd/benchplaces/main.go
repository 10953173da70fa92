// Benchplaces plays the tasks of a trace and prints how much of the GPUs is allocated in the end,
// by mix and policy; see package places.
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
	policies := flag.String("policies", strings.Join(places.Policies, ","), "what is played")
	mixes := flag.String("mixes", "", "mixes that are played, separated by commas (default all)")
	seeds := flag.Int("seeds", 10, "how many orders of arrival are played")
	first := flag.Uint64("first-seed", 42, "the seed of the first")
	driver.Main("benchplaces", "How much work a GPU cluster takes, by policy.", func(ctx context.Context) error {
		chosen, err := driver.Names("-policies", *policies, places.Policies...)
		if err != nil {
			return err
		}
		return run(ctx, *dir, *out, chosen, *mixes, *first, *seeds)
	})
}

func run(ctx context.Context, dir, out string, policies []string, mixes string, first uint64, seeds int) error {
	trace, err := places.ReadTrace(dir)
	if err != nil {
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
		if mixes != "" && !slices.Contains(strings.Split(mixes, ","), m.Name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "mix %s: %d tasks\n", m.Name, len(m.Tasks))
		for seed := first; seed < first+uint64(seeds); seed++ {
			for _, policy := range policies {
				if ctx.Err() != nil {
					return ctx.Err()
				}
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
