// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

// Package flagparity compares the flags, feature gates, metrics and z-pages of Berth and of the
// replaced components.
package flagparity

import (
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"

	"github.com/berth-k8s/berth/scheduler"
)

// TestEveryFlagOfKubeSchedulerIsTaken verifies that Berth's scheduler has every flag of
// kube-scheduler, with the same shorthand and, except for the listed differences, the same default.
func TestEveryFlagOfKubeSchedulerIsTaken(t *testing.T) {
	berth := scheduler.NewCommand().Flags()
	differ := map[string]bool{ // intended differences: see docs/tasks/scheduler.md
		"kube-api-qps": true, "kube-api-burst": true, "contention-profiling": true,
	}
	n := 0
	app.NewSchedulerCommand().Flags().VisitAll(func(theirs *pflag.Flag) {
		n++
		switch ours := berth.Lookup(theirs.Name); {
		case theirs.Name == "help" || theirs.Name == "version":
		case ours == nil:
			t.Errorf("--%s is not taken", theirs.Name)
		case ours.NoOptDefVal != theirs.NoOptDefVal:
			t.Errorf("--%s alone means %q, and %q to kube-scheduler", theirs.Name, ours.NoOptDefVal, theirs.NoOptDefVal)
		case !ours.Hidden && !differ[theirs.Name] && ours.DefValue != theirs.DefValue:
			t.Errorf("--%s is %q by default, %q with kube-scheduler", theirs.Name, ours.DefValue, theirs.DefValue)
		case ours.Shorthand != theirs.Shorthand:
			t.Errorf("--%s: shorthand %q, and %q with kube-scheduler", theirs.Name, ours.Shorthand, theirs.Shorthand)
		}
	})
	if n < 50 {
		t.Errorf("kube-scheduler has only %d flags: are these all?", n)
	}
}
