// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// leadsFor returns the time after a renewal for which the holder of a Lease counts as leader. It is
// twice the duration of the Lease (15 s by default), and at least 30 s, because clocks may differ.
func leadsFor(l *coordinationv1.Lease) time.Duration {
	return max(30*time.Second, 2*time.Second*time.Duration(ptr.Deref(l.Spec.LeaseDurationSeconds, 0)))
}

// HolderOf returns the leader according to a Lease, or "" if the Lease was released or is no longer
// renewed.
func HolderOf(l *coordinationv1.Lease, now time.Time) string {
	if l.Spec.RenewTime == nil || now.Sub(l.Spec.RenewTime.Time) > leadsFor(l) {
		return ""
	}
	return ptr.Deref(l.Spec.HolderIdentity, "")
}

// Running is the known configuration of a cluster's schedulers. A command that predicts decisions
// uses it, and prints Assumed with its result.
type Running struct {
	Profiles []*plugins.Profile
	// Groups holds the enabled features of pod groups; nil if unknown.
	Groups *groups.Gates
	// Assumed describes in a sentence the parts not reported by a running scheduler; empty if
	// running schedulers reported every profile.
	Assumed string
	// Ignored lists Leases with a scheduler's configuration in namespaces that are not trusted.
	Ignored []string
	Stopped []Stopped
}

// Stopped is a scheduler that no longer runs, according to the Lease of its leader election.
type Stopped struct {
	// Names are its scheduler names not served by a running scheduler.
	Names []string `json:"names"`
	Lease string   `json:"lease"` // as namespace/name
	// Holder is the last holder, which renewed the Lease at Since; empty if the Lease was released
	// at that time.
	Holder string      `json:"holder,omitempty"`
	Since  metav1.Time `json:"since"`
}

// String returns the names and the evidence.
func (s *Stopped) String() string {
	how, since := fmt.Sprintf("the Lease %s was released at", s.Lease), s.Since.UTC().Format("2006-01-02 15:04:05Z")
	if s.Holder != "" {
		how = fmt.Sprintf("%s has not renewed the Lease %s since", s.Holder, s.Lease)
	}
	return fmt.Sprintf("no scheduler is running for %s: %s %s", strings.Join(s.Names, ", "), how, since)
}

// StoppedOf returns the schedulers of trusted Leases released or no longer renewed. inUse is the
// configuration of a running scheduler, or nil. It omits names served by that scheduler or by the
// leader of another Lease. Schedulers without a Lease are not reported, because schedulers need not
// elect a leader.
func StoppedOf(inUse *InUse, leases []*coordinationv1.Lease, trusted []string, now time.Time) (list []Stopped) {
	leases, _ = trustedLeases(leases, trusted)
	words := wordsOf(leases, now)
	var served []string
	if inUse != nil {
		served = inUse.names()
	}
	for _, w := range words {
		if !w.ended {
			served = append(served, w.names()...)
		}
	}

	// A name may have moved to another Lease: the most recently renewed Lease counts.
	slices.SortStableFunc(words, func(a, b word) int { return b.at.Compare(a.at) })
	for _, w := range words {
		names := slices.DeleteFunc(w.names(), func(name string) bool { return slices.Contains(served, name) })
		if w.ended && len(names) > 0 {
			list = append(list, Stopped{names, w.name, w.holder, metav1.NewTime(w.at)})
			served = append(served, names...)
		}
	}
	return list
}

// RunningOf returns the configuration of a cluster from the documents on schedulers' Leases and
// from inUse, the response of a scheduler's endpoint, or nil. inUse takes precedence, because the
// first of several profiles for a name counts. If default-scheduler is still unserved, the default
// profile is assumed for it in two cases: if a kube-scheduler leads, because kube-scheduler
// publishes no document; and if inUse is nil, because a kube-scheduler may run without leader
// election.
//
// Only Leases in trusted (NAMESPACE or NAMESPACE/NAME) count: anyone with edit permissions in a
// namespace can create a Lease there, and its profiles would affect pods of other namespaces.
func RunningOf(inUse *InUse, leases []*coordinationv1.Lease, trusted []string, now time.Time) (*Running, error) {
	r := &Running{Stopped: StoppedOf(inUse, leases, trusted, now)}
	leases, r.Ignored = trustedLeases(leases, trusted)
	var assumed []string
	// The endpoint's response is newer than any Lease, and complete.
	if inUse != nil {
		if err := r.addProfiles(inUse); err != nil {
			return nil, err
		}
		assumed = append(assumed, inUse.leftOut()...)
	}
	silent := ""
	for _, word := range wordsOf(leases, now) {
		switch {
		case word.InUse == nil:
			if !word.ended && (inUse == nil || inUse.Holder != word.holder) {
				silent = fmt.Sprintf("kube-scheduler, which leads by the Lease %s as %s,", word.name, word.holder)
			}
			continue
		case word.ended && len(r.Profiles) > 0:
			continue // running schedulers take precedence over ended schedulers
		}
		// An unreadable document must not suppress the documents on other Leases.
		if r.addProfiles(word.InUse) != nil {
			continue // written by a version of Berth with configurations that this version cannot read
		}
		if word.ended {
			assumed = append(assumed, fmt.Sprintf("the scheduler of the Lease %s, which no longer runs, would continue with its "+
				"configuration", word.name))
		}
		assumed = append(assumed, word.leftOut()...)
	}
	// kube-scheduler publishes no document. If it does not lead and Berth has responded, the name
	// is unserved and no profile is assumed.
	switch served := r.servesName(v1.DefaultSchedulerName); {
	case served && silent != "":
		assumed = append(assumed, silent+" decides by the same configuration as Berth")
	case !served && (inUse == nil || silent != ""):
		c, err := Default(Options{CompareTolerations: true})
		if err != nil {
			return nil, err
		}
		r.Profiles = append(r.Profiles, c.Profiles...)
		because := "no scheduler of this name could be asked"
		if silent != "" {
			because = silent + " does not publish it"
		}
		assumed = append(assumed, fmt.Sprintf("%s runs with the default configuration, because %s "+
			"(--config names another)", v1.DefaultSchedulerName, because))
	}
	if len(assumed) > 0 {
		r.Assumed = "Assumed: " + strings.Join(assumed, "; ") + "."
	}
	return r, nil
}

