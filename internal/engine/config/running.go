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

	"github.com/berth-k8s/berth/internal/engine/groups"
	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// leadsFor is the time after the last renewal of its Lease during which a leader counts as such:
// more than any lease duration in use (the default is 15 s), and clocks may differ.
const leadsFor = time.Minute

// Running is the known configuration of a cluster's schedulers. A command predicting decisions uses
// it, and shows Assumed with its result.
type Running struct {
	Profiles []*plugins.Profile
	// Groups holds the enabled features of pod groups; nil if unknown.
	Groups *groups.Gates
	// Assumed describes the parts not reported by a running scheduler, in a sentence; empty if
	// every profile is a running scheduler's.
	Assumed string
	// Ignored lists Leases with a scheduler's configuration in namespaces that are not trusted.
	Ignored []string
}

// RunningOf returns the configuration of a cluster from told, the response of a scheduler's
// endpoint, or nil, and from the documents on schedulers' Leases. told takes precedence: of two
// profiles for a name, the first counts. The default profile is assumed for default-scheduler if
// the name is still unserved and either kube-scheduler leads, which publishes nothing, or told is
// nil: a kube-scheduler need not elect a leader.
//
// Only trusted Leases count, as NAMESPACE or NAMESPACE/NAME: anyone with edit permissions in a
// namespace can create a Lease there, and its profiles would move pods of other namespaces.
func RunningOf(told *InUse, leases []*coordinationv1.Lease, trusted []string, now time.Time) (*Running, error) {
	r := &Running{}
	leases, r.Ignored = trustedLeases(leases, trusted)
	var assumed []string
	// The endpoint's response is newer than any Lease, and complete.
	if told != nil {
		if err := r.addProfiles(told); err != nil {
			return nil, err
		}
		assumed = append(assumed, told.leftOut()...)
	}
	silent := ""
	for _, word := range wordsOf(leases, now) {
		switch {
		case word.InUse == nil:
			silent = word.holder
			continue
		case word.ended && len(r.Profiles) > 0:
			continue // running schedulers take precedence over ended ones
		}
		// One unreadable Lease must not suppress the remaining ones.
		if r.addProfiles(word.InUse) != nil {
			continue // written by a version of Berth with configurations unreadable to this one
		}
		if word.ended {
			assumed = append(assumed, fmt.Sprintf("the scheduler by the Lease %s, which has not been renewed since "+
				"%s, would go on with its configuration", word.name, word.at.UTC().Format("2006-01-02 15:04:05Z")))
		}
		assumed = append(assumed, word.leftOut()...)
	}
	// kube-scheduler publishes nothing. If it does not lead and Berth has responded, no profile is
	// assumed: the name is unserved then.
	if (told == nil || silent != "") && !r.servesName(v1.DefaultSchedulerName) {
		c, err := Default(Options{CompareTolerations: true})
		if err != nil {
			return nil, err
		}
		r.Profiles = append(r.Profiles, c.Profiles...)
		assumed = append(assumed, fmt.Sprintf("%s runs with the default configuration, because %s "+
			"(--config names another)", v1.DefaultSchedulerName,
			cmp.Or(silent, "no scheduler of this name could be asked")))
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
	if r.Groups == nil {
		r.Groups = &u.Groups
	}
	return nil
}

// servesName reports whether one of the profiles found so far serves the name.
func (r *Running) servesName(name string) bool {
	return slices.ContainsFunc(r.Profiles, func(p *plugins.Profile) bool { return p.SchedulerName == name })
}

// leftOut returns the assumption about the plugins and extenders that cannot be called; nil without
// any.
func (u *InUse) leftOut() []string {
	if len(u.Outside) == 0 {
		return nil
	}
	return []string{strings.Join(u.Outside, ", ") + ", which cannot be asked, would change nothing"}
}

// word holds the information about a scheduler on a Lease.
type word struct {
	*InUse        // nil: a kube-scheduler, or a version of Berth that publishes nothing
	name   string // the Lease's
	holder string // the reason for publishing nothing
	at     time.Time
	ended  bool // the Lease has not been renewed for long
}

// wordsOf returns the information on the Leases used for electing schedulers, running ones first.
// It skips the thousands of Leases of nodes. A document counts only if its author holds the Lease,
// or the Lease has no holder: otherwise another scheduler has taken over.
func wordsOf(leases []*coordinationv1.Lease, now time.Time) (list []word) {
	for _, l := range leases {
		// A Lease that was never renewed has never been held.
		if l.Namespace == v1.NamespaceNodeLease || l.Spec.RenewTime == nil {
			continue
		}
		holder := ""
		if l.Spec.HolderIdentity != nil {
			holder = *l.Spec.HolderIdentity
		}
		w := word{name: l.Namespace + "/" + l.Name, at: l.Spec.RenewTime.Time, InUse: ReadInUse([]byte(l.Annotations[InUseAnnotation]))}
		// A leader shutting down cleanly releases its Lease, and leaves the document on it.
		w.ended = holder == "" || now.Sub(w.at) > leadsFor
		switch {
		case w.InUse != nil && (holder == "" || w.Holder == holder):
			list = append(list, w)
		// kube-scheduler's own Lease. Berth may also hold it, and then publishes a document.
		case !w.ended && l.Namespace == metav1.NamespaceSystem && l.Name == configv1.SchedulerDefaultLockObjectName:
			w.InUse, w.holder = nil, fmt.Sprintf("%s, which leads by the Lease %s, does not tell it", holder, w.name)
			list = append(list, w)
		}
	}

	// Equal ones by name, so that the result does not depend on the order of the Leases.
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
