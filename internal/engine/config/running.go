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

// leadsFor is how long a leader counts as such after it has renewed its Lease: more than any lease
// duration in use (the default is 15 s), and clocks may differ.
const leadsFor = time.Minute

// Running is what the schedulers of a cluster decide by, as far as it is known. A command that
// predicts decisions uses it, and shows Assumed beside its answer.
type Running struct {
	Profiles []*plugins.Profile
	// Groups are the features of pod groups that are on; nil if no scheduler has told.
	Groups *groups.Gates
	// Assumed says what no running scheduler has told, in a sentence; "" if every profile is one
	// that runs.
	Assumed string
	// Ignored lists Leases with a scheduler's configuration in namespaces that are not trusted.
	Ignored []string
}

// RunningOf returns the configuration of a cluster: what told says, which a scheduler answered that
// was asked, or nil, and what schedulers have written on their Leases. What was told comes first:
// of two that serve a name, the first counts. For default-scheduler the default profile is assumed
// if none of them serves it and either kube-scheduler leads, which tells nothing, or none was
// asked: a kube-scheduler need not elect a leader.
//
// Only trusted Leases count, as NAMESPACE or NAMESPACE/NAME: anyone with edit permissions in a
// namespace can create a Lease there, and by its profiles pods of other namespaces would be moved.
func RunningOf(told *InUse, leases []*coordinationv1.Lease, trusted []string, now time.Time) (*Running, error) {
	r := &Running{}
	leases, r.Ignored = trustedLeases(leases, trusted)
	var assumed []string
	// The endpoint's answer is newer than any Lease, and complete.
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
			continue // what runs goes before what has run
		}
		// One Lease that cannot be read should not keep the answer from the others.
		if r.addProfiles(word.InUse) != nil {
			continue // of a version of Berth whose configurations this one cannot read
		}
		if word.ended {
			assumed = append(assumed, fmt.Sprintf("the scheduler by the Lease %s, which has not been renewed since "+
				"%s, would go on with its configuration", word.name, word.at.UTC().Format("2006-01-02 15:04:05Z")))
		}
		assumed = append(assumed, word.leftOut()...)
	}
	// kube-scheduler tells nothing. Where it does not lead and Berth was asked, nothing is assumed:
	// nobody serves the name then.
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

// trustedLeases returns the trusted Leases, and the names of those of the remaining ones that carry
// a configuration.
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

// addProfiles adds the profiles of a scheduler, except those whose names others serve already.
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
	// The first that tells of gates counts, as with profiles.
	if r.Groups == nil {
		r.Groups = &u.Groups
	}
	return nil
}

// servesName reports whether one of the profiles found so far serves the name.
func (r *Running) servesName(name string) bool {
	return slices.ContainsFunc(r.Profiles, func(p *plugins.Profile) bool { return p.SchedulerName == name })
}

// leftOut is the assumption about the plugins and extenders that cannot be asked; nil if there are
// none.
func (u *InUse) leftOut() []string {
	if len(u.Outside) == 0 {
		return nil
	}
	return []string{strings.Join(u.Outside, ", ") + ", which cannot be asked, would change nothing"}
}

// word is what a Lease says about a scheduler.
type word struct {
	*InUse        // nil: of kube-scheduler, or of a version of Berth that tells nothing
	name   string // the Lease's
	holder string // if it tells nothing, why
	at     time.Time
	ended  bool // nobody has renewed the Lease for long
}

// wordsOf are those of the Leases by which schedulers are elected, of running ones first. Leases of
// nodes are skipped, of which there are thousands. A document counts only if its author holds the
// Lease, or nobody does: otherwise another scheduler has taken over.
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
		// A leader that stops in good order releases its Lease, and leaves the document on it.
		w.ended = holder == "" || now.Sub(w.at) > leadsFor
		switch {
		case w.InUse != nil && (holder == "" || w.Holder == holder):
			list = append(list, w)
		// kube-scheduler's own Lease. Berth may hold it, too, and then tells.
		case !w.ended && l.Namespace == metav1.NamespaceSystem && l.Name == configv1.SchedulerDefaultLockObjectName:
			w.InUse, w.holder = nil, fmt.Sprintf("%s, which leads by the Lease %s, does not tell it", holder, w.name)
			list = append(list, w)
		}
	}

	// By name among equals, so that the same Leases give the same answer in any order.
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