// trustedLeases returns the trusted Leases, and the names of untrusted Leases with a configuration.
func trustedLeases(leases []*coordinationv1.Lease, trusted []string) (of []*coordinationv1.Lease, ignored []string) {
	for _, l := range leases {
		name := l.Namespace + "/" + l.Name
		if slices.Contains(trusted, l.Namespace) || slices.Contains(trusted, name) {
			of = append(of, l)
		} else if l.Annotations[InUseAnnotation] != "" {
			ignored = append(ignored, name)
		}
	}
	slices.Sort(ignored)
	return of, ignored
}

// addProfiles adds the profiles of a scheduler, except for names already served.
func (r *Running) addProfiles(u *InUse) error {
	profiles, err := u.compileProfiles()
	if err != nil {
		return err
	}
	for _, p := range profiles {
		if !r.servesName(p.SchedulerName) {
			r.Profiles = append(r.Profiles, p)
		}
	}
	// The first document with gates counts, as with profiles.
	r.Groups = cmp.Or(r.Groups, &u.Groups)
	return nil
}

// servesName reports whether one of the profiles found so far serves the name.
func (r *Running) servesName(name string) bool {
	return slices.ContainsFunc(r.Profiles, func(p *plugins.Profile) bool { return p.SchedulerName == name })
}

// leftOut returns the assumption about plugins and extenders that cannot be called, or nil if there
// are none.
func (u *InUse) leftOut() []string {
	if len(u.Outside) == 0 {
		return nil
	}
	return []string{strings.Join(u.Outside, ", ") + ", which cannot be called, would change nothing"}
}

// word holds the information about a scheduler on a Lease.
type word struct {
	*InUse        // nil: a kube-scheduler, or a version of Berth that publishes nothing
	name   string // name of the Lease
	holder string // "" if it was released
	at     time.Time
	ended  bool // the Lease has not been renewed for long
}

// names returns the served scheduler names: the names in the document, or the name of
// kube-scheduler.
func (w *word) names() []string {
	if w.InUse == nil {
		return []string{v1.DefaultSchedulerName}
	}
	return w.InUse.names()
}

// wordsOf returns the information on the Leases used for electing schedulers, running schedulers
// first. It skips the thousands of Leases of nodes. A document counts only if its author holds the
// Lease, or the Lease has no holder: otherwise another scheduler has taken over.
func wordsOf(leases []*coordinationv1.Lease, now time.Time) (list []word) {
	for _, l := range leases {
		// A Lease that was never renewed has never been held.
		if l.Namespace == v1.NamespaceNodeLease || l.Spec.RenewTime == nil {
			continue
		}
		w := word{name: l.Namespace + "/" + l.Name, holder: ptr.Deref(l.Spec.HolderIdentity, ""), at: l.Spec.RenewTime.Time,
			// A leader shutting down cleanly releases its Lease, and leaves the document on it.
			ended: HolderOf(l, now) == "", InUse: ReadInUse([]byte(l.Annotations[InUseAnnotation]))}
		switch {
		case w.InUse != nil && (w.holder == "" || w.Holder == w.holder):
			list = append(list, w)
		// The default Lease of kube-scheduler. Berth may hold it as well, and then publishes a
		// document.
		case l.Namespace == metav1.NamespaceSystem && l.Name == configv1.SchedulerDefaultLockObjectName:
			w.InUse = nil
			list = append(list, w)
		}
	}

	// Equal entries are sorted by name, so that the result does not depend on the order of the
	// Leases.
	slices.SortStableFunc(list, func(a, b word) int {
		switch {
		case a.ended == b.ended:
			return cmp.Compare(a.name, b.name)
		case a.ended:
			return 1
		}
		return -1
	})

	return list
}
