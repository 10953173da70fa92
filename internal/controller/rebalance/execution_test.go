// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/controller/rebalance"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
	"github.com/berth-k8s/berth/internal/controller/rebalance/policy"
	"github.com/berth-k8s/berth/internal/response"
	"github.com/berth-k8s/berth/internal/world/virtual"
)

// TestExecution runs testdata/*.execution.txt against a cluster in virtual time. A case consists of
// these commands:
//
//	world GOAL... [every=DURATION] [surge]  begins a cluster, and the process that carries out moves for these
//	                                goals; without goals, no process
//	drain NODE... [FLAG...]         begins the process that drains nodes, with kubectl's flags and allow-pending
//	roll [FLAG...]                  begins the process that rolls the nodes with the label pool:roll; until=ready, until=new,
//	                                at-once=N, restart
//	restarts NODE; exchanged NODE   restarts the node; adds a new node, and removes this one
//	nodes                           prints the nodes, with their cordons and their progress in a roll
//	start; kill                     starts the process; kills it with SIGKILL
//	interrupt                       interrupts the process
//	refuse POD times=N [for-good]   a webhook refuses the pod's evictions
//	no-journal; no-taint NODE       writes of the journal or of the taint fail
//	lose-journal                    deletes the journal
//	rival                           another process writes the journal
//	closes NODE                     another process has closed the node
//	lose-answer                     the next eviction is made, and its response lost
//	stall made=DURATION busy=DURATION  the next eviction gets no response, and is made after the first
//	                                duration; other evictions are refused for the second
//	kill-after-eviction             kills the process after evicting the next pod
//	thief POD on=NODE cpu=N         right after the next eviction another scheduler places a pod on the node
//	lands POD on=NODE cpu=N         another scheduler places a pod on the node while the first plan is made
//	asks DURATION                   evictions use EvictionRequests, and are made after this duration
//	keeps-room                      the scheduler reserves the room requested by the drain
//	comes POD cpu=N [now|scaled]    right after the next eviction, now, or once a workload is scaled, creates a pod for
//	                                the scheduler to place
//	busy NODE DURATION              short-lived foreign pods occupy the node in turn for this duration
//	shy NODE                        the node is cordoned while each plan is made, and open again half a second later
//	lost NODE                       the node is lost right after the next eviction
//	silent NODE; give-up NODE       the node stops responding; the node also gets the out-of-service taint
//	steer NODE                      the scheduler places every pod on this node, contrary to the plans
//	ends POD                        terminates the pod
//	no-start REASON; never-ready    containers do not start; pods run, but never become ready
//	no-scheduler                    no scheduler runs
//	unscalable                      requests to scale are refused with the given message
//	rescaled N [marked]             another client scales the workload of a surge, after the surge has
//	                                begun or after its pod is marked
//	appears [scale=N]; rollout      after a surge has begun, creates the given objects; begins a rollout
//	scales                          prints the scales and labels of workloads
//	scale WORKLOAD N                scales the workload down right after the next eviction
//	run DURATION                    lets time pass, and prints the events
//	pods                            prints the pods' nodes
func TestExecution(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !strings.HasSuffix(path, executions) {
			return
		}
		var s *stage
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "world" {
				s = staged(t, d)
			}
			s.lines.Reset()
			s.command(t, d)
			for _, wrong := range s.wrong {
				t.Errorf("%s: %s", d.Pos, wrong)
			}
			return s.lines.String()
		})
	})
}

// executions is the suffix of TestExecution's files.
const executions = ".execution.txt"

func staged(t *testing.T, d *datadriven.TestData) *stage {
	goals, options := &rebalance.Policy{}, execute.Options{}
	for _, arg := range d.CmdArgs {
		if arg.Key == "every" {
			options.Every = duration(t, arg.Vals[0])
			continue
		}
		if options.Surge = options.Surge || arg.Key == "surge"; arg.Key == "surge" {
			continue
		}
		goals.Goals = append(goals.Goals, goalOf(t, arg))
	}
	s := newStage(t, 1, strings.TrimSpace(d.Input), goals)
	s.options = options
	if len(goals.Goals) > 0 {
		if s.statuses = options.Surge; s.statuses {
			s.count()
			s.Run(time.Second)
		}
		s.start()
	} else {
		s.statuses, s.draining = true, true
		s.count()
	}
	return s
}

