package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"text/tabwriter"
	"time"
)

// scenario is how much is evicted from how large a cluster.
type scenario struct {
	nodes, perNode int
	tainted        int
	seconds        int // tolerated; 0: none
}

// scenarios are those of the goals, in an order in which the cluster only grows.
var scenarios = []scenario{
	{nodes: 1000, perNode: 30, tainted: 300},
	{nodes: 1000, perNode: 30, tainted: 300, seconds: 15},
	{nodes: 5000, perNode: 30, tainted: 100},
}

func (s scenario) countDue() int { return s.tainted * s.perNode }

func (s scenario) String() string {
	when := "at once"
	if s.seconds > 0 {
		when = fmt.Sprintf("after %d s", s.seconds)
	}
	return fmt.Sprintf("NoExecute on %d of %d nodes, %d of %d pods due %s", s.tainted, s.nodes, s.countDue(), s.nodes*s.perNode, when)
}

// result is what one side did with one scenario.
type result struct {
	scenario    scenario
	side        string
	first, last time.Duration // from when the pods were due to when a watch showed the delete
	gone        int
	cpu         time.Duration
	peak        int64 // bytes
}

type bench struct {
	short, profile bool
	only, sides    []string
	bin            string
	flags          []string // of berth controller
	out            io.Writer
	began          time.Time
}

func (b *bench) printProgress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}

func (b *bench) runBench(ctx context.Context) error {
	b.began = time.Now()
	dir, err := os.MkdirTemp("", "berth-evictions-")
	if err != nil {
		return err
	}

	defer os.RemoveAll(dir)
	programs := programsIn(b.bin)
	if b.bin == "" {
		b.printProgress("building what runs")
		if programs, err = buildPrograms(dir); err != nil {
			return err
		}
	}

	c, err := startCluster(ctx, programs, dir)
	if err != nil {
		return err
	}

	c.flags = b.flags
	defer c.stop()
	if len(b.sides) == 0 {
		b.sides = []string{"berth", "upstream"}
	}

	var results []result
	for i, s := range scenarios {
		if len(b.only) > 0 && !slices.Contains(b.only, strconv.Itoa(i+1)) {
			continue
		}
		if b.short {
			s.nodes, s.tainted = s.nodes/10, s.tainted/10
		}
		for _, side := range b.sides {
			b.printProgress("%v: %s: filling", s, side)
			if err := c.fillCluster(ctx, s); err != nil {
				return err
			}
			r, err := b.measureSide(ctx, c, s, side)
			if err != nil {
				return fmt.Errorf("%v: %s: %w", s, side, err)
			}
			b.printProgress("%s: %d of %d gone, the first after %v, the last after %v", side, r.gone, s.countDue(),
				r.first.Round(time.Millisecond), r.last.Round(time.Millisecond))
			results = append(results, r)
		}
	}

	return b.printTable(results)
}

// patience is how long nothing may happen before a side is taken to have done all that it will.
const patience = 25 * time.Second

// measureSide taints the nodes and waits until all pods that are due are gone, or no more go.
func (b *bench) measureSide(ctx context.Context, c *cluster, s scenario, side string) (result, error) {
	p, err := c.startSide(ctx, side)
	if err != nil {
		return result{}, err
	}

	defer p.Kill()
	if err := c.atWork(ctx); err != nil {
		return result{}, fmt.Errorf("%w\n%s", err, p.LastLines(10))
	}

	seen := c.observePods(ctx)
	defer seen.stop()
	before := p.CPU()
	due := time.Now().Add(time.Duration(s.seconds) * time.Second)
	if err := c.taintNodes(ctx, s); err != nil {
		return result{}, err
	}

	first, last, gone := seen.awaitGone(ctx, s.countDue(), due.Add(patience))
	if b.profile && side == "berth" {
		b.printProgress("profile: %v", p.saveProfiles("evictions-"+strconv.Itoa(s.nodes)))
	}

	if gone == 0 {
		return result{}, fmt.Errorf("nothing evicted within %v", begins)
	}
	return result{scenario: s, side: side, first: first.Sub(due), last: last.Sub(due), gone: gone,
		cpu: p.CPU() - before, peak: p.Peak()}, nil
}

func (b *bench) printTable(results []result) error {
	out := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', 0)
	var before scenario
	for _, r := range results {
		if r.scenario != before {
			fmt.Fprintf(out, "\n%v\n", r.scenario)
			fmt.Fprintln(out, "\tfirst after\tlast after\tevictions/s\tnever gone\tCPU each\tpeak memory")
			before = r.scenario
		}
		rate := float64(r.gone) / max(r.last, time.Millisecond).Seconds()
		fmt.Fprintf(out, "%s\t%.2f s\t%.1f s\t%.0f\t%d\t%.2f ms\t%d MiB\n", sideName(r.side), r.first.Seconds(), r.last.Seconds(), rate,
			r.scenario.countDue()-r.gone, float64(r.cpu.Microseconds())/1000/float64(max(1, r.gone)), r.peak>>20)
	}
	return out.Flush()
}

func sideName(side string) string {
	if side == "upstream" {
		return "kube-controller-manager"
	}
	return "Berth"
}
