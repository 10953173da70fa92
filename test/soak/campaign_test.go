// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/internal/binaries"
)

var (
	seed   = flag.Uint64("soak-seed", 1, "seed of TestShortCampaign")
	rounds = flag.Duration("soak", time.Second, "how long TestShortCampaign begins new rounds")
)

func TestMain(m *testing.M) {
	os.Unsetenv("GOGC") // the memory limits assume the default settings of Go's garbage collector
	os.Exit(m.Run())
}

// TestShortCampaign plays a short version of the campaign of `make soak`, by default one round, and
// verifies that no promise is broken.
func TestShortCampaign(t *testing.T) {
	o := Defaults()
	o.Bin, o.Dir = programs(t), filepath.Join(t.TempDir(), "soak")
	o.For, o.Seed, o.Nodes = *rounds, *seed, 12
	// The limits are generous, so that the cluster also reaches rest on a slow machine.
	o.Storm, o.Rest, o.Silence = 10*time.Second, 5*time.Minute, 6*time.Second
	o.Disk = false // the time until etcd fills the disk depends on the machine
	var out strings.Builder
	o.Out = &out
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	r.Print(&out)
	t.Log(&out)
	if len(r.Violations) > 0 {
		t.Errorf("%d promises were broken", len(r.Violations))
	}
	if r.Rounds == 0 {
		t.Error("no round came to its end")
	}
	for _, promise := range []string{boundOnce, roomKept, comesToRest, bounded, cleanEnd} {
		if r.Checks[promise] == 0 {
			t.Errorf("never checked: %s", promise)
		}
	}
}

// programs builds the binaries under test, and returns their folder.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := binaries.BuildIn(t.TempDir(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
