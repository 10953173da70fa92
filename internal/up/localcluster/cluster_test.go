// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/kube/connect"
	"github.com/berth-k8s/berth/internal/ui"
)

// TestWelcomeSuggestsWhatCanBeDone verifies that the suggested commands work: for example, without
// simulated nodes none can fail.
func TestWelcomeSuggestsWhatCanBeDone(t *testing.T) {
	for nodes, fails := range map[int]bool{0: false, 3: true} {
		c := &Cluster{Nodes: nodes, Zones: 1, DataDir: connect.DefaultDataDir, kubeconfig: "/x/kubeconfig"}
		if text := c.welcomeText(0); strings.Contains(text, "nodes fail") != fails || !strings.Contains(text, "Try:") {
			t.Errorf("%d nodes:\n%s", nodes, text)
		}
	}
}

// TestTheTokenOfUpIsKept verifies that the token outlives berth up and is readable only by its
// owner, and that a truncated one is replaced.
func TestTheTokenOfUpIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), pageTokenFile)
	read := func() string {
		t.Helper()
		if err := ui.KeepToken(file); err != nil {
			t.Fatal(err)
		}
		token, err := ui.ReadToken(file)
		if err != nil {
			t.Fatal(err)
		}
		return token
	}
	first := read()
	if second := read(); second != first {
		t.Errorf("%q became %q", first, second)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if third := read(); third == first {
		t.Error("an empty file gave the token that it held before")
	}
	c := &Cluster{kubeconfig: filepath.Join(filepath.Dir(file), "kubeconfig")}
	if argv := c.pagePart().Argv(); !slices.Contains(argv, file) || slices.Contains(argv, first) {
		t.Errorf("%q", argv)
	}
}

// TestServiceRangeIsKept verifies the service ranges of a cluster with the default range, of a new
// cluster next to it, and of a cluster with an explicit range.
func TestServiceRangeIsKept(t *testing.T) {
	dir := t.TempDir()
	if got := serviceRange(dir); got != "10.96.0.0/12" {
		t.Errorf("a new cluster has %s", got)
	}
	if err := os.WriteFile(filepath.Join(dir, serviceRangeFile), []byte("10.112.0.0/16\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := serviceRange(dir); got != "10.112.0.0/16" {
		t.Errorf("the cluster has %s", got)
	}
	all := map[string]bool{}
	for _, text := range freeRanges(dir) {
		if !netip.MustParsePrefix("10.112.0.0/12").Overlaps(netip.MustParsePrefix(text)) {
			t.Errorf("%s may be a pod network's", text)
		}
		all[text] = true
	}
	if len(all) != 16 {
		t.Errorf("%d ranges for new clusters", len(all))
	}
}
