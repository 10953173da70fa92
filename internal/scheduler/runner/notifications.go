// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package runner

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cycle"
)

// delayedNotifications withholds the notifications of a new core until it takes over, because the
// previous core still notifies the observers. Counts are accumulated and reported in flush. It
// belongs to the owner.
type delayedNotifications struct {
	cycle.Observer
	observer cycle.Observer
	rejected map[[2]string]int // by plugin and profile
	objects  *shownLater
}

// shownLater drops the objects of a new core until it takes over, because the previous core has
// passed them on.
type shownLater struct {
	cycle.Objects               // NoObjects until the core takes over
	objects       cycle.Objects // keep the objects shown so far
}

// Shown implements cycle.Objects.
func (s *shownLater) Shown(uid types.UID) *v1.Pod { return s.objects.Shown(uid) }

// delayNotifications wraps Observer and Objects in the options of a new core, unless they are nil.
func delayNotifications(o *cycle.Options) *delayedNotifications {
	t := &delayedNotifications{}
	if o.Observer != nil {
		t.Observer, t.observer, t.rejected = cycle.NoObserver{}, o.Observer, map[[2]string]int{}
		o.Observer = t
	}
	if o.Objects != nil {
		t.objects = &shownLater{cycle.NoObjects{}, o.Objects}
		o.Objects = t.objects
	}
	return t
}

// flush is called when the core takes over. It reports the accumulated counts; later notifications
// and objects are passed on immediately.
func (t *delayedNotifications) flush() {
	if t.objects != nil {
		t.objects.Objects = t.objects.objects
	}
	if t.observer == nil {
		return
	}
	t.Observer = t.observer
	for of, count := range t.rejected {
		t.observer.Rejected(of[0], of[1], count)
	}
	t.rejected = nil
}

// Rejected implements cycle.Observer.
func (t *delayedNotifications) Rejected(plugin, profile string, delta int) {
	if t.rejected != nil {
		t.rejected[[2]string{plugin, profile}] += delta
		return
	}
	t.Observer.Rejected(plugin, profile, delta)
}
