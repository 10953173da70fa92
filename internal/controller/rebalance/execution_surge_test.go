// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"cmp"
	"slices"
	"strconv"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/response"
)

// belong makes a ReplicaSet belong to the rollout or the Deployment of the same name, if any.
func (s *stage) belong(rs *appsv1.ReplicaSet) {
	if _, ok := s.rollouts[rs.Name]; ok {
		s.rollouts[rs.Name] = *rs.Spec.Replicas
		rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "argoproj.io/v1alpha1", Kind: "Rollout", Name: rs.Name,
			UID: types.UID("rollout/" + rs.Name), Controller: new(true)}}
	}
	d, ok := s.objects[s.key(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: rs.Namespace, Name: rs.Name}})].(*appsv1.Deployment)
	if !ok {
		return
	}
	rs.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(d, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	d = d.DeepCopy()
	d.Spec.Replicas = rs.Spec.Replicas
	s.store(d)
}

// rescale handles a request to scale like the API server, and makes the controllers follow.
func (s *stage) rescale(a execute.Scale) execute.Event {
	if s.faults.unscalable != "" {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Refused, Message: s.faults.unscalable}
	}
	var object metav1.Object = &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: a.Target.Namespace, Name: a.Target.Name}}
	if a.Target.Kind == "ReplicaSet" {
		object = &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: a.Target.Namespace, Name: a.Target.Name}}
	}
	object = s.objects[s.key(object)]
	if object == nil || object.GetUID() != a.Target.UID {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone, Message: "not found"}
	}
	switch label := object.GetLabels()[rebalance.SurgeLabel]; {
	case label == a.After:
		return execute.Answered{Ticket: a.Ticket}
	case label != a.Before && a.After == "":
		return execute.Answered{Ticket: a.Ticket}
	case label != a.Before, a.After != "" && s.replicasOf(object) != a.From:
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Conflict, Message: "it has changed"}
	}
	if a.Target.Through != nil {
		return s.rescaleThrough(a, object.(*appsv1.ReplicaSet))
	}
	to := s.setScale(object, func(object metav1.Object, replicas int32) int32 {
		object.SetLabels(map[string]string{rebalance.SurgeLabel: a.After})
		if a.After == "" {
			object.SetLabels(nil)
		}
		if replicas == a.From {
			return a.To
		}
		return replicas
	})
	s.say("%s is scaled to %d", a.Target, to)
	if s.faults.lose != nil && s.faults.lose() {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Failed, Message: "no answer"}
	}
	return execute.Answered{Ticket: a.Ticket}
}

// rescaleThrough scales a rollout. It labels the ReplicaSet before scaling the rollout up, and
// removes the label after scaling it down.
func (s *stage) rescaleThrough(a execute.Scale, rs *appsv1.ReplicaSet) execute.Event {
	label := func() {
		rs = s.objects[s.key(rs)].(*appsv1.ReplicaSet).DeepCopy()
		rs.Labels = nil
		if a.After != "" {
			rs.Labels = map[string]string{rebalance.SurgeLabel: a.After}
		}
		s.write(rs)
	}
	scale := func() {
		if s.rollouts[a.Target.Through.Name] != a.From {
			return
		}
		s.rollouts[a.Target.Through.Name] = a.To
		s.say("%s is scaled to %d", a.Target, a.To)
		s.After(50*time.Millisecond, func() {
			s.setScale(s.objects[s.key(rs)], func(metav1.Object, int32) int32 { return a.To })
		})
	}
	life, steps := s.process.Life(), []func(){label, scale}
	if a.After == "" {
		slices.Reverse(steps)
	}
	steps[0]()
	if s.faults.halfway != nil {
		s.faults.halfway()
	}
	if life == s.process.Life() {
		steps[1]()
	}
	return execute.Answered{Ticket: a.Ticket}
}

func (s *stage) replicasOf(object metav1.Object) int32 {
	if d, ok := object.(*appsv1.Deployment); ok {
		return *d.Spec.Replicas
	}
	return *object.(*appsv1.ReplicaSet).Spec.Replicas
}

