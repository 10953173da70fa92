// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"flag"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/internal/binaries"
)

var (
	old       = flag.String("old", "", "the other version of TestUpgradeUnderLoad: a revision of this repository, which is built, or a folder of programs")
	machines  = flag.Int("upgrade-nodes", UpgradeDefaults().Nodes, "how many nodes there are in TestUpgradeUnderLoad")
	perSecond = flag.Int("upgrade-rate", UpgradeDefaults().Rate, "how many pods a second come in TestUpgradeUnderLoad")
	upgrading = flag.Duration("upgrade", time.Second, "how long TestUpgradeUnderLoad begins new ways there and back")
)

// TestUpgradeUnderLoad verifies that no promise is broken while every component of a cluster is
// replaced, one by one, by the current version, and then by the old version again. Meanwhile pods
// are created, and nodes are tainted and stop their heartbeats. All components keep their state:
// the API server keeps its data folder, and the other components keep their objects in the API.
func TestUpgradeUnderLoad(t *testing.T) {
	if *old == "" {
		t.Skip("no other version was named: see -old")
	}
	o := UpgradeDefaults()
	var err error
	if o.Old, err = binaries.Of(*old, "../.."); err != nil {
		t.Fatal(err)
	}
	o.Bin, o.Dir, o.Seed, o.For = programs(t), filepath.Join(t.TempDir(), "soak"), *seed, *upgrading
	o.Nodes, o.Rate = *machines, *perSecond
	o.Out = t.Output()
	r, err := RunUpgrade(t.Context(), o)
	if r != nil {
		r.Print(o.Out)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Violations) > 0 {
		t.Errorf("%d promises were broken", len(r.Violations))
	}
	if parts := 6; len(r.Steps) < 2*parts {
		t.Errorf("%d parts were replaced, want %d there and back", len(r.Steps), parts)
	}
	for _, promise := range []string{boundOnce, roomKept, evictionJust, comesToRest, noneForgot, cleanEnd} {
		if r.Checks[promise] == 0 {
			t.Errorf("never checked: %s", promise)
		}
	}
}

// TestLeaseWithoutAHolder verifies that the time without a holder lasts from a Lease's release or
// last renewal to its next acquisition.
func TestLeaseWithoutAHolder(t *testing.T) {
	l, began := &leases{}, time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	l.noteHolder("berth-controller", "a", at(0))
	l.noteHolder("kube-scheduler", "x", at(0))
	if free := l.freeLeases(); len(free) > 0 {
		t.Errorf("both are held, and not by %v", free)
	}
	l.noteHolder("berth-controller", "a", at(2))
	l.noteHolder("berth-controller", "", at(3))
	l.noteHolder("berth-controller", "", at(4))
	if free := l.freeLeases(); len(free) != 1 {
		t.Errorf("free: %v, want that of the controllers", free)
	}
	l.noteHolder("berth-controller", "b", at(7))
	if got := l.longest(at(1)); got != 4*time.Second {
		t.Errorf("given away at 3 s, taken at 7: %v", got)
	}
	l.noteHolder("kube-scheduler", "x", at(9))
	l.noteHolder("kube-scheduler", "y", at(20))
	if got := l.longest(at(8)); got != 11*time.Second {
		t.Errorf("last renewed at 9 s, taken at 20: %v", got)
	}
	if l.changes[0].released != true || l.changes[1].released {
		t.Errorf("only the first was given away: %v", l.changes)
	}
}

func TestLongestGapOfTheFlow(t *testing.T) {
	f, began := newFlow(nil), time.Now().Add(-10*time.Second)
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	f.began = began
	for i, seconds := range []int{1, 2, 6, 7, 8, 9} {
		name := string(rune('a' + i))
		f.waiting[name] = at(seconds - 1)
		f.notePod(name, "node", false, at(seconds))
		f.notePod(name, "node", false, at(seconds+1)) // each is bound once
	}
	for since, want := range map[int]time.Duration{1: 4 * time.Second, 3: 4 * time.Second, 6: 4 * time.Second, 7: time.Second} {
		if got := f.longestGap(at(since).Add(time.Millisecond)).Round(time.Second / 2); since < 6 && got != want || since >= 6 && got > 2*time.Second {
			t.Errorf("since %d s: %v, want %v", since, got, want)
		}
	}
	if got := f.allWaits(); got.pods != 6 || got.longest() != time.Second {
		t.Errorf("six pods that waited a second: %v", got)
	}
}
