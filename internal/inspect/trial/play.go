// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/rules"
	"github.com/berth-k8s/berth/internal/pacing"
	"github.com/berth-k8s/berth/internal/world/agenda"
	"github.com/berth-k8s/berth/internal/world/claimcontrollers"
)

// Options configures the playing of a course.
type Options struct {
	// Profiles are in effect from the beginning. If nil, the journal's profiles are used, with
	// their recorded changes.
	Profiles []cycle.Profile
	// Recorded builds the profiles of a configuration from the journal.
	Recorded func(h journal.Header, configuration []byte) ([]cycle.Profile, error)
	// Known is the result of [Recall]. Without it, chance decides among the best nodes, so that two
	// courses differ randomly, and a victim takes its whole grace period to leave.
	Known Known
	// Progress, if set, is called with the elapsed time of the day.
	Progress func(passed time.Duration)
}

// day is a course in progress: the API server of a world in virtual time, with a core as its
// client. For each record of the journal, time advances to the time of the record. Work of the core
// and the agenda that is due before then runs first.
//
//	journal   what the API showed        -> takeEvent -> core   (as far as it still holds)
//	          outcomes of requests       left out
//	core actions -> carryOut -> core (succeed immediately)
type day struct {
	core        *cycle.Core
	controllers claimcontrollers.Controllers
	course      *Course
	now         time.Time
	agenda      agenda.Agenda

	pods     map[types.UID]*pod
	recalled Known
	// served holds the scheduler names served by the journal's scheduler.
	served map[string]bool
	// relists holds the lists in progress for kinds with objects specific to this world: an object
	// missing from a list has left the recorded cluster, but not necessarily this one.
	relists map[cycle.Kind]map[types.UID]metav1.Object
	known   map[cycle.Kind]map[types.UID]metav1.Object // objects in the journal
	// late holds the names (namespace/name) of claims that are bound to a volume only when a pod
	// using them is placed.
	late map[string]bool
	// spare counts, by controller, the recorded replacements to suppress, because the pods they
	// replace still exist in this course or have been replaced already.
	spare map[rules.Owner]int
}

// made lists the kinds whose objects differ between this course and the journal, because the
// scheduler's decisions change them.
var made = []cycle.Kind{cycle.Pods, cycle.Volumes, cycle.Claims, cycle.ResourceClaims}

// Play plays a journal to its end. With Options.Profiles, it ignores configurations loaded during
// the day. The reader is consumed.
func Play(r *journal.Reader, o Options) (*Course, error) {
	recorded, err := o.Recorded(r.Header, []byte(r.Header.Configuration))
	if err != nil {
		return nil, fmt.Errorf("configuration of the journal: %w", err)
	}

	profiles := o.Profiles
	if profiles == nil {
		profiles = recorded
	}

	options := journal.CoreOptions(r.Header, profiles)
	// Without this preference, choices among equal nodes would be random, and two courses would
	// differ everywhere.
	options.Prefer = func(p *cluster.Pod) string { return o.Known.nodes[p.UID()] }
	core, err := cycle.New(options)
	if err != nil {
		return nil, err
	}

	d := &day{
		core: core, known: map[cycle.Kind]map[types.UID]metav1.Object{}, recalled: o.Known,
		course: &Course{Pods: map[types.UID]*Fate{}, Unserved: map[string]int{}, Began: r.Header.Began,
			recordedPreempted: o.Known.preempted},
		now: r.Header.Began, pods: map[types.UID]*pod{},
		relists: map[cycle.Kind]map[types.UID]metav1.Object{},
		late:    map[string]bool{}, spare: map[rules.Owner]int{}, served: map[string]bool{},
	}

	for _, p := range recorded {
		d.served[p.SchedulerName] = true
	}
	for _, kind := range made {
		d.known[kind] = map[types.UID]metav1.Object{}
	}

	d.controllers = claimcontrollers.Controllers{
		Cluster: core.View().Cluster, Feed: d.feedEvent, Named: d.recordClaim, Now: func() metav1.Time { return metav1.NewTime(d.now) },
	}
	for {
		record, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		d.playUntil(record.At)
		if e, ok := record.Event.(cycle.Configured); ok {
			if o.Profiles != nil {
				continue
			}
			if e.Profiles, err = o.Recorded(r.Header, e.Source); err != nil {
				return nil, err
			}
			record.Event = e
		}
		d.takeEvent(record.Event)
		if o.Progress != nil {
			o.Progress(record.At.Sub(r.Header.Began))
		}
	}

	d.settleCore()
	// The rest of the course is the state after the last record.
	d.course.Ended = d.now
	for _, n := range d.core.View().Cluster.SortedNodes() {
		if slices.ContainsFunc(n.Pods, func(p *cluster.Pod) bool { return d.course.Pods[p.UID()] != nil }) {
			d.course.Nodes++
		}
	}
	return d.course, nil
}

// playUntil advances the time until at. It repeatedly lets the core settle, and then lets the next
// event happen: the end of one of the core's waits, or a call of the agenda.
func (d *day) playUntil(at time.Time) {
	for {
		d.settleCore()
		next := at
		if call, ok := d.agenda.Next(); ok && call.Before(next) {
			next = call
		}

		if due, ok := d.core.Due(); ok && due.Before(next) && due.After(d.now) {
			next = due
		}
		d.now = pacing.Later(next, d.now)

		d.agenda.RunUntil(d.now, nil)
		if !d.now.Before(at) {
			return
		}
	}
}