func duration(t *testing.T, text string) time.Duration {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (s *stage) command(t *testing.T, d *datadriven.TestData) {
	word := func(i int) string {
		if i < len(d.CmdArgs) {
			return d.CmdArgs[i].Key
		}
		return ""
	}
	once := func(do func(p *v1.Pod)) {
		s.faults.after = func(p *v1.Pod) {
			s.faults.after = nil
			do(p)
		}
	}
	switch d.Cmd {
	case "drain":
		s.begin(execute.NewDrainer(draining(t, d.CmdArgs)))
	case "roll":
		s.begin(execute.NewRoller(s.rollOptions(t, d.CmdArgs)))
	case "restarts":
		s.restart(word(0))
	case "exchanged":
		s.exchange(t, word(0), strings.TrimSpace(d.Input))
	case "nodes":
		s.showNodes()
	case "start":
		s.start()
	case "kill":
		s.process.Kill()
	case "interrupt":
		s.step(execute.Stop{})
	case "refuse":
		name, times, outcome := word(0), 1000, response.Busy
		d.MaybeScanArgs(t, "times", &times)
		if d.HasArg("for-good") {
			outcome = response.Refused
		}
		s.faults.refuse = func(p *v1.Pod) response.Outcome {
			if p.Name != name || times == 0 {
				return response.OK
			}
			times--
			return outcome
		}
	case "no-journal":
		s.faults.unwritable = true
	case "lose-journal":
		s.journal, s.version = execute.Journal{}, 0
	case "rival":
		s.journal = execute.Journal{}
		s.version++
	case "closes":
		s.taint(execute.SetTaint{Node: word(0), Value: "empty"})
	case "no-start":
		s.faults.unstarted = word(0)
	case "unscalable":
		s.faults.unscalable = strings.TrimSpace(d.Input)
	case "never-ready":
		s.faults.unready = true
	case "rescaled": // changed by another client, once a surge has begun or once its pod is marked
		n, err := strconv.Atoi(word(0))
		if err != nil {
			t.Fatal(err)
		}
		if d.HasArg("marked") {
			s.faults.marked = func() {
				web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
				s.setScale(s.objects[s.key(web)], func(metav1.Object, int32) int32 { return int32(n) })
			}
			return
		}
		s.faults.scaled = func(a execute.Scale) {
			s.faults.scaled = nil
			s.After(time.Second, func() {
				s.setScale(s.objects[s.key(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: a.Target.Name}})], func(metav1.Object, int32) int32 { return int32(n) })
			})
		}
	case "appears": // once a surge has begun
		text, scale := strings.TrimSpace(d.Input), 0
		d.MaybeScanArgs(t, "scale", &scale) // the new scale of the workload
		s.faults.scaled = func(a execute.Scale) {
			s.faults.scaled = nil
			s.After(time.Second, func() {
				for line := range strings.Lines(text) {
					for _, o := range object(t, strings.TrimSpace(line)) {
						s.write(o)
					}
				}
				s.count()
				if o := s.objects[s.key(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: a.Target.Name}})]; scale > 0 {
					s.setScale(o, func(metav1.Object, int32) int32 { return int32(scale) })
				}
			})
		}
	case "rollout": // begins once a surge has begun
		s.faults.scaled = func(a execute.Scale) {
			s.faults.scaled = nil
			s.After(time.Second, func() {
				if a.Target.Through != nil {
					rs := s.objects[s.key(&appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: a.Target.Name}})].(*appsv1.ReplicaSet).DeepCopy()
					rs.Name, rs.UID, rs.Labels, rs.Spec.Replicas = "next", "next", nil, new(int32(1))
					s.write(rs)
					return
				}
				s.setScale(s.objects[s.key(&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: a.Target.Name}})], func(o metav1.Object, replicas int32) int32 {
					d := o.(*appsv1.Deployment)
					d.Spec.Template.Labels = map[string]string{"version": "2"}
					d.Generation, d.Status.ObservedGeneration = 2, 1
					return replicas
				})
			})
		}
	case "no-scheduler":
		s.faults.unscheduled = true
	case "no-taint":
		s.faults.open = word(0)
	case "lose-answer":
		s.faults.lose = func() bool { s.faults.lose = nil; return true }
	case "stall":
		s.faults.stalls = duration(t, d.CmdArgs[0].Vals[0])
		s.faults.overloaded = s.Now.Add(duration(t, d.CmdArgs[1].Vals[0]))
	case "kill-after-eviction":
		once(func(*v1.Pod) { s.process.Kill() })
	case "thief":
		text := fmt.Sprintf("pod %s owner=none", word(0))
		for _, arg := range d.CmdArgs[1:] {
			text += " " + arg.Key + "=" + arg.Vals[0]
		}
		once(func(*v1.Pod) {
			for _, o := range object(t, text) {
				s.write(o)
			}
		})
	case "keeps-room":
		s.keeps = true
	case "asks":
		s.responds = duration(t, word(0))
	case "comes":
		text := fmt.Sprintf("pod %s owner=none cpu=%s", word(0), d.CmdArgs[1].Vals[0])
		comes := func(*v1.Pod) {
			for _, o := range object(t, text) {
				s.write(o)
				s.After(time.Millisecond, func() { s.schedule(o.GetUID()) })
			}
		}
		switch {
		case d.HasArg("now"):
			comes(nil)
		case d.HasArg("scaled"):
			s.faults.scaled = func(execute.Scale) {
				s.faults.scaled = nil
				comes(nil)
			}
		default:
			once(comes)
		}
	case "lands":
		text := fmt.Sprintf("pod %s owner=none", word(0))
		for _, arg := range d.CmdArgs[1:] {
			text += " " + arg.Key + "=" + arg.Vals[0]
		}
		s.After(25*time.Millisecond, func() {
			for _, o := range object(t, text) {
				s.write(o)
			}
		})
	case "busy":
		s.busy(word(0), s.Now.Add(duration(t, word(1))), 0)
	case "shy":
		s.faults.shy = word(0)
	case "lost":
		node := word(0)
		once(func(*v1.Pod) { s.lose(node) })
	case "silent", "give-up":
		n := s.node(word(0)).DeepCopy()
		if n.Status.Conditions[0].Status = v1.ConditionUnknown; d.Cmd == "give-up" {
			n.Spec.Taints = append(n.Spec.Taints, v1.Taint{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute})
		}
		s.write(n)
	case "steer":
		s.steer = word(0)
	case "ends":
		for _, p := range s.pods() {
			if p.Name == word(0) {
				s.terminate(p)
			}
		}
	case "scale":
		n, err := strconv.Atoi(word(1))
		if err != nil {
			t.Fatal(err)
		}
		once(func(p *v1.Pod) { s.scale(p, n) })
	case "run":
		s.Run(duration(t, word(0)))
	case "pods":
		for _, p := range s.pods() {
			fmt.Fprintf(&s.lines, "%s on %s\n", p.Name, p.Spec.NodeName)
		}
	case "scales":
		for _, key := range slices.Sorted(maps.Keys(s.objects)) {
			if o, ok := s.objects[key].(*appsv1.Deployment); ok {
				fmt.Fprintf(&s.lines, "%s %d %v\n", o.Name, *o.Spec.Replicas, o.Labels)
			}
			if o, ok := s.objects[key].(*appsv1.ReplicaSet); ok && rebalance.ThroughOf(o) != nil {
				fmt.Fprintf(&s.lines, "Rollout %s %d %v\n", o.Name, s.rollouts[o.Name], o.Labels)
			}
		}
	case "world":
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
}

