package soak

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Options of a campaign.
type Options struct {
	Bin   string        // folder of berth and berth-controlplane
	Dir   string        // where the cluster and the logs are kept; it must be empty or missing
	For   time.Duration // rounds are begun until then, one at least
	Seed  uint64
	Nodes int
	// Storm is how long faults go on in a round; Rest bounds the way from their end to rest.
	Storm, Rest time.Duration
	// Disk is whether the disk of etcd may run full, where a file system of its own can be mounted.
	Disk bool
	// Silence is how long a node may give no sign of life.
	Silence time.Duration
	// First ends the campaign at the first violation.
	First bool
	Out   io.Writer
}

// Defaults are those of the command.
func Defaults() Options {
	return Options{For: time.Hour, Seed: 1, Nodes: 50, Storm: time.Minute, Rest: 4 * time.Minute, Disk: true,
		Silence: 16 * time.Second, Out: os.Stdout}
}

// Validate says what is wrong, by flag.
func (o *Options) Validate() error {
	switch {
	case o.For <= 0:
		return fmt.Errorf("--for %s: must be more than 0", o.For)
	case o.Nodes < 3:
		return fmt.Errorf("--nodes %d: must be 3 or more", o.Nodes)
	case o.Storm <= 0 || o.Rest <= 0:
		return fmt.Errorf("--storm %s and --rest %s: must be more than 0", o.Storm, o.Rest)
	}

	if o.Silence < 5*time.Second {
		return fmt.Errorf("--silence %s: must be 5s or more", o.Silence)
	}
	for _, name := range []string{"berth", "berth-controlplane"} {
		if _, err := os.Stat(filepath.Join(o.Bin, name)); err != nil {
			return fmt.Errorf("--bin: %w: run `make build`, or name the folder", err)
		}
	}

	if left, err := os.ReadDir(o.Dir); err == nil && len(left) > 0 {
		return fmt.Errorf("--dir %s: is not empty: name another", o.Dir)
	}
	return nil
}

// election is how leaders are elected. The words are those of the flags.
type election struct{ leaseDuration, renewDeadline, retryPeriod time.Duration }

var (
	quick = election{8 * time.Second, 5 * time.Second, time.Second} // so that a round takes minutes
	usual = election{15 * time.Second, 10 * time.Second, 2 * time.Second}
)

// lostFor is for how many seconds pods stay on nodes that are lost, so that a round takes minutes.
const lostFor = 8

// How long what is done to a part lasts at most. What is longer than the Lease makes leaders
// change.
const (
	longestTrouble = 14 * time.Second
	longestOutage  = 6 * time.Second // of the API server, asleep
	longestDelay   = 3 * time.Second // of a request
)
