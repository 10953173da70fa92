package soak

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var (
	seed   = flag.Uint64("soak-seed", 1, "seed of TestShortCampaign")
	rounds = flag.Duration("soak", time.Second, "how long TestShortCampaign begins new rounds")
)

// TestShortCampaign is one round of what `make soak` plays for an hour.
func TestShortCampaign(t *testing.T) {
	o := Defaults()
	o.Bin, o.Dir = binaries(t), filepath.Join(t.TempDir(), "soak")
	o.For, o.Seed, o.Nodes = *rounds, *seed, 12
	// Bounds are generous: what is asked is that the cluster comes to rest, not how soon a busy
	// machine lets it.
	o.Storm, o.Rest, o.Silence = 10*time.Second, 5*time.Minute, 6*time.Second
	o.Disk = false // whether etcd comes to the end of it within seconds depends on the machine
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

// binaries are those of BERTH_BIN, or built.
func binaries(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("BERTH_BIN"); dir != "" {
		return dir
	}
	dir := t.TempDir()
	for _, b := range [][]string{{"../..", "./cmd/berth"}, {"../../controlplane", "./cmd/berth-controlplane"}} {
		if out, err := exec.Command("go", "build", "-C", b[0], "-o", dir+"/", b[1]).CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", b[1], err, out)
		}
	}
	return dir
}
