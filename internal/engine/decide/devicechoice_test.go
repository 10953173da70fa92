// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/decide"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// TestClaimsChooseNodes verifies that for pods with claims, the Decider chooses one of the best
// nodes of a Plain with new plugins, which have only read the devices currently held by claims.
// Pods are added and removed, and some claims outlive their pods.
func TestClaimsChooseNodes(t *testing.T) {
	profile, c := choosingProfile(t), cluster.New()
	for i := range 9 {
		setDeviceNode(c, fmt.Sprintf("node-%d", i))
	}
	setDeviceClass(c)
	random := rand.New(rand.NewPCG(1, 0))
	decider := decide.New(c, profile, 1)
	var running, gone []*cluster.Pod
	told := 0
	for n := range 300 {
		p := c.Pending(sharePod(c, n, []string{"810", "470", "190", "320", "1000"}[random.IntN(5)]))
		d := decider.Decide(p)
		if d.Err != nil {
			t.Fatal(d.Err)
		}
		if n%5 == 0 {
			best := decide.NewPlain(c, choosingProfile(t)).Evaluate(p).Best()
			isBest := slices.ContainsFunc(best, func(v *decide.NodeVerdict) bool { return v.Node == d.Node })
			if isBest != (d.Node != nil) || isBest != (len(best) > 0) {
				t.Fatalf("pod %d: the fast way chooses %v, the plain way one of %d nodes", n, d.Node, len(best))
			}
			if len(best) == 1 {
				told++
			}
		}
		if d.Node != nil {
			reserveAll(t, c, profile, p, d.Node)
			running = append(running, p)
		}

		if len(running) > 40 || len(running) > 0 && random.IntN(4) == 0 {
			at := random.IntN(len(running))
			c.RemovePod(running[at].UID())
			gone = append(gone, running[at])
			running = slices.Delete(running, at, at+1)
		}
		if len(gone) > 4 {
			decide.ReleaseClaims(c, gone[0])
			gone = gone[1:]
		}
	}
	if told < 20 {
		t.Errorf("only %d of 60 pods had one best node: what nodes score is hardly told apart", told)
	}
}

// TestShareGoesToTheNodeItFills verifies that a share of 190 is placed next to a share of 810, and
// that the explanation of the score refers to the devices held by claims.
func TestShareGoesToTheNodeItFills(t *testing.T) {
	profile, c := choosingProfile(t), cluster.New()
	setDeviceClass(c)
	setDeviceNode(c, "node-0")
	first := c.Pending(sharePod(c, 0, "810"))
	decider := decide.New(c, profile, 1)
	reserveAll(t, c, profile, first, decider.Decide(first).Node)
	for i := range 5 {
		setDeviceNode(c, fmt.Sprintf("node-%d", i+1))
	}
	second := c.Pending(sharePod(c, 1, "190"))
	d := decider.Decide(second)
	if d.Node == nil || d.Node.Name != "node-0" {
		t.Fatalf("the share of 190 goes to %v, want node-0 (error: %v)", d.Node, d.Err)
	}
	words := profile.Plugin("Fragmentation").(plugins.ScoreDetailer).ScoreDetail(c, second)(d.Node)
	if !strings.Contains(words, "to what is expected to be left over") || !strings.Contains(words, "; on device 0") {
		t.Errorf("the score is explained as %q", words)
	}
}

// TestSharesOfClaimsAreLearnt verifies that claims count both for pods that run before the plugin
// is first called and for pods placed later.
func TestSharesOfClaimsAreLearnt(t *testing.T) {
	c := cluster.New()
	setDeviceClass(c)
	setDeviceNode(c, "node-0")
	for i, amounts := range [][]string{{"810"}, {"190", "470"}} {
		text, _, _ := strings.Cut(choosing, "      tasks:")
		parsed, err := config.Parse("profile", []byte(text), config.Options{})
		if err != nil {
			t.Fatal(err)
		}
		profile := parsed.Profiles[0]
		decider := decide.New(c, profile, 1)
		for j, amount := range amounts {
			p := c.Pending(sharePod(c, 10*i+j, amount))
			d := decider.Decide(p)
			if d.Node == nil {
				t.Fatalf("a share of %s fits nowhere: %v", amount, d.Err)
			}
			reserveAll(t, c, profile, p, d.Node)
		}

		var learnt []int64
		for _, shape := range profile.Learnt().Shapes {
			learnt = append(learnt, shape.Amount)
		}
		if want := [][]int64{{810}, {190, 470, 810}}[i]; !slices.Equal(learnt, want) {
			t.Errorf("learnt are %v, want %v", learnt, want)
		}
	}
}

func choosingProfile(tb testing.TB) *plugins.Profile {
	tb.Helper()
	parsed, err := config.Parse("profile", []byte(choosing), config.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return parsed.Profiles[0]
}

func reserveAll(tb testing.TB, c *cluster.Cluster, profile *plugins.Profile, p *cluster.Pod, n *cluster.Node) {
	tb.Helper()
	for _, r := range profile.Reservers {
		if _, err := r.Reserve(c, p, n); err != nil {
			tb.Fatal(err)
		}
		if l, learns := r.(plugins.Learner); learns {
			defer l.Learn(c, p) // after the pod is placed
		}
	}
	c.Place(p, n)
}
