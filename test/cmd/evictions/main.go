// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// evictions measures bulk taint evictions by Berth and by upstream's kube-controller-manager. They
// run as separate processes, one after the other, on the same cluster, which consists of API
// objects only.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/berth-k8s/berth/test/bench/driver"
)

// scenario holds the number of evictions and the size of the cluster.
type scenario struct {
	nodes, perNode int
	tainted        int
	seconds        int // toleration seconds; 0 means none
}

// scenarios lists the scenarios that have goals, in an order in which the cluster only grows.
var scenarios = []scenario{
	{nodes: 1000, perNode: 30, tainted: 300},
	{nodes: 1000, perNode: 30, tainted: 300, seconds: tolerated},
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

// The sides, in the order in which they are measured.
const (
	berth    = "berth"
	upstream = "upstream"
)

// result is the outcome of one scenario on one side.
type result struct {
	scenario    scenario
	side        string
	first, last time.Duration // time from the due time to the first and the last observed deletion
	gone        int
	cpu         time.Duration
	peak        int64 // bytes
}

func main() {
	r, c := &driver.Run{}, &cluster{}
	all := flag.String("only", "", "scenarios to run, by number, as 1,3; all if empty")
	short := flag.Bool("short", false, "a tenth of everything, to see that it works")
	side := flag.String("side", "", "berth or upstream: that one alone")
	flag.StringVar(&r.Bin, "bin", "", "folder with berth, berth-controlplane and kube-controller-manager, in place of building them")
	flags := flag.String("berth-flags", "", "further flags of berth controller, separated by spaces")
	flag.BoolVar(&c.profile, "profile", false, "leave Berth's profiles beside the table (evictions-*.pprof)")

	driver.Main("evictions", "About eight minutes on two processors; builds what it runs.", func(ctx context.Context) error {
		c.flags = strings.Fields(*flags)
		sides, err := driver.Names("-side", *side, berth, upstream)
		if err != nil {
			return err
		}
		only, err := driver.Names("-only", *all, "1", "2", "3")
		if err != nil {
			return err
		}

		var chosen []scenario
		for i, s := range scenarios {
			if *short {
				s.nodes, s.tainted = s.nodes/10, s.tainted/10
			}
			if driver.Chosen(only, strconv.Itoa(i+1)) {
				chosen = append(chosen, s)
			}
		}
		return run(ctx, r, c, chosen, sides)
	})
}

func run(ctx context.Context, r *driver.Run, c *cluster, scenarios []scenario, sides []string) error {
	remove, err := r.Open(driver.Berth, driver.ControlPlane, driver.ControllerManager)
	defer remove()
	if err != nil {
		return err
	}
	if c.Cluster, err = r.StartCluster(ctx, "--controllers=serviceaccount-controller"); err != nil {
		return err
	}
	defer c.Stop()

	var results []result
	for _, s := range scenarios {
		for _, side := range []string{berth, upstream} {
			if !driver.Chosen(sides, side) {
				continue
			}
			r.Printf("%v: %s: filling", s, side)
			if err := c.fillCluster(ctx, s); err != nil {
				return err
			}
			one, err := c.measureSide(ctx, s, side)
			if err != nil {
				return fmt.Errorf("%v: %s: %w", s, side, err)
			}
			r.Printf("%s: %d of %d gone, the first after %v, the last after %v", side, one.gone, s.countDue(),
				one.first.Round(time.Millisecond), one.last.Round(time.Millisecond))
			results = append(results, one)
		}
	}
	writeTables(scenarios, results)
	return nil
}

func writeTables(scenarios []scenario, results []result) {
	for _, s := range scenarios {
		rows := [][]string{{"", "first after", "last after", "evictions/s", "never gone", "CPU each", "peak memory"}}
		for _, r := range results {
			if r.scenario == s {
				rows = append(rows, []string{map[string]string{berth: "Berth", upstream: "kube-controller-manager"}[r.side],
					driver.Short(r.first), driver.Short(r.last),
					fmt.Sprintf("%.0f", float64(r.gone)/max(r.last, time.Millisecond).Seconds()),
					fmt.Sprint(s.countDue() - r.gone), driver.Short(r.cpu / time.Duration(max(1, r.gone))), driver.Mebibytes(r.peak)})
			}
		}
		driver.Table(os.Stdout, s.String(), rows)
	}
}
