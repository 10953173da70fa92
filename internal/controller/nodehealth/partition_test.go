// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package nodehealth_test

import (
	"encoding/csv"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-k8s/berth/internal/controller/nodehealth"
)

var partitionTo = flag.String("partition", "", "file to write the partition to, minute by minute, as CSV")

// partition maps minutes to the events in three zones of 1,000 nodes each.
var partition = map[int]func(c *cluster){
	2:  func(c *cluster) { c.silence("a", 10) },                         // a few machines fail
	12: func(c *cluster) { c.silence("a", 600) },                        // most of a zone is cut off
	42: func(c *cluster) { c.silence("b", 1000) },                       // a second zone is cut off completely
	62: func(c *cluster) { c.silence("a", 1000); c.silence("c", 1000) }, // all other nodes as well: more likely, the controller is cut off
	77: func(c *cluster) { c.speak() },                                  // everything is back
}

const partitionEnds = 90

// documented is the behavior documented by Kubernetes: the number of nodes per minute that get an
// evicting taint in each zone, between two minutes. The period begins two minutes after an event,
// when all affected nodes count as silent.
var documented = []struct {
	from, to int
	perMin   map[string]float64
	none     bool // no node has an evicting taint
}{
	{from: 0, to: 2, none: true},
	{from: 4, to: 4, perMin: map[string]float64{"a": 6}},                    // --node-eviction-rate 0.1
	{from: 14, to: 42, perMin: map[string]float64{"a": 0.6}},                // --secondary-node-eviction-rate 0.01
	{from: 44, to: 62, perMin: map[string]float64{"a": 0.6, "b": 6}},        // a zone that is completely down: 0.1
	{from: 64, to: 77, none: true, perMin: map[string]float64{}},            // all zones down: no new taints, and existing ones are removed
	{from: 79, to: partitionEnds, none: true, perMin: map[string]float64{}}, // all back
}

func TestPartitionMinuteByMinute(t *testing.T) {
	c := newCluster(nodehealth.Defaults())
	for _, zone := range []string{"a", "b", "c"} {
		for i := range 1000 {
			c.add(fmt.Sprintf("%s-%d", zone, i+1), zone)
		}
	}
	c.Run(time.Minute)
	var minutes []map[string]int
	for minute := range partitionEnds + 1 {
		if happens := partition[minute]; happens != nil {
			happens(c)
		}
		minutes = append(minutes, c.evicting())
		c.Run(time.Minute)
	}
	for _, rule := range documented {
		for minute := rule.from; minute <= rule.to; minute++ {
			for _, zone := range []string{"a", "b", "c"} {
				now := minutes[minute][zone]
				if rule.none && now > 0 {
					t.Errorf("minute %d: %d nodes of zone %s evict, want none", minute, now, zone)
				}
				if rule.none || minute == rule.from {
					continue
				}
				since := rule.perMin[zone] * float64(minute-rule.from)
				if got := float64(now - minutes[rule.from][zone]); got < since-1 || got > since+1 {
					t.Errorf("minute %d: %v nodes of zone %s got the taint since minute %d, want %.1f", minute, got, zone, rule.from, since)
				}
				step := float64(now - minutes[minute-1][zone])
				if step < rule.perMin[zone]-1 || step > rule.perMin[zone]+1 {
					t.Errorf("minute %d: %v nodes of zone %s got the taint within a minute, want %.1f", minute, step, zone, rule.perMin[zone])
				}
			}
		}
	}
	writePartition(t, minutes)
}

func (c *cluster) silence(zone string, count int) {
	for _, name := range c.order {
		if m := c.nodes[name]; count > 0 && !m.silent && m.Labels[v1.LabelTopologyZone] == zone {
			m.silent = true
			count--
		}
	}
}

func (c *cluster) speak() {
	for _, m := range c.nodes {
		m.silent = false
	}
}

// evicting returns the number of nodes with an evicting taint in each zone.
func (c *cluster) evicting() map[string]int {
	count := map[string]int{}
	for _, m := range c.nodes {
		if m.has(v1.TaintNodeUnreachable+":NoExecute") || m.has(v1.TaintNodeNotReady+":NoExecute") {
			count[m.Labels[v1.LabelTopologyZone]]++
		}
	}
	return count
}

func writePartition(t *testing.T, minutes []map[string]int) {
	if *partitionTo == "" {
		return
	}
	file, err := os.Create(*partitionTo)
	if err != nil {
		t.Fatal(err)
	}
	out := csv.NewWriter(file)
	rows := [][]string{{"minute", "a", "b", "c"}}
	for minute, count := range minutes {
		rows = append(rows, []string{strconv.Itoa(minute), strconv.Itoa(count["a"]), strconv.Itoa(count["b"]), strconv.Itoa(count["c"])})
	}
	if err := out.WriteAll(rows); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}
