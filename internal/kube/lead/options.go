// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package lead

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Options configures the election. If Elect is false, the other fields are ignored.
type Options struct {
	Elect                                     bool
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	Namespace, Name                           string // of the Lease
	// Identity is the holder of the Lease. If it is empty, each process has an identity of its own.
	Identity string
}

// Defaults returns upstream's defaults, with a Lease of the given name in kube-system.
func Defaults(name string) Options {
	return Options{
		Elect:         true,
		LeaseDuration: 15 * time.Second,
		RenewDeadline: 10 * time.Second,
		RetryPeriod:   2 * time.Second,
		Namespace:     "kube-system",
		Name:          name,
	}
}

// Within returns the identity of the leader as the holder of further Leases. All leaders share it,
// so that a new leader does not wait until these Leases expire as well: the previous leader may no
// longer write (Guard). It is empty without election.
func (o *Options) Within() string {
	if !o.Elect {
		return ""
	}
	return "leader of " + o.Namespace + "/" + o.Name
}

// AddFlags adds upstream's flags, with o as defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.Elect, "leader-elect", o.Elect, "elect a leader among the replicas, with a Lease")
	flags.DurationVar(&o.LeaseDuration, "leader-elect-lease-duration", o.LeaseDuration,
		"how long after a leader's last renewal another replica may take over")
	flags.DurationVar(&o.RenewDeadline, "leader-elect-renew-deadline", o.RenewDeadline,
		"how long a leader retries a renewal before it steps down")
	flags.DurationVar(&o.RetryPeriod, "leader-elect-retry-period", o.RetryPeriod, "time between attempts to acquire or to renew the Lease")
	flags.StringVar(&o.Name, "leader-elect-resource-name", o.Name, "name of the Lease")
	flags.StringVar(&o.Namespace, "leader-elect-resource-namespace", o.Namespace, "namespace of the Lease")
}

// jitter is the factor by which client-go may extend the retry period
// (leaderelection.JitterFactor). Validate checks it because client-go's error does not name the
// flags.
const jitter = 1.2

// Validate returns an error that names the invalid flag.
func (o *Options) Validate() error {
	switch {
	case !o.Elect:
		return nil
	case o.LeaseDuration < time.Second:
		return fmt.Errorf("--leader-elect-lease-duration %v: must be 1s or more: a Lease counts in whole seconds", o.LeaseDuration)
	case o.RenewDeadline <= 0:
		return fmt.Errorf("--leader-elect-renew-deadline %v: must be greater than zero", o.RenewDeadline)
	case o.RetryPeriod <= 0:
		return fmt.Errorf("--leader-elect-retry-period %v: must be greater than zero", o.RetryPeriod)
	case o.LeaseDuration <= o.RenewDeadline:
		return fmt.Errorf("--leader-elect-lease-duration %v: must be greater than --leader-elect-renew-deadline %v",
			o.LeaseDuration, o.RenewDeadline)
	case o.RenewDeadline <= time.Duration(jitter*float64(o.RetryPeriod)):
		return fmt.Errorf("--leader-elect-renew-deadline %v: must be greater than %v times "+
			"--leader-elect-retry-period %v", o.RenewDeadline, jitter, o.RetryPeriod)
	case o.Name == "" || o.Namespace == "":
		return fmt.Errorf("--leader-elect-resource-name and --leader-elect-resource-namespace: must not be empty")
	}
	return nil
}

// good is the time for which the replica may work after a renewal. It ends when the next renewal
// has failed for the renew deadline, but early enough that the work can end before another replica
// may lead.
//
// With the defaults: min(2 s + 10 s, (10 s + 15 s) / 2) = 12 s, which leaves the work 3 s to end.
func (o *Options) good() time.Duration {
	return min(o.RetryPeriod+o.RenewDeadline, (o.RenewDeadline+o.LeaseDuration)/2)
}
