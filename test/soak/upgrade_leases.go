// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// leasesOf lists the leader election Leases of schedulers and controllers.
var leasesOf = []string{"kube-scheduler", "berth-controller"}

// leases observes the leaders, and the times without one.
type leases struct {
	mu      sync.Mutex // guards the fields below
	held    map[string]*leaseSeen
	changes []leaseChange
}

type leaseSeen struct {
	holder string
	until  time.Time // time of its last observed renewal or release
}

// leaseChange is a Lease acquired by another holder.
type leaseChange struct {
	lease    string
	at       time.Time
	without  time.Duration // time since the previous holder released or last renewed the Lease
	released bool          // whether the previous holder released the Lease
}

// watchLeases follows the Leases until the context ends.
func (l *leases) watchLeases(ctx context.Context, client kubernetes.Interface) {
	for ctx.Err() == nil {
		w, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			sleepFor(ctx, 100*time.Millisecond)
			continue
		}
		for event := range w.ResultChan() {
			if lease, ok := event.Object.(*coordinationv1.Lease); ok && slices.Contains(leasesOf, lease.Name) {
				holder := ""
				if lease.Spec.HolderIdentity != nil {
					holder = *lease.Spec.HolderIdentity
				}
				l.noteHolder(lease.Name, holder, time.Now())
			}
		}
	}
}

func (l *leases) noteHolder(name, holder string, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.held[name]
	if before == nil {
		if l.held == nil {
			l.held = map[string]*leaseSeen{}
		}
		before = &leaseSeen{holder: holder, until: now}
		l.held[name] = before
	}
	switch {
	case holder == before.holder && holder == "":
		return // no leader yet
	case holder != before.holder && holder != "":
		l.changes = append(l.changes, leaseChange{name, now, now.Sub(before.until), before.holder == ""})
	}
	before.holder, before.until = holder, now
}

// freeLeases returns the Leases without a holder.
func (l *leases) freeLeases() (free []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range leasesOf {
		if held := l.held[name]; held == nil || held.holder == "" {
			free = append(free, "nobody holds the Lease "+name)
		}
	}
	return free
}

// longest returns the longest time without a holder among the changes since the given time.
func (l *leases) longest(since time.Time) (longest time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, change := range l.changes {
		if !change.at.Before(since) {
			longest = max(longest, change.without)
		}
	}
	return longest
}
