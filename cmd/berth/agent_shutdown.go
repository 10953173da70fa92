//go:build linux

package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-k8s/berth/internal/node/agent"
	"github.com/berth-k8s/berth/internal/node/agent/shutdown"
)

// shutdownFlags are the kubelet's fields of a graceful shutdown of the machine.
type shutdownFlags struct {
	all, critical time.Duration
	byPriority    string
}

func (f *shutdownFlags) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&f.all, "shutdown-grace-period", 0, "how long to delay a shutdown of the machine so that pods can end; 0 disables graceful shutdown")
	flags.DurationVar(&f.critical, "shutdown-grace-period-critical-pods", 0, "share of --shutdown-grace-period kept for critical pods, which end last")
	flags.StringVar(&f.byPriority, "shutdown-grace-period-by-pod-priority", "", "grace periods by pod priority, as 0=30s,100000=10s; replaces the two flags above")
}

func (f *shutdownFlags) periods() (shutdown.Periods, error) {
	if f.byPriority == "" {
		periods, err := shutdown.TwoPeriods(f.all, f.critical)
		if err != nil {
			return nil, usagef("--shutdown-grace-period: %v", err)
		}
		return periods, nil
	}
	if f.all != 0 || f.critical != 0 {
		return nil, usagef("--shutdown-grace-period-by-pod-priority: must not be given beside --shutdown-grace-period")
	}
	periods, err := shutdown.Parse(f.byPriority)
	if err != nil {
		return nil, usagef("--shutdown-grace-period-by-pod-priority: %v", err)
	}
	return periods, nil
}

// endBySignal stops the agent at the first signal. SIGTERM may be the machine's shutdown, for which
// pods end first; a second signal does not wait for them.
func endBySignal(ctx context.Context, stop func(), running *atomic.Pointer[agent.Agent]) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)
	defer stop()
	select {
	case <-ctx.Done():
		return
	case first := <-signals:
		a := running.Load()
		if first != syscall.SIGTERM || a == nil {
			return
		}
		ended := make(chan struct{})
		go func() { a.Terminate(ctx); close(ended) }()
		select {
		case <-ended:
		case <-signals:
		case <-ctx.Done():
		}
	}
}
