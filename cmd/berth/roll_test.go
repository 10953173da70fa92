// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/cli/query"
	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/usage"
)

// TestFlagsOfARoll verifies that the action on an empty node is mandatory, and that contradictory
// flags are rejected.
func TestFlagsOfARoll(t *testing.T) {
	for line, want := range map[string]string{
		"--roll a=b": "requires --uncordon-when",
		"--roll a=b --uncordon-when Ready --wait-for-new":             "cannot be used together",
		"--roll a=b --uncordon-when later":                            "must be Ready or drained",
		"--roll a=b --uncordon-when Ready -l c=d":                     "cannot be used with node names or --selector",
		"--roll a=b --uncordon-when Ready node-1":                     "cannot be used with node names or --selector",
		"--roll a=b --uncordon-when Ready --dry-run=server":           "none or client",
		"--roll a==!b --uncordon-when Ready":                          "--roll",
		"--roll a=b --uncordon-when Ready --max-unavailable 0":        "at least 1",
		"--roll a=b --uncordon-when Ready --max-unavailable some":     "at least 1",
		"--roll a=b --uncordon-when Ready --output table":             "table",
		"node-1 --max-unavailable 2":                                  "requires --roll",
		"node-1 -o json":                                              "requires --roll",
		"--roll a=b --uncordon-when Ready --surge --disable-eviction": "cannot be used together",
	} {
		cmd := newDrainCommand()
		cmd.SetArgs(strings.Fields(line))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SetErr(&bytes.Buffer{})
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); !usage.IsError(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", line, err, want)
		}
	}
}

// TestHowManyNodesHaveTheirTurnTogether verifies that a percentage refers to all nodes, rounded
// down to at least one node.
func TestHowManyNodesHaveTheirTurnTogether(t *testing.T) {
	for text, want := range map[string]int{"1": 1, "3": 3, "10%": 4, "1%": 1} {
		d := &drain{roll: "a=b", uncordonWhen: "ready", dryRun: "none", maxUnavailable: text}
		o, err := d.rollOptions(nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := o.AtOnce(45); got != want {
			t.Errorf("%s of 45 nodes: %d, want %d", text, got, want)
		}
	}
}

func aRoll() *rebalance.Roll {
	return &rebalance.Roll{Pods: 3, Moves: 4, Again: []rebalance.Moved{{Namespace: "shop", Name: "web-0", Times: 2}}, Turns: []rebalance.Turn{
		{Zone: "z1", Nodes: []string{"n1"}, Opens: []string{"n2"}, Draining: rebalance.Draining{Pods: []rebalance.Departure{
			{Namespace: "shop", Name: "web-0", From: "n1", To: "n2", Surge: &rebalance.Surge{Scaled: rebalance.Scaled{Kind: "Deployment", Name: "web"}}},
		}}},
		{Zone: "z2", Nodes: []string{"n2"}, Draining: rebalance.Draining{Pods: []rebalance.Departure{
			{Namespace: "shop", Name: "web-0", From: "n2", To: "n1"},
			{Namespace: "shop", Name: "db-0", From: "n2", To: "n1", NoSurge: "its namespace allows no additional pod"},
			{Namespace: "shop", Name: "big", From: "n2", Stranded: "0/2 nodes are available"},
		}}},
	}}
}

// TestThePlanOfARollIsPrinted verifies that a printed plan has the batches of nodes and the notes
// on individual pods.
func TestThePlanOfARollIsPrinted(t *testing.T) {
	var out bytes.Buffer
	err := aRoll().Answer().Write(&out, "")
	const want = `2 nodes to roll in 2 turns: 3 pods leave, 4 moves
TURN   NODES   ZONE   PODS   SURGE   NOTE
1      n1      z1     1      1       1 node of later turns opened
2      n2      z2     3      0       1 pending
cannot surge: its namespace allows no additional pod: shop/db-0
pending: 0/2 nodes are available: shop/big
leave more than once: shop/web-0
`
	if err != nil || out.String() != want {
		t.Errorf("says (%v)\n%s, want\n%s", err, out.String(), want)
	}
}

// TestARollThatStoppedIsAnError verifies that a stopped roll is an error, and that its document is
// still written.
func TestARollThatStoppedIsAnError(t *testing.T) {
	var out bytes.Buffer
	d := &drain{Question: query.Question{Output: "json"}, roll: "pool=web"}
	err := d.writeRolled(&out, aRoll().Answer(), &execute.RollDone{Done: 1, Nodes: 2, Evicted: 1, Turn: []string{"n2"},
		Stopped: "interrupted"})
	if err == nil || err.Error() != "not rolled: interrupted; 1 of 2 nodes are done, and n2 is cordoned; run the same command to continue, or berth uncordon -l \"pool=web\" to abandon the roll" {
		t.Error(err)
	}
	var a rebalance.RollAnswer
	if err := errors.Join(json.Unmarshal(out.Bytes(), &a)); err != nil || a.Kind != "Roll" || a.Result == nil || a.Result.Stopped != "interrupted" || a.Turns[0].Pods[0].Surge != "Deployment/web" {
		t.Errorf("%v: %s", err, out.String())
	}
}