// setScale changes a workload, and returns its scale.
func (s *stage) setScale(object metav1.Object, change func(object metav1.Object, replicas int32) int32) int32 {
	switch o := object.(type) {
	case *appsv1.Deployment:
		o = o.DeepCopy()
		replicas := change(o, *o.Spec.Replicas)
		o.Spec.Replicas = &replicas
		s.write(o)
		s.After(10*time.Millisecond, func() {
			for _, key := range s.keys() {
				if rs, ok := s.objects[key].(*appsv1.ReplicaSet); ok && metav1.IsControlledBy(rs, o) {
					s.setScale(rs, func(metav1.Object, int32) int32 { return replicas })
				}
			}
		})
		return replicas
	case *appsv1.ReplicaSet:
		o = o.DeepCopy()
		replicas := change(o, *o.Spec.Replicas)
		o.Spec.Replicas = &replicas
		s.replicas[o.UID] = int(replicas)
		s.write(o)
		s.After(10*time.Millisecond, func() { s.settle(o.UID) })
		return replicas
	}
	s.t.Fatalf("%T has no scale", object)
	return 0
}

// settle acts as a ReplicaSet's controller: it creates missing pods and removes surplus ones,
// starting with pods without a node, not running, not ready, and with the lowest deletion cost.
// Among equal pods the upstream controller compares the time since readiness, in doubling steps,
// and then UIDs: its choice may be the very pod a surge wants to keep. Here it is always the oldest
// pod.
func (s *stage) settle(set types.UID) {
	var pods []*v1.Pod
	for _, p := range s.pods() {
		if o := metav1.GetControllerOfNoCopy(p); o != nil && o.UID == set && p.DeletionTimestamp == nil {
			pods = append(pods, p)
		}
	}
	for range s.replicas[set] - len(pods) {
		s.replace(s.template[set])
	}
	worth := func(p *v1.Pod) []int64 {
		cost, _ := strconv.ParseInt(p.Annotations["controller.kubernetes.io/pod-deletion-cost"], 10, 64)
		return []int64{bit(p.Spec.NodeName != ""), bit(p.Status.Phase == v1.PodRunning), bit(isReady(p)), cost, p.CreationTimestamp.Unix()}
	}
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int { return cmp.Or(slices.Compare(worth(a), worth(b)), cmp.Compare(a.Name, b.Name)) })
	for _, p := range pods[:max(len(pods)-s.replicas[set], 0)] {
		s.say("%s is removed by its controller", p.Name)
		s.terminate(p)
	}
}

func bit(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// mark handles a request to set a pod's deletion cost.
func (s *stage) mark(a execute.Mark) execute.Event {
	p := s.pod(a.UID)
	if p == nil {
		return execute.Answered{Ticket: a.Ticket, Outcome: response.Gone, Message: "not found"}
	}
	p = p.DeepCopy()
	for key, value := range execute.MarkOf(p, a) {
		delete(p.Annotations, key)
		if value != nil {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, value.(string))
		}
	}
	s.write(p)
	if marked := s.faults.marked; marked != nil {
		s.faults.marked = nil
		marked()
	}
	return execute.Answered{Ticket: a.Ticket}
}

// failsToStart writes the status of a pod with a container that does not start, for the given
// reason.
func (s *stage) failsToStart(p *v1.Pod, why string) {
	p = p.DeepCopy()
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: why}}}}
	s.write(p)
}