// settleCore lets the core decide at the current time until no pod can be tried.
func (d *day) settleCore() {
	for !d.core.Wake(d.now).After(d.now) {
		d.feedEvent(cycle.Tick{})
	}
}

// feedEvent passes an event to the core and carries out the resulting actions, which may call
// feedEvent again.
func (d *day) feedEvent(e cycle.Event) {
	for _, action := range slices.Clone(d.core.Step(d.now, e)) {
		d.carryOut(action)
	}
}

// showPod shows the core a pod of this world.
func (d *day) showPod(pod *v1.Pod) {
	d.feedEvent(cycle.Seen{Kind: cycle.Pods, Object: pod})
}

// takeEvent applies a recorded event, as far as it would have happened in this course.
func (d *day) takeEvent(e cycle.Event) {
	switch e := e.(type) {
	case cycle.Follows:
		kinds := slices.DeleteFunc(slices.Clone(e.Kinds), func(k cycle.Kind) bool { return slices.Contains(made, k) })
		d.feedEvent(cycle.Follows{Kinds: kinds})

	// Do not pass on lists of the kinds in made: removeUnlisted removes the objects missing from
	// them.
	case cycle.Listing:
		if d.known[e.Kind] != nil {
			d.relists[e.Kind] = map[types.UID]metav1.Object{}
			return
		}
		d.feedEvent(e)
	case cycle.Listed:
		if listed := d.relists[e.Kind]; listed != nil {
			delete(d.relists, e.Kind)
			d.removeUnlisted(e.Kind, listed)
			return
		}
		d.feedEvent(e)

	case cycle.Seen:
		if of := d.known[e.Kind]; of != nil {
			of[e.Object.GetUID()] = e.Object
			if list := d.relists[e.Kind]; list != nil {
				list[e.Object.GetUID()] = e.Object
			}
		}
		d.seeObject(e)
	case cycle.Gone:
		delete(d.known[e.Kind], e.Object.GetUID())
		d.loseObject(e)

	case cycle.Led, cycle.WallSet, cycle.Configured, cycle.Happened:
		d.feedEvent(e)
	}
}

// removeUnlisted removes the objects missing from a list, in a fixed order.
func (d *day) removeUnlisted(kind cycle.Kind, listed map[types.UID]metav1.Object) {
	for _, uid := range slices.Sorted(maps.Keys(d.known[kind])) {
		if listed[uid] == nil {
			last := d.known[kind][uid]
			delete(d.known[kind], uid)
			d.loseObject(cycle.Gone{Kind: kind, Object: last})
		}
	}
}

// seeObject applies an object shown by the journal, except for fields determined by scheduling
// here: the node of a pod, the volume of a claim, the devices of a ResourceClaim.
func (d *day) seeObject(e cycle.Seen) {
	switch object := e.Object.(type) {
	case *v1.Pod:
		d.seePod(object)
	case *v1.PersistentVolumeClaim:
		name := object.Namespace + "/" + object.Name
		if d.late[name] {
			return // the volume is chosen in this course
		}
		d.late[name] = d.waitsForConsumer(object)
		d.feedEvent(e)

	case *v1.PersistentVolume:
		if ref := object.Spec.ClaimRef; ref == nil || !d.late[ref.Namespace+"/"+ref.Name] {
			d.feedEvent(e)
		}
	default:
		if _, there := d.core.View().Cluster.ResourceClaims.Get(object.GetNamespace(), object.GetName()); there &&
			e.Kind == cycle.ResourceClaims {
			return // the devices are chosen in this course
		}
		d.feedEvent(e)
	}
}

// loseObject applies a deletion shown by the journal.
func (d *day) loseObject(e cycle.Gone) {
	if pod, ok := e.Object.(*v1.Pod); ok {
		d.losePod(pod.UID)
		return
	}
	if e.Kind == cycle.Claims {
		delete(d.late, e.Object.GetNamespace()+"/"+e.Object.GetName())
	}
	d.feedEvent(e)
}

// waitsForConsumer reports whether the claim is bound to a volume only when a pod using it is
// placed.
func (d *day) waitsForConsumer(claim *v1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" || claim.Spec.StorageClassName == nil {
		return false
	}
	class, ok := d.core.View().Cluster.StorageClasses.Get("", *claim.Spec.StorageClassName)
	return ok && class.VolumeBindingMode != nil && *class.VolumeBindingMode == "WaitForFirstConsumer"
}

// carryOut carries out an action of the core. It takes no time and always succeeds.
func (d *day) carryOut(action cycle.Action) {
	if d.controllers.CarryOut(action) {
		return
	}

	switch a := action.(type) {
	case cycle.Bind:
		d.answerTicket(a.Ticket)
		d.bindPod(a)
	case cycle.Remove:
		d.answerTicket(a.Ticket)
		d.removeVictim(a)
	case cycle.WriteStatus:
		if a.Ticket != 0 {
			d.answerTicket(a.Ticket)
		}
	case cycle.Preflight:
		d.answerTicket(a.Ticket)
	case cycle.PreBind:
		d.answerTicket(a.Ticket)
	}
}

// answerTicket reports the success of a request to the core.
func (d *day) answerTicket(ticket cycle.Ticket) { d.feedEvent(cycle.Answered{Ticket: ticket}) }
