// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package trial

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-k8s/berth/internal/engine/config"
	"github.com/berth-k8s/berth/internal/engine/cycle"
	"github.com/berth-k8s/berth/internal/engine/journal"
	"github.com/berth-k8s/berth/internal/engine/journal/records"
)

const (
	spread     = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	packed     = spread + "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated, resources: [{name: cpu, weight: 1}]}}}]}]\n"
	preemptive = spread
	peaceful   = spread + "profiles: [{plugins: {postFilter: {disabled: [{name: DefaultPreemption}]}}}]\n"
)

func profilesOf(_ journal.Header, text []byte) (profiles []cycle.Profile, err error) {
	c, err := config.Parse("test", text, config.Options{})
	if err != nil {
		return nil, err
	}
	for _, p := range c.Profiles {
		profiles = append(profiles, cycle.Profile{Profile: p})
	}
	return profiles, nil
}

var dawn = time.Date(2026, 1, 1, 6, 0, 0, 0, time.UTC)

// town is the recorded cluster: an API server with a latency of a hundredth of a second, kubelets,
// and a controller that recreates pods.
type town struct {
	*day
	t       *testing.T
	journal *journal.Writer
	objects map[types.UID]*v1.Pod
	bindsTo map[string]string // nodes of the pods placed before the journal began
	leaving time.Duration     // termination time of victims
	renewal time.Duration     // delay until controllers replace victims
}

// record plays a script on a cluster, and returns its journal.
func record(t *testing.T, configuration string, script func(c *town)) []byte {
	t.Helper()
	h := journal.Header{Began: dawn, Seed: 5, Configuration: configuration}
	profiles, err := profilesOf(h, []byte(configuration))
	if err != nil {
		t.Fatal(err)
	}
	core, err := journal.Core(h, profiles)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := journal.Create(dir, h, records.Limits{Size: 1 << 24}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &town{day: &day{core: core, now: dawn}, t: t, leaving: 30 * time.Second, renewal: 10 * time.Millisecond, journal: w, objects: map[types.UID]*v1.Pod{}}
	c.tell(cycle.Follows{Kinds: []cycle.Kind{cycle.Nodes, cycle.Pods}})
	for _, kind := range []cycle.Kind{cycle.Nodes, cycle.Pods} {
		c.tell(cycle.Listing{Kind: kind})
		c.tell(cycle.Listed{Kind: kind})
	}
	c.tell(cycle.Led{})
	script(c)
	for {
		for !c.core.Wake(c.now).After(c.now) {
			c.tell(cycle.Tick{})
		}
		next, ok := c.agenda.Next()
		if !ok {
			break
		}
		if due, ok := c.core.Due(); ok && due.Before(next) {
			c.now = due
			continue
		}
		c.now = next
		c.agenda.RunFirst()
	}
	if err := w.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	files, err := records.Files(dir)
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (c *town) tell(e cycle.Event) {
	actions := slices.Clone(c.core.Step(c.now, e))
	c.journal.Add(c.now, e, actions)
	for _, action := range actions {
		switch a := action.(type) {
		case cycle.Bind:
			c.soon(func() {
				c.tell(cycle.Answered{Ticket: a.Ticket})
				if p := c.objects[a.Attempt.Pod.UID]; p != nil {
					c.put(p, func(p *v1.Pod) { p.Spec.NodeName = a.Attempt.Node })
					c.ends(p)
				}
			})
		case cycle.Remove:
			c.soon(func() {
				c.tell(cycle.Answered{Ticket: a.Ticket})
				c.evict(c.objects[a.Victim.UID])
			})
		}
	}
}

func (c *town) soon(do func()) { c.agenda.Add(c.now.Add(10*time.Millisecond), do) }

func (c *town) after(d time.Duration, do func()) { c.agenda.Add(dawn.Add(d), do) }

func (c *town) put(p *v1.Pod, how func(*v1.Pod)) {
	p = p.DeepCopy()
	how(p)
	c.objects[p.UID] = p
	c.tell(cycle.Seen{Kind: cycle.Pods, Object: p.DeepCopy()})
}

// ends terminates a pod after the running time in its annotation.
func (c *town) ends(p *v1.Pod) {
	if runs, err := time.ParseDuration(p.Annotations["runs"]); err == nil {
		c.agenda.Add(c.now.Add(runs), func() {
			c.put(c.objects[p.UID], func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded })
		})
	}
}

func (c *town) evict(p *v1.Pod) {
	c.put(p, func(p *v1.Pod) {
		p.DeletionTimestamp = &metav1.Time{Time: c.now.Add(30 * time.Second)}
		p.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: v1.PodReasonPreemptionByScheduler}}
	})
	again := p.DeepCopy()
	again.Name, again.UID, again.Spec.NodeName = p.Name+"-b", p.UID+"-b", ""
	c.agenda.Add(c.now.Add(c.renewal), func() { c.put(again, func(*v1.Pod) {}) })
	c.agenda.Add(c.now.Add(c.leaving), func() {
		last := c.objects[p.UID]
		delete(c.objects, p.UID)
		c.tell(cycle.Gone{Kind: cycle.Pods, Object: last})
	})
}

