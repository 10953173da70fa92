// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package cycle_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/config"
	. "github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/groups"
)

// deviceRun is an API server with kubelets, a scheduler, and the resource claim controller, in
// virtual time. The scheduler and the controller send one request after the other, and each of them
// may be killed between any two of its requests. Watches deliver changes late.
type deviceRun struct {
	*rand.Rand
	t        *testing.T
	now      time.Time
	core     *Core // nil while the scheduler is down
	lives    int   // number of cores so far
	objects  map[Kind]map[cluster.Name]metav1.Object
	version  int
	watched  map[Kind]time.Time // time of the last event on its way to the core
	later    []laterStep
	promised map[types.UID]string // nodes of the victims, by preempting pod
	victims  int
	surplus  bool // victims may have more devices than their preemptors need

	requests []string     // requests carried out so far
	kills    map[int]bool // numbers of the requests after which their sender is killed
}

type laterStep struct {
	at time.Time
	do func()
}

var deviceRunKinds = []Kind{Nodes, DeviceClasses, ResourceSlices, ResourceClaims, CompositePodGroups, PodGroups, Pods}

func newDeviceRun(t *testing.T, seed uint64) *deviceRun {
	t.Helper()
	r := emptyDeviceRun(t, seed)
	for i := range 1 + r.IntN(4) {
		r.addNode(fmt.Sprint("node-", i), "", 1+r.IntN(4))
	}
	return r
}

func emptyDeviceRun(t *testing.T, seed uint64) *deviceRun {
	t.Helper()
	r := &deviceRun{Rand: rand.New(rand.NewPCG(seed, 72)), t: t, now: begin, objects: map[Kind]map[cluster.Name]metav1.Object{},
		watched: map[Kind]time.Time{}, promised: map[types.UID]string{}}
	for _, kind := range deviceRunKinds {
		r.objects[kind] = map[cluster.Name]metav1.Object{}
	}
	r.start()
	r.put(DeviceClasses, &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: new("example.com/gpu")},
	})
	return r
}