// TestASurgeIsPutBackAfterAKill verifies that a surge leaves nothing behind if the process is
// killed before or after any of its requests, and restarted. In the end the node is empty, the
// scale has its original value, no pod is marked, and there were never fewer ready pods than in the
// beginning.
func TestASurgeIsPutBackAfterAKill(t *testing.T) {
	for _, deployment := range []string{"", "deployment web\n"} {
		for _, done := range []bool{false, true} {
			for at := 1; ; at++ {
				s := newStage(t, 1, "node a\nnode b\n"+deployment+"pods web count=2 on=a cpu=1 label=app:web note=controller.kubernetes.io/pod-deletion-cost:7\nbudget web of=app:web unavailable=0\n",
					&rebalance.Policy{})
				s.draining, s.statuses = true, true
				s.count()
				s.Run(time.Second)
				requests, ended := 0, false
				s.faults.request = func() bool {
					if requests++; requests != at {
						return true
					}
					s.process.Kill()
					return done
				}
				options := execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}, Surge: true}}
				for try := 0; !ended && try < 10; try++ {
					if !s.process.Running() {
						s.begin(execute.NewDrainer(options))
					}
					for range 600 {
						s.Run(200 * time.Millisecond)
						if up := s.up("web"); up < 2 {
							s.fail("%d pods are ready", up)
						}
					}
					ended = len(s.drained) > 0
				}
				s.judgeSurge("a", 2)
				if len(s.wrong) > 0 {
					t.Fatalf("killed at request %d (carried out: %v) of %q: %v\n%s", at, done, deployment, s.wrong, s.lines.String())
				}
				if requests < at {
					break
				}
			}
		}
	}
}

// TestASurgeOfAMoveIsPutBackAfterAKill verifies the same for the process that carries out moves.
func TestASurgeOfAMoveIsPutBackAfterAKill(t *testing.T) {
	for _, deployment := range []string{"", "deployment web\n"} {
		for _, done := range []bool{false, true} {
			for at := 1; ; at++ {
				s := newStage(t, 1, "node a taint=old:NoSchedule\nnode b\n"+deployment+
					"pod web-0 on=a cpu=1 label=app:web note=controller.kubernetes.io/pod-deletion-cost:7 owner=ReplicaSet/web\n"+
					"pod web-1 on=b cpu=1 label=app:web owner=ReplicaSet/web\nbudget web of=app:web unavailable=0\n",
					&rebalance.Policy{Goals: []rebalance.Goal{*rebalance.OwnGoal("heal", 0)}})
				s.statuses, s.options.Surge = true, true
				s.count()
				s.Run(time.Second)
				requests := 0
				s.faults.request = func() bool {
					if requests++; requests != at {
						return true
					}
					s.process.Kill()
					return done
				}
				for try := 0; len(s.done) == 0 && try < 10; try++ {
					if !s.process.Running() {
						s.start()
					}
					for range 600 {
						s.Run(200 * time.Millisecond)
						if up := s.up("web"); up < 2 {
							s.fail("%d pods are ready", up)
						}
					}
				}
				s.judgePutBack("a", 2)
				if len(s.done) != 1 || s.done[0].Stopped != "" {
					s.fail("the run ended with %+v", s.done)
				}
				if len(s.wrong) > 0 {
					t.Fatalf("killed at request %d (carried out: %v) of %q: %v\n%s", at, done, deployment, s.wrong, s.lines.String())
				}
				if requests < at {
					break
				}
			}
		}
	}
}

// TestASurgeByAScaleSubresourceIsPutBackAfterAKill verifies the same for a rollout, if the process
// is killed before, during or after any request.
func TestASurgeByAScaleSubresourceIsPutBackAfterAKill(t *testing.T) {
	for _, how := range []string{"before", "halfway", "after"} {
		for at := 1; ; at++ {
			s := newStage(t, 1, "node a\nnode b\nrollout web\npods web count=2 on=a cpu=1 label=app:web\nbudget web of=app:web unavailable=0\n",
				&rebalance.Policy{})
			s.draining, s.statuses = true, true
			s.count()
			s.Run(time.Second)
			requests := 0
			kills := func() bool {
				requests++
				if requests == at {
					s.process.Kill()
				}
				return requests != at || how == "after"
			}
			if s.faults.request = kills; how == "halfway" {
				s.faults.request, s.faults.halfway = nil, func() { kills() }
			}
			options := execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}, Surge: true}}
			for try := 0; len(s.drained) == 0 && try < 10; try++ {
				if !s.process.Running() {
					s.begin(execute.NewDrainer(options))
				}
				for range 600 {
					s.Run(200 * time.Millisecond)
					if up := s.up("web"); up < 2 {
						s.fail("%d pods are ready", up)
					}
				}
			}
			s.judgeSurge("a", 2)
			if s.rollouts["web"] != 2 {
				s.fail("the rollout wants %d", s.rollouts["web"])
			}
			if len(s.wrong) > 0 {
				t.Fatalf("killed %s request %d: %v\n%s", how, at, s.wrong, s.lines.String())
			}
			if requests < at {
				break
			}
		}
	}
}

