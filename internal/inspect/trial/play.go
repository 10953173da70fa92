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
	"github.com/berth-k8s/berth/internal/world/agenda"
	"github.com/berth-k8s/berth/internal/world/standin"
)

// Options are how to play a course.
type Options struct {
	// Profiles are in effect from the beginning. Nil: those of the journal, with their recorded
	// changes.
	Profiles []cycle.Profile
	// Recorded makes the profiles of a configuration from the journal.
	Recorded func(h journal.Header, configuration []byte) ([]cycle.Profile, error)
	// Known is what [Recall] returns. Without it, chance decides among the best nodes, and two
	// courses differ wherever it does; and a victim takes its whole grace period to leave.
	Known Known
	// Progress, if set, is called with how much of the day has passed.
	Progress func(passed time.Duration)
}

// day is a course in progress: the API server of a world in virtual time, with a core
// as its client. For each record of the journal, time advances to the record's; what
// the core and the agenda have to do until then happens first.
//
//	journal   what the API showed        -> takeEvent -> core   (as far as it still holds)
//	          outcomes of requests       left out
//	core      actions                    -> carryOut  -> core   (succeed at once)
type day struct {
	core    *cycle.Core
	standin standin.Controllers
	course  *Course
	now     time.Time
	agenda  agenda.Agenda

	pods     map[types.UID]*pod
	recalled Known
	// served are the scheduler names of the pods that the journal's scheduler placed.
	served map[string]bool
	// relists are the lists in progress, for the kinds of which this world has
	// objects of its own: what a list does not show has gone from the recorded
	// cluster, and not necessarily from this one.
	relists map[cycle.Kind]map[types.UID]metav1.Object
	known   map[cycle.Kind]map[types.UID]metav1.Object // as the journal has them
	// late are the claims, as namespace/name, whose volume is chosen when a pod that uses them is
	// placed.
	late map[string]bool
	// spare counts, by controller, the recorded replacements that are not to appear, because the
	// pods that they replace still exist in this course or have been replaced already.
	spare map[rules.Owner]int
}

// made are the kinds of which this world and the journal have different objects,
// because the scheduler's decisions change them.
var made = []cycle.Kind{cycle.Pods, cycle.Volumes, cycle.Claims, cycle.ResourceClaims}

// Play plays what a journal has recorded, to its end. With Options.Profiles,
// configurations that were loaded during the day are ignored. The reader is used up.
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
	// Without this, equal nodes would be drawn anew, and two courses would differ
	// everywhere.
	options.Prefer = func(p *cluster.Pod) string { return o.Known.nodes[p.UID] }
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

	d.standin = standin.Controllers{
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
	d.closeDay()
	return d.course, nil
}

// playUntil lets time pass: the core settles, then the next of its waits or of the
// agenda's calls happens, until that time.
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
		if next.After(d.now) {
			d.now = next
		}

		d.agenda.RunUntil(d.now, nil)
		if !d.now.Before(at) {
			return
		}
	}
}

// settleCore lets the core do what it can at this time: it decides pods until none
// may be tried.
func (d *day) settleCore() {
	for !d.core.Wake(d.now).After(d.now) {
		d.feedEvent(cycle.Tick{})
	}
}

// feedEvent gives the core an event and carries out the actions, which feed it again.
func (d *day) feedEvent(e cycle.Event) {
	for _, action := range slices.Clone(d.core.Step(d.now, e)) {
		d.carryOut(action)
	}
}

// showObject shows the core an object of this world.
func (d *day) showObject(kind cycle.Kind, object metav1.Object) {
	d.feedEvent(cycle.Seen{Kind: kind, Object: object})
}

// takeEvent applies a recorded event, as far as it would have happened in this course, too.
func (d *day) takeEvent(e cycle.Event) {
	switch e := e.(type) {
	case cycle.Follows:
		kinds := slices.DeleteFunc(slices.Clone(e.Kinds), func(k cycle.Kind) bool { return slices.Contains(made, k) })
		d.feedEvent(cycle.Follows{Kinds: kinds})

	// A kind that is known already is listed anew: what it does not show has left.
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

// removeUnlisted removes what a list has not shown, in a fixed order.
func (d *day) removeUnlisted(kind cycle.Kind, listed map[types.UID]metav1.Object) {
	for _, uid := range slices.Sorted(maps.Keys(d.known[kind])) {
		if listed[uid] == nil {
			last := d.known[kind][uid]
			delete(d.known[kind], uid)
			d.loseObject(cycle.Gone{Kind: kind, Object: last})
		}
	}
}

// seeObject applies an object that the journal shows. What scheduling decides about
// it here is not taken from there: the node of a pod, the volume of a claim, the
// devices of another.
func (d *day) seeObject(e cycle.Seen) {
	switch object := e.Object.(type) {
	case *v1.Pod:
		d.seePod(object)
	case *v1.PersistentVolumeClaim:
		name := object.Namespace + "/" + object.Name
		if d.late[name] {
			return // its volume is decided in this course
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
			return // its devices are decided in this course
		}
		d.feedEvent(e)
	}
}

// loseObject applies a deletion that the journal shows.
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

// waitsForConsumer reports whether the claim gets its volume when a pod that uses it is placed.
func (d *day) waitsForConsumer(claim *v1.PersistentVolumeClaim) bool {
	if claim.Spec.VolumeName != "" || claim.Spec.StorageClassName == nil {
		return false
	}
	class, ok := d.core.View().Cluster.StorageClasses.Get("", *claim.Spec.StorageClassName)
	return ok && class.VolumeBindingMode != nil && *class.VolumeBindingMode == "WaitForFirstConsumer"
}

// carryOut carries out an action of the core. It takes no time and always succeeds.
func (d *day) carryOut(action cycle.Action) {
	if d.standin.CarryOut(action) {
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

// answerTicket tells the core that a request has succeeded.
func (d *day) answerTicket(ticket cycle.Ticket) { d.feedEvent(cycle.Answered{Ticket: ticket}) }