// start starts a scheduler, which reads the current objects.
func (r *deviceRun) start() {
	c, err := config.Default(config.Options{PreemptDevices: true})
	if err != nil {
		r.t.Fatal(err)
	}
	core, err := New(Options{Profiles: []Profile{{Profile: c.Profiles[0]}}, Seed: r.Uint64(), Groups: groups.Gates{Generic: true, Topology: true, Composite: true}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.core = core
	r.lives++
	clear(r.watched)
	show(core, r.now, deviceRunKinds, func(kind Kind) []metav1.Object {
		return slices.SortedFunc(maps.Values(r.objects[kind]), func(a, b metav1.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
	})
}

// kill kills the scheduler. Another one starts a few seconds later.
func (r *deviceRun) kill() {
	if r.core != nil {
		r.core = nil
		r.lives++
		r.after(4*time.Second, r.start)
	}
}

// put creates or updates an object in the API.
func (r *deviceRun) put(kind Kind, object metav1.Object) {
	r.version++
	object.SetResourceVersion(strconv.Itoa(r.version))
	r.objects[kind][cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()}] = object
	if claim, ok := object.(*resourcev1.ResourceClaim); ok {
		r.checkDevices(claim)
	}
	r.watch(kind, Seen{kind, object})
}

// drop deletes an object from the API.
func (r *deviceRun) drop(kind Kind, object metav1.Object) {
	delete(r.objects[kind], cluster.Name{Namespace: object.GetNamespace(), Name: object.GetName()})
	r.watch(kind, Gone{kind, object})
}

// watch delivers an event to the current core, after the earlier events of its kind.
func (r *deviceRun) watch(kind Kind, e Event) {
	const lag = 10 * time.Millisecond
	lives, at := r.lives, latest(r.watched[kind], r.now.Add(time.Duration(r.Int64N(int64(lag)))))
	r.watched[kind] = at
	r.at(at, func() { r.tell(lives, e) })
}

// tell passes an event to the core, unless the core was killed.
func (r *deviceRun) tell(lives int, e Event) {
	if lives != r.lives || r.core == nil {
		return
	}
	for _, action := range slices.Clone(r.core.Step(r.now, e)) {
		r.carryOut(action)
	}
}

// stored returns the current state of an object that may be changed, or nil.
func stored[T interface {
	metav1.Object
	runtime.Object
}](r *deviceRun, kind Kind, namespace, name string, uid types.UID) (object T, ok bool) {
	current, ok := r.objects[kind][cluster.Name{Namespace: namespace, Name: name}].(T)
	if !ok || current.GetUID() != uid {
		return object, false
	}
	return current.DeepCopyObject().(T), true
}

func (r *deviceRun) pod(uid types.UID) *v1.Pod {
	for _, object := range r.objects[Pods] {
		if object.GetUID() == uid {
			return object.(*v1.Pod)
		}
	}
	return nil
}

// changePod changes a pod in the API, if it exists.
func (r *deviceRun) changePod(uid types.UID, how func(*v1.Pod)) {
	if p := r.pod(uid); p != nil {
		p = p.DeepCopy()
		how(p)
		r.put(Pods, p)
	}
}

func (r *deviceRun) at(at time.Time, do func()) {
	r.later = append(r.later, laterStep{at, do})
	slices.SortStableFunc(r.later, func(a, b laterStep) int { return a.at.Compare(b.at) })
}

// after does something after a random time of at most most.
func (r *deviceRun) after(most time.Duration, do func()) {
	r.at(r.now.Add(time.Duration(1+r.Int64N(int64(most)))), do)
}

// noteRequest counts a request after its effect, and reports whether its sender is killed now.
func (r *deviceRun) noteRequest(format string, args ...any) (killed bool) {
	r.requests = append(r.requests, fmt.Sprintf(format, args...))
	return r.kills[len(r.requests)]
}

// send carries out the requests of an action of the current core, one after the other, while the
// core lives. Each returns its name, or "" if it was not needed, and a fault, which ends the
// action.
func (r *deviceRun) send(ticket Ticket, o *Outcome, requests ...func() (string, *Fault)) {
	r.sendWithin(5*time.Millisecond, ticket, o, requests...)
}

func (r *deviceRun) sendWithin(lag time.Duration, ticket Ticket, o *Outcome, requests ...func() (string, *Fault)) {
	lives := r.lives
	r.after(lag, func() {
		if lives != r.lives {
			return
		}
		for len(requests) > 0 && o.Fault == nil {
			var name string
			name, o.Fault = requests[0]()
			if requests = requests[1:]; name != "" {
				if r.noteRequest("scheduler: %s", name) {
					r.kill()
				} else {
					r.sendWithin(lag, ticket, o, requests...)
				}
				return
			}
		}
		if ticket != 0 {
			r.tell(lives, Answered{ticket, *o})
		}
	})
}

func (r *deviceRun) carryOut(action Action) {
	switch a := action.(type) {
	case Bind:
		pod := a.Attempt.Pod
		r.send(a.Ticket, &Outcome{}, func() (string, *Fault) {
			if p := r.pod(pod.UID); p == nil || p.DeletionTimestamp != nil || p.Spec.NodeName != "" {
				return "bind in vain", &Fault{Message: "the pod is not pending"}
			}
			if node, ok := r.promised[pod.UID]; ok && !r.mayArriveAt(pod.UID, a.Attempt.Node) {
				r.t.Errorf("%s preempted on %s, and is bound to %s", pod.Name, node, a.Attempt.Node)
			}
			r.changePod(pod.UID, func(p *v1.Pod) { p.Spec.NodeName, p.Status.NominatedNodeName = a.Attempt.Node, "" })
			return fmt.Sprintf("bind %s to %s", pod.Name, a.Attempt.Node), nil
		})
	case Remove:
		r.send(a.Ticket, &Outcome{}, func() (string, *Fault) {
			r.changePod(a.Victim.UID, func(p *v1.Pod) {
				p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
			})
			return "mark " + a.Victim.Name, nil
		}, func() (string, *Fault) {
			r.evict(a)
			return "delete " + a.Victim.Name, nil
		})
	case WriteStatus: // statuses may be written after everything else
		r.sendWithin(30*time.Millisecond, a.Ticket, &Outcome{}, func() (string, *Fault) {
			if p := r.pod(a.Pod.UID); a.Nominate == nil || p == nil || p.Spec.NodeName != "" || p.Status.NominatedNodeName == *a.Nominate {
				return "", nil
			}
			r.changePod(a.Pod.UID, func(p *v1.Pod) { p.Status.NominatedNodeName = *a.Nominate })
			return fmt.Sprintf("nominate %s to %q", a.Pod.Name, *a.Nominate), nil
		})
	case WriteClaims:
		r.writeClaims(a)
	case ReleaseClaim:
		r.send(a.Ticket, &Outcome{}, r.release(a.Claim, a.Holder)...)
	case DeallocateClaim:
		r.send(a.Ticket, &Outcome{}, r.deallocate(a)...)
	case Panicked:
		r.t.Fatalf("panic: %s\n%s", a.Value, a.Stack)
	}
}

// mayArriveAt reports whether a preemptor may be bound to a node: to the one of its victims, or to
// one where other pods preempted, whose victims may have had more devices than these pods need.
func (r *deviceRun) mayArriveAt(preemptor types.UID, node string) bool {
	for uid, promised := range r.promised {
		if promised == node && (uid == preemptor || r.surplus) {
			return true
		}
	}
	return false
}

// evict deletes a victim, whose kubelet needs up to 4 s.
func (r *deviceRun) evict(a Remove) {
	victim := r.pod(a.Victim.UID)
	if victim == nil || victim.DeletionTimestamp != nil {
		return
	}
	if node, ok := r.promised[a.For]; ok && node != victim.Spec.NodeName {
		r.t.Errorf("%s preempts on %s after it preempted on %s", a.For, victim.Spec.NodeName, node)
	}
	if r.pod(a.For) != nil { // not a group
		r.promised[a.For] = victim.Spec.NodeName
	}
	r.victims++
	r.changePod(a.Victim.UID, func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: r.now} })
	r.after(4*time.Second, func() {
		r.drop(Pods, r.pod(a.Victim.UID))
		r.after(time.Second, r.syncClaims)
	})
}

// play advances the time.
func (r *deviceRun) play(most time.Duration) {
	for end := r.now.Add(most); ; {
		wake := end.Add(time.Hour)
		if r.core != nil {
			wake = r.core.Wake(r.now)
		}
		step := len(r.later) > 0 && !r.later[0].at.After(wake)
		if step {
			wake = r.later[0].at
		}
		if wake.After(end) {
			r.now = end
			return
		}
		r.now = latest(r.now, wake)
		if step {
			do := r.later[0].do
			r.later = r.later[1:]
			do()
		} else {
			r.tell(r.lives, Tick{})
		}
	}
}