// TestAPodThatAStatefulSetMakesByScalingIsNoSuccessor verifies that a pod with another ordinal of a
// StatefulSet is not taken for the successor, which has the victim's name.
func TestAPodThatAStatefulSetMakesByScalingIsNoSuccessor(t *testing.T) {
	core, controller := execute.New(execute.Options{}), true
	pod := func(name string) *v1.Pod {
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(begin.Add(time.Minute)),
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db", UID: "db", Controller: &controller}},
			},
			Spec: v1.PodSpec{NodeName: "c"}, Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
		}
	}
	var told []execute.Result
	step := func(e execute.Event) {
		for _, action := range core.Step(begin.Add(2*time.Minute), e) {
			if a, ok := action.(execute.MoveProgress); ok {
				told = append(told, a.Result)
			}
		}
	}
	step(execute.Recalled{Version: "1", Journal: execute.Journal{Move: &execute.Flight{
		Move:     rebalance.Move{Namespace: "default", Name: "db-0", UID: "before", Owner: "StatefulSet/db", From: "a", To: "b"},
		OwnerUID: "db", Begun: metav1.NewTime(begin),
	}}})
	step(execute.Seen{Object: pod("db-1")})
	step(execute.Listed{})
	if want := []execute.Result{execute.Resumed}; !slices.Equal(told, want) {
		t.Errorf("told %v when another pod of the StatefulSet was there, want %v", told, want)
	}
	step(execute.Seen{Object: pod("db-0")})
	if want := []execute.Result{execute.Resumed, execute.Elsewhere}; !slices.Equal(told, want) {
		t.Errorf("told %v when the successor was there, want %v", told, want)
	}
}

