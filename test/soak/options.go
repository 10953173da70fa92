// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

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
	Dir   string        // folder of the cluster and the logs; must be empty or missing
	For   time.Duration // no round begins after this time, except the first
	Seed  uint64
	Nodes int
	// Storm is the duration of the faults in a round. Rest limits the time from the end of the
	// faults until the cluster is at rest.
	Storm, Rest time.Duration
	// Disk lets the disk of etcd run full, if a separate file system can be mounted.
	Disk bool
	// Silence is the maximum time without a heartbeat before a node must be tainted.
	Silence time.Duration
	// Faults injects the faults of package virtual into one replica of each component, and into
	// `berth drain`, and injects no others.
	Faults bool
	// First ends the campaign at the first violation.
	First bool
	Out   io.Writer
}

// Defaults returns the command's defaults.
func Defaults() Options {
	return Options{For: time.Hour, Seed: 1, Nodes: 50, Storm: time.Minute, Rest: 4 * time.Minute, Disk: true,
		Silence: 16 * time.Second, Out: os.Stdout}
}

// Validate returns an error that names the flag of an invalid option.
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

// election configures leader election, in the terms of the flags.
type election struct{ leaseDuration, renewDeadline, retryPeriod time.Duration }

var (
	quick = election{8 * time.Second, 5 * time.Second, time.Second} // short, so that a round takes minutes
	usual = election{15 * time.Second, 10 * time.Second, 2 * time.Second}
)

// lostFor is the default toleration for not-ready and unreachable nodes, in seconds. It is short,
// so that a round takes minutes.
const lostFor = 8

// Maximum durations of faults of a part. Faults longer than the duration of the Lease cause a
// change of leader.
const (
	longestTrouble = 14 * time.Second
	longestOutage  = 6 * time.Second // maximum suspension of the API server
	longestDelay   = 3 * time.Second // maximum delay of a request
)