// TestASurgeThatIsGivenUpIsPutBackAfterAKill verifies that a surge stopped by a budget while all
// pods are ready is undone completely, even if the process is killed before or after any of its
// requests. In the end the pod still exists, with its original deletion cost and the original
// scale.
func TestASurgeThatIsGivenUpIsPutBackAfterAKill(t *testing.T) {
	for _, done := range []bool{false, true} {
		for at := 1; ; at++ {
			s := newStage(t, 1, "node a\nnode b\ndeployment web\npods web count=1 on=a cpu=1 label=app:web note=controller.kubernetes.io/pod-deletion-cost:7\n"+
				"pod late-0 cpu=20 label=app:web owner=ReplicaSet/late\nbudget all of=app:web unavailable=0\n", &rebalance.Policy{})
			s.draining, s.statuses = true, true
			s.count()
			s.Run(time.Second)
			requests := 0
			s.faults.request = func() bool {
				if requests++; requests != at {
					return true
				}
				s.process.Kill()
				return done
			}
			options := execute.DrainOptions{Leaving: rebalance.Leaving{Nodes: []string{"a"}, Surge: true}, Timeout: time.Minute}
			for try := 0; len(s.drained) == 0 && try < 10; try++ {
				if !s.process.Running() {
					s.begin(execute.NewDrainer(options))
				}
				s.Run(2 * time.Minute)
			}

			web := s.objects[s.key(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}})]
			if s.replicasOf(web) != 1 || len(web.GetLabels()) > 0 || len(s.drained) != 1 || s.drained[0].Stopped == "" {
				s.fail("the scale is %d, the labels are %v, the drain ended with %+v", s.replicasOf(web), web.GetLabels(), s.drained)
			}
			var left []string
			for _, p := range s.pods() {
				left = append(left, p.Name)
				if cost := p.Annotations["controller.kubernetes.io/pod-deletion-cost"]; p.Name == "web-0" && (cost != "7" || execute.Marked(p)) {
					s.fail("the pod's cost is %q", cost)
				}
			}
			if !slices.Equal(left, []string{"late-0", "web-0"}) {
				s.fail("the pods are %v", left)
			}
			if len(s.wrong) > 0 {
				t.Fatalf("killed at request %d (carried out: %v): %v\n%s", at, done, s.wrong, s.lines.String())
			}
			if requests < at {
				if at < 7 {
					t.Errorf("only %d requests", at-1)
				}
				break
			}
		}
	}
}

// judgeSurge verifies the invariants of a finished drain with surges.
func (s *stage) judgeSurge(node string, replicas int) {
	if len(s.drained) != 1 || s.drained[0].Stopped != "" {
		s.fail("the drain ended with %+v", s.drained)
	}
	s.judgePutBack(node, replicas)
}

// judgePutBack verifies that the node is empty, and that the workload is back in its original
// state.
func (s *stage) judgePutBack(node string, replicas int) {
	count := 0
	for _, p := range s.pods() {
		count++
		if p.Spec.NodeName == node || !isReady(p) || execute.Marked(p) {
			s.fail("%s is on %q, ready: %v, marked: %v", p.Name, p.Spec.NodeName, isReady(p), execute.Marked(p))
		}
	}
	for _, object := range s.objects {
		switch object.(type) {
		case *appsv1.Deployment, *appsv1.ReplicaSet:
			if scale := s.replicasOf(object); scale != int32(replicas) || len(object.GetLabels()) > 0 {
				s.fail("%T has the scale %d and the labels %v", object, scale, object.GetLabels())
			}
		}
	}
	if count != replicas {
		s.fail("there are %d pods, and %d were", count, replicas)
	}
}
