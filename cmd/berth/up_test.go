package main

import (
	"strings"
	"testing"
)

// What no simulated node can be is refused before anything is started.
func TestNodesThatCannotBeAreRefusedAtOnce(t *testing.T) {
	neutral(t)
	for args, want := range map[string]string{
		"up --controlplane /nowhere --nodes 100000": "--nodes 100000: with 110 pods each there are addresses for",
		"up --controlplane /nowhere --nodes -1":     "--nodes -1: must be 0 or more",
		"nodes --count 100000":                      "--count 100000: with 110 pods each there are addresses for",
		"nodes --region !":                          `--region "!": a valid label must`,
	} {
		if code, _, errs := command(t, strings.Fields(args)...); code != exitUsage || !strings.Contains(errs, want) {
			t.Errorf("%s: exit code %d, %s", args, code, errs)
		}
	}
}

// The commands to try can be done: without simulated nodes none can fail.
func TestWelcomeSuggestsWhatCanBeDone(t *testing.T) {
	for nodes, fails := range map[int]bool{0: false, 3: true} {
		c := &cluster{nodes: nodes, zones: 1, dataDir: defaultDataDir, kubeconfig: "/x/kubeconfig"}
		if text := c.welcome(0); strings.Contains(text, "nodes fail") != fails || !strings.Contains(text, "Try:") {
			t.Errorf("%d nodes:\n%s", nodes, text)
		}
	}
}