// TestAFailedPodWhoseEvictionIsRefusedIsLeft verifies that a failed pod with a refused eviction is
// not planned again in the same run, and does not end the run. It also verifies that removing
// another failed pod does not put a workload to rest.
func TestAFailedPodWhoseEvictionIsRefusedIsLeft(t *testing.T) {
	read, err := policy.Read("policy.yaml", []byte(`{apiVersion: descheduler/v1alpha2, kind: DeschedulerPolicy, profiles: [{
		pluginConfig: [{name: RemoveFailedPods}], plugins: {deschedule: {enabled: [RemoveFailedPods]}}}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	read.Goals = append(read.Goals, *rebalance.OwnGoal("heal", 0))
	s := newStage(t, 1, `node a taint=old:NoSchedule
		node b
		pod dead on=a failed=Evicted age=2h
		pod gone on=b failed=Evicted age=2h owner=ReplicaSet/web
		pods web count=2 on=a`, read)
	s.faults.refuse = func(p *v1.Pod) response.Outcome {
		if p.Name == "dead" {
			return response.Refused
		}
		return response.OK
	}
	s.start()
	s.Run(5 * time.Minute)
	if len(s.done) != 1 || s.done[0].Moves != 3 || s.done[0].Stopped != "" || s.results[string(execute.Withheld)] != 1 || len(s.wrong) > 0 {
		t.Errorf("done %+v, %v\n%s", s.done, s.wrong, s.lines.String())
	}
	if len(s.journal.Resting) != 1 {
		t.Errorf("resting: %v, want web alone", s.journal.Resting)
	}
}

// TestExecutionOfRandomWorlds carries out plans on random clusters without faults. It verifies that
// every successor arrives on its proved node, that no further pod becomes pending, and that a plan
// for the resulting state is empty.
func TestExecutionOfRandomWorlds(t *testing.T) {
	moves, misses := 0, 0
	seed, end, runs := seeds(600, 100)
	for ; seed < end; seed++ {
		s := randomStage(t, seed)
		waited := slices.ContainsFunc(s.pods(), func(p *v1.Pod) bool { return p.Spec.NodeName == "" })
		s.start()
		s.Run(40 * time.Minute)
		moves += s.results[string(execute.Arrived)]
		misses += s.results[string(execute.Elsewhere)] + s.results[string(execute.Pending)]
		if len(s.done) != 1 {
			s.fail("ended %d times", len(s.done))
		}
		if misses > 0 {
			s.fail("a successor did not arrive where it was proved to")
		}
		if waited { // the scheduler had a choice for these pods, so more pods can be moved than planned
			s.start()
			s.Run(40 * time.Minute)
		}
		s.settled()
		plan := rebalance.Make(s.state(), s.policy, rebalance.Options{Profiles: s.profiles, Arrived: s.successors()})
		if len(plan.Moves) > 0 && len(s.wrong) == 0 {
			s.fail("there is more to move:\n%s", show(plan))
		}
		s.report(seed)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d worlds, %d moves", runs, moves)
	if moves < runs/4 {
		t.Errorf("only %d moves in %d worlds: they are too quiet to show anything", moves, runs)
	}
}

// TestChaosOfExecution injects random faults: refused evictions, lost responses, terminated pods,
// lost nodes, another scheduler taking the room, and kills of the process. It verifies that in the
// end workloads have all their pods, no pod is pending that fits on a node, and at least one run
// has ended, and that pods were moved one at a time, within budgets.
func TestChaosOfExecution(t *testing.T) {
	moves, injected := 0, map[virtual.Injection]int{}
	seed, end, runs := seeds(600, 100)
	for ; seed < end; seed++ {
		s := randomStage(t, seed)
		s.disturb()
		s.start()
		for range 20 {
			s.Run(time.Minute)
			if !s.process.Running() {
				s.start()
			}
		}
		s.faults, s.line.Rules = trouble{}, nil
		virtual.Add(injected, s.line.Injected)
		s.watch.Restore(true)
		s.Run(40 * time.Minute)
		if !s.process.Running() {
			s.start()
			s.Run(40 * time.Minute)
		}
		moves += s.results[string(execute.Arrived)]
		if len(s.done) == 0 {
			s.fail("no run ended")
		}
		s.settled()
		s.report(seed)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d worlds, %d moves%s", runs, moves, virtual.Summary(injected))
	if moves < runs/6 {
		t.Errorf("only %d moves in %d worlds: they are too quiet to show anything", moves, runs)
	}
}

func randomStage(t *testing.T, seed uint64) *stage {
	s := newStage(t, seed, "", nil)
	text, goals := draw(s.Rand)
	s = newStage(t, seed, strings.TrimSpace(text), &rebalance.Policy{Goals: goals})
	return s
}

// disturb sets faults at random.
func (s *stage) disturb() {
	often := func(of int) bool { return s.Rand.IntN(of) == 0 }
	if often(2) {
		s.faults.refuse = func(*v1.Pod) response.Outcome {
			return [...]response.Outcome{response.OK, response.OK, response.Busy, response.Refused, response.Failed}[s.Rand.IntN(5)]
		}
	}
	if often(3) {
		s.faults.lose = func() bool { return often(3) }
	}
	if often(3) {
		s.responds = time.Duration(s.Rand.IntN(20)) * time.Second
	}
	s.faults.before = func(p *v1.Pod) {
		if often(8) {
			s.stolen[metav1.GetControllerOfNoCopy(p).UID] = true
			s.terminate(p)
		}
	}
	if often(2) {
		s.line.Rules = virtual.Every(0.1)
	}
	thieves := 0
	s.faults.after = func(p *v1.Pod) {
		switch s.Rand.IntN(10) {
		case 4:
			s.watch.Cut(s.Between(0, time.Minute), often(2))
		case 5:
			s.process.Freeze(s.Between(0, time.Minute), func() []execute.Event { return nil })
		case 0:
			thieves++
			for _, o := range object(s.t, fmt.Sprintf("pod thief%d owner=none cpu=1 on=n%d", thieves, s.Rand.IntN(4))) {
				s.write(o)
			}
		case 1:
			if often(2) {
				s.lose(fmt.Sprintf("n%d", s.Rand.IntN(6)))
			}
		case 2, 3:
			s.process.Kill()
		}
	}
}

// settled verifies the invariants of a cluster at rest.
func (s *stage) settled() {
	count := map[string]int{}
	for _, p := range s.pods() {
		owner := metav1.GetControllerOfNoCopy(p)
		if owner != nil {
			count[string(owner.UID)]++
		}
		if p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
			continue
		}
		c := s.cluster()
		if e := evaluate(s, c, p); e > 0 {
			s.fail("%s waits, and %d nodes would take it", p.Name, e)
		}
	}
	for uid, want := range s.replicas {
		if count[string(uid)] != want {
			s.fail("%s has %d pods, and wants %d", uid, count[string(uid)], want)
		}
	}
	for _, o := range s.objects {
		n, ok := o.(*v1.Node)
		if !ok {
			continue
		}
		for _, taint := range n.Spec.Taints {
			if taint.Key == rebalance.EmptyingTaint && taint.Value == "room" {
				s.fail("%s is still closed", n.Name)
			}
			if taint.Key == rebalance.EmptyingTaint && taint.Value == "empty" && slices.ContainsFunc(s.pods(), func(p *v1.Pod) bool { return p.Spec.NodeName == n.Name }) {
				s.fail("%s is closed, and not empty", n.Name)
			}
		}
	}
}

func (s *stage) report(seed uint64) {
	for _, wrong := range s.wrong {
		s.t.Errorf("seed %d, goals %v: %s", seed, names(s.policy.Goals), wrong)
	}
	if len(s.wrong) > 0 {
		s.t.Log("\n" + s.lines.String())
	}
}