func (c *town) node(name string) {
	c.tell(cycle.Seen{Kind: cycle.Nodes, Object: &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status: v1.NodeStatus{Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("4"), v1.ResourceMemory: resource.MustParse("16Gi"), v1.ResourcePods: resource.MustParse("110"),
		}},
	}})
}

func (c *town) pod(name, cpu string, priority int32, runs string) {
	owner, _, _ := strings.Cut(name, "-")
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Time{Time: c.now}, Annotations: map[string]string{"runs": runs},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: owner, UID: types.UID(owner), Controller: ptr.To(true)}},
		},
		Spec: v1.PodSpec{NodeName: c.bindsTo[name], SchedulerName: v1.DefaultSchedulerName, Priority: &priority, Containers: []v1.Container{{
			Name: "c", Image: "i", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}},
		}}},
	}
	c.put(p, func(*v1.Pod) {})
}

// play compares the original day with the day under another configuration.
func play(t *testing.T, text []byte, other string) *Comparison {
	t.Helper()
	course := func(configuration string) *Course {
		r, err := journal.NewReader(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		known, err := Recall(r)
		if err != nil {
			t.Fatal(err)
		}
		if r, err = journal.NewReader(bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		o := Options{Recorded: profilesOf, Known: known}
		if configuration != "" {
			if o.Profiles, err = profilesOf(r.Header, []byte(configuration)); err != nil {
				t.Fatal(err)
			}
		}
		c, err := Play(r, o)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	return Compare(course(""), course(other))
}

// busy scripts a morning with forty pods on four nodes. Half of the pods end after a minute.
func busy(c *town) {
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c.node(name)
	}
	for i := range 40 {
		c.after(time.Duration(i)*5*time.Second, func() {
			runs := ""
			if i%2 == 0 {
				runs = "1m"
			}
			c.pod(fmt.Sprintf("p%02d", i), "500m", 0, runs)
		})
	}
}

// TestTheSameConfigurationChangesNothing verifies that the journal's own configuration reproduces
// the day, including the nodes.
func TestTheSameConfigurationChangesNothing(t *testing.T) {
	c := play(t, record(t, spread, busy), spread)
	if c.Recorded != 40 || c.Agreed != c.Recorded {
		t.Errorf("%d of %d pods go where they went", c.Agreed, c.Recorded)
	}
	if n := len(c.Elsewhere) + len(c.Longer) + len(c.Shorter) + len(c.Preempted) + len(c.NoLonger) + len(c.Pending) + len(c.NowPlaced); n != 0 {
		t.Errorf("%d differences: %+v", n, c)
	}
	if c.Before != c.After {
		t.Errorf("%+v and then %+v", c.Before, c.After)
	}
}

// TestTiesGoToTheNodesOfTheJournal verifies that random choices in the journal do not cause
// differences between courses: a pod whose recorded node is as good as any is placed there, even by
// preemption.
func TestTiesGoToTheNodesOfTheJournal(t *testing.T) {
	text := record(t, spread, func(c *town) {
		for _, name := range []string{"n1", "n2", "n3", "n4"} {
			c.node(name)
		}
		for i := range 4 {
			c.after(time.Duration(i)*time.Second, func() { c.pod(fmt.Sprint("p", i), "3", 0, "") })
		}
		c.after(time.Minute, func() { c.pod("urgent", "3", 9, "") })
	})
	reader := func() *journal.Reader {
		r, err := journal.NewReader(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	recorded, err := Recall(reader())
	if err != nil || len(recorded.nodes) != 5 {
		t.Fatal(recorded, err)
	}
	for turn := range 4 { // one of these turns may match by chance
		want := map[types.UID]string{}
		for i := range 4 {
			want[types.UID(fmt.Sprint("p", i))] = fmt.Sprint("n", 1+(i+turn)%4)
		}
		want["urgent"] = fmt.Sprint("n", 4-turn)
		course, err := Play(reader(), Options{Recorded: profilesOf, Known: Known{nodes: want}})
		if err != nil {
			t.Fatal(err)
		}
		for uid, node := range want {
			if got := course.Pods[uid].Node; got != node {
				t.Errorf("%s goes to %s, and %s is as good and preferred", uid, got, node)
			}
		}
	}
}

// TestPackingInsteadOfSpreading verifies that packing places pods elsewhere, and needs fewer nodes
// while there is room.
func TestPackingInsteadOfSpreading(t *testing.T) {
	text := record(t, spread, func(c *town) {
		for _, name := range []string{"n1", "n2", "n3", "n4"} {
			c.node(name)
		}
		for i := range 8 {
			c.after(time.Duration(i)*time.Second, func() { c.pod(fmt.Sprint("p", i), "500m", 0, "") })
		}
	})
	c := play(t, text, packed)
	if c.Before.Nodes != 4 || c.After.Nodes != 1 || len(c.Elsewhere) != 6 {
		t.Errorf("%d nodes, then %d; elsewhere %v", c.Before.Nodes, c.After.Nodes, c.Elsewhere)
	}
}

// contended fills a node with two small pods, the first of which ends after five minutes, and adds
// an important pod.
func contended(c *town) {
	c.node("n1")
	c.pod("small-1", "2", 0, "5m")
	c.pod("small-2", "2", 0, "")
	c.after(time.Minute, func() { c.pod("urgent", "2", 1000, "") })
	c.after(10*time.Minute, func() {})
}

// TestWithoutPreemption verifies that the victims stay, that their replacements do not appear, and
// that the important pod waits for room.
func TestWithoutPreemption(t *testing.T) {
	c := play(t, record(t, preemptive, contended), peaceful)
	if c.Before.Preempted != 1 || c.After.Preempted != 0 || len(c.NoLonger) != 1 || len(c.Preempted) != 0 {
		t.Errorf("%+v", c)
	}
	if c.Before.Pods != 4 || c.After.Pods != 3 {
		t.Errorf("%d pods, then %d: a replacement must appear only if its victim was removed", c.Before.Pods, c.After.Pods)
	}
	if len(c.Longer) != 1 || c.Longer[0].Name.Name != "urgent" || c.Longer[0].After != 240.01 {
		t.Errorf("longer: %+v", c.Longer)
	}
}

// TestWithPreemption verifies that a pod that was not preempted in the journal is evicted, takes
// its grace period to end, and is recreated by its controller.
func TestWithPreemption(t *testing.T) {
	c := play(t, record(t, peaceful, contended), preemptive)
	if c.Before.Preempted != 0 || c.After.Preempted != 1 || len(c.Preempted) != 1 {
		t.Errorf("%+v", c)
	}
	if c.After.Pods != 4 || c.After.Pending != 0 {
		t.Errorf("%d pods, %d pending: the victim's controller must make a replacement", c.After.Pods, c.After.Pending)
	}
	if diff := cmp.Diff([]Waited{{Name{"default", "urgent"}, 240.01, 30}}, c.Shorter); diff != "" {
		t.Error(diff)
	}
}

// TestPreemptionTakesAsLong verifies that victims leave as fast as recorded, and that their
// replacements appear late enough for earlier pending pods to be decided first, as recorded.
func TestPreemptionTakesAsLong(t *testing.T) {
	script := func(c *town) {
		c.leaving = 2 * time.Second
		nodes := []string{"n1", "n2"}
		for _, name := range nodes {
			c.node(name)
		}
		for _, name := range nodes {
			c.pod("small-"+name, "2", 0, "")
		}
		c.after(time.Minute, func() { c.pod("urgent-1", "4", 1000, "") })
		c.after(time.Minute+15*time.Millisecond, func() { c.pod("urgent-2", "4", 1000, "") })
		c.after(10*time.Minute, func() {})
	}
	text := record(t, preemptive, script)
	c := play(t, text, preemptive)
	if c.Before.Preempted != 2 || c.Before.Pods != 6 || c.Before.Longest != 2.01 {
		t.Errorf("%+v, want two victims, who leave within two seconds", c.Before)
	}
	if c.Before != c.After {
		t.Errorf("%+v and then %+v", c.Before, c.After)
	}
}

// TestReplacementsComeWhenTheyDid verifies that a slow controller replaces its pods equally slowly:
// the replacements do not reclaim room taken meanwhile.
func TestReplacementsComeWhenTheyDid(t *testing.T) {
	text := record(t, preemptive, func(c *town) {
		c.renewal = time.Second
		c.bindsTo = map[string]string{"small": "n1", "solid": "n2"}
		c.node("n1")
		c.node("n2")
		c.pod("small", "2", 0, "")
		c.pod("solid", "2", 2000, "")
		c.after(time.Minute, func() { c.pod("urgent-1", "4", 1000, "") })
		c.after(time.Minute+500*time.Millisecond, func() { c.pod("urgent-2", "2", 1000, "") })
		c.after(10*time.Minute, func() {})
	})
	c := play(t, text, preemptive)
	if c.Before.Preempted != 1 || c.RecordedPreempted != 1 || c.Before != c.After {
		t.Errorf("%d were preempted: %+v and then %+v", c.RecordedPreempted, c.Before, c.After)
	}
}

// TestVictimsAreNamedAsTheyWere verifies that replacements preempted in turn are counted but not
// named, because the journal does not contain such pods.
func TestVictimsAreNamedAsTheyWere(t *testing.T) {
	c := play(t, record(t, peaceful, func(c *town) {
		c.node("n1")
		c.pod("small", "4", 0, "")
		c.after(time.Minute, func() { c.pod("urgent-1", "4", 1000, "") })
		c.after(2*time.Minute, func() { c.node("n2") })
		c.after(3*time.Minute, func() { c.pod("urgent-2", "4", 1000, "") })
		c.after(10*time.Minute, func() {})
	}), preemptive)
	if diff := cmp.Diff([]Name{{"default", "small"}}, c.Preempted); diff != "" || c.After.Preempted != 2 {
		t.Errorf("%+v: %s", c.After, diff)
	}
}

// TestPodsThatNobodyServes verifies that pods not served by another configuration are counted,
// since that may be unintended.
func TestPodsThatNobodyServes(t *testing.T) {
	script := func(c *town) {
		c.node("n1")
		c.pod("one", "1", 0, "")
		c.pod("two", "1", 0, "")
	}
	c := play(t, record(t, spread, script), spread+"profiles: [{schedulerName: other}]\n")
	if diff := cmp.Diff(map[string]int{v1.DefaultSchedulerName: 2}, c.Unserved); diff != "" || c.After.Placed != 0 {
		t.Errorf("%+v: %s", c.After, diff)
	}
	if c = play(t, record(t, spread, script), spread); len(c.Unserved) > 0 {
		t.Errorf("%v", c.Unserved)
	}
}

// TestPodsRunForAsLong verifies that a pod that ran for a minute in the journal runs for a minute,
// even if it starts later.
func TestPodsRunForAsLong(t *testing.T) {
	script := func(c *town) {
		c.node("n1")
		c.pod("first", "4", 0, "1m")
		c.after(time.Second, func() { c.pod("second", "4", 100, "1m") })
		c.after(2*time.Second, func() { c.pod("third", "4", 0, "1m") })
		c.after(10*time.Minute, func() {})
	}
	c := play(t, record(t, peaceful, script), peaceful)
	if c.Before.Placed != 3 || c.Before.Longest != 118.02 {
		t.Errorf("%+v", c.Before)
	}
	if c.Before != c.After {
		t.Errorf("%+v and then %+v", c.Before, c.After)
	}
}

// TestPodsThatNeverRanEnd verifies that a pod that ended without a node in the journal ends at the
// same time in the course, and does not wait forever.
func TestPodsThatNeverRanEnd(t *testing.T) {
	script := func(c *town) {
		c.node("n1")
		c.pod("big", "8", 0, "")
		c.pod("deleted", "8", 0, "")
		for i, name := range []types.UID{"big", "deleted"} {
			c.after(time.Minute, func() {
				c.put(c.objects[name], func(p *v1.Pod) { p.Status.Phase = v1.PodFailed })
			})
			if i == 1 {
				c.after(2*time.Minute, func() { c.tell(cycle.Gone{Kind: cycle.Pods, Object: c.objects[name]}) })
			}
		}
		c.after(10*time.Minute, func() { c.node("n2") })
	}
	c := play(t, record(t, peaceful, script), peaceful)
	if c.Before.Pods != 2 || c.Before.Pending != 0 || c.Before != c.After {
		t.Errorf("%+v and then %+v", c.Before, c.After)
	}
}

// TestVictimsFromBeforeTheJournal verifies that pods placed before the beginning of the journal can
// be victims, in the journal or here.
func TestVictimsFromBeforeTheJournal(t *testing.T) {
	script := func(c *town) {
		c.node("n1")
		c.pod("old", "4", 0, "")
		c.after(time.Minute, func() { c.pod("urgent", "4", 1000, "2m") })
		c.after(2*time.Minute, func() {
			if old := c.objects["old"]; old != nil {
				c.put(old, func(p *v1.Pod) { p.Labels = map[string]string{"changed": "yes"} })
			}
		})
		c.after(5*time.Minute, func() { c.tell(cycle.Gone{Kind: cycle.Pods, Object: c.objects["urgent"]}) })
		c.after(10*time.Minute, func() {})
	}
	bound := func(c *town) {
		c.bindsTo = map[string]string{"old": "n1"}
		script(c)
	}
	c := play(t, record(t, preemptive, bound), peaceful)
	if c.Before.Preempted != 1 || c.Before.Placed != 2 || c.After.Preempted != 0 || c.After.Pods != 1 || c.After.Placed != 0 {
		t.Errorf("preempted in the journal only: %+v and then %+v", c.Before, c.After)
	}
	c = play(t, record(t, peaceful, bound), preemptive)
	if c.Before.Placed != 0 || c.After.Preempted != 1 || c.After.Placed != 2 {
		t.Errorf("preempted here only: %+v and then %+v", c.Before, c.After)
	}
}
