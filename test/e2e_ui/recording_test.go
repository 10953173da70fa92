// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e_ui

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/test/e2e_ui/stage"
)

var began = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// recording writes a folder as written by berth record, with ten minutes of a cluster with three
// nodes. After four minutes a node is tainted, and a pod is evicted and replaced. The objects in
// more are added after nine minutes.
func recording(t *testing.T, more ...any) string {
	t.Helper()
	c := stage.NewCrowd(3, 1, 3)
	c.Close()
	dir := t.TempDir()
	write := func(name string, parts ...string) {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := writeFile(file, strings.Join(parts, "")); err != nil {
			t.Fatal(err)
		}
	}
	text := func(o any) string {
		data, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	change := func(minute int, kind string, o any) string {
		return text(map[string]any{"at": metav1.NewMicroTime(began.Add(time.Duration(minute) * time.Minute)), "type": kind, "object": o}) + "\n"
	}
	write("recording.index", fmt.Sprintf(`{"apiVersion":"berth.dev/v1alpha1","kind":"Recording","sessions":[{"folder":"sessions/a","began":%q,"until":%q}]}`,
		began.Format("2006-01-02T15:04:05.000000Z"), began.Add(10*time.Minute).Format("2006-01-02T15:04:05.000000Z")))
	write("sessions/a/nodes.json", text(map[string]any{"items": c.Nodes}))
	write("sessions/a/pods.json", text(map[string]any{"items": c.Pods}))
	tainted := c.Nodes[1].DeepCopy()
	tainted.Spec.Taints = []v1.Taint{{Key: "maintenance", Effect: v1.TaintEffectNoExecute}}
	evicted := c.Pods[0].DeepCopy()
	evicted.Status.Conditions = []v1.PodCondition{{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "DeletionByTaintManager"}}
	changes := []string{change(4, "Set", tainted), change(4, "Set", evicted), change(5, "Delete", evicted), change(5, "Set", c.Pod(77, ""))}
	for _, o := range more {
		changes = append(changes, change(9, "Set", o))
	}
	write("sessions/a/changes-000001.jsonl", changes...)
	return dir
}

func TestARecordingIsGoneThroughWithASlider(t *testing.T) {
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	ui, err := stage.Run(shared.bin, "ui", "-f", recording(t), "--port", "0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ui.Stop)
	page, err := shared.browser.Open(ui.URL, desk)
	if err != nil {
		t.Fatal(err)
	}
	p := tab{page, t}
	t.Cleanup(p.done)
	node := "document.querySelector('#map').map.node('node-2')"
	p.wait("document.querySelector('#status').dataset.state === 'recording' && document.querySelector('#map').dataset.nodes === '3'")
	p.wait(node + ".taints[0] === 'maintenance:NoExecute' && document.querySelector('#body .list').dataset.pods === '1'") // the end is shown first
	p.shows("#strip", "1 eviction, 0 preemptions, 0 nodes failed, up to 1 pending")
	slide := func(minute int) {
		t.Helper()
		at := began.Add(time.Duration(minute) * time.Minute).UnixMilli()
		eval[bool](p, fmt.Sprintf("((s) => { s.value = '%d'; s.dispatchEvent(new Event('input')); return true; })(document.querySelector('#player input'))", at))
		p.wait(fmt.Sprintf("document.querySelector('#map').map.store.now() === %d", at))
	}
	slide(2)
	p.wait(node + ".taints.length === 0 && document.querySelector('#body .list').dataset.pods === '0'")
	slide(4)
	p.wait(node + ".taints.length === 1 && document.querySelector('#body .list').dataset.pods === '0'")
	// The address contains the shown time, and queries refer to that time.
	search := eval[string](p, "location.search")
	other, err := shared.browser.Open(at(ui.URL, search+"#/node/node-1"), desk)
	if err != nil {
		t.Fatal(err)
	}
	q := tab{other, t}
	t.Cleanup(q.done)
	q.wait(fmt.Sprintf("document.querySelector('#map').map.store.now() === %d", began.Add(4*time.Minute).UnixMilli()))
	q.shows("#body", "pod-1")
	eval[bool](q, "(location.hash = '#/pod/default/pod-1', true)")
	q.shows("#body", "The pod is on node node-1")
	// During playback, the time advances to the end of the recording.
	eval[bool](p, "((s) => { s.value = '600'; return true; })(document.querySelector('#player select'))")
	p.click("#player button")
	p.wait(fmt.Sprintf("document.querySelector('#map').map.store.now() === %d && document.querySelector('#player button').textContent === 'Play'", began.Add(10*time.Minute).UnixMilli()))
	p.wait("document.querySelector('#body .list').dataset.pods === '1'")
}

// TestTheQueueShowsPodGroups verifies that the queue shows one line per pod group, with the numbers
// of placed pods and of all pods, and the reason why the other pods are pending.
func TestTheQueueShowsPodGroups(t *testing.T) {
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	crowd := stage.NewCrowd(3, 1, 0)
	crowd.Close()
	group := &schedulingv1beta1.PodGroup{TypeMeta: metav1.TypeMeta{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train"}}
	group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: 3}
	const why = "2 of 3 pods fit, 3 are needed at once; default/pod-203: 0/3 nodes are available: 3 Insufficient cpu."
	group.Status.Conditions = []metav1.Condition{{Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionFalse, Reason: "Unschedulable", Message: why}}
	objects := []any{group}
	for i, on := range []string{"node-1", "", ""} {
		p := crowd.Pod(200+i, on)
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &group.Name}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train-job", UID: "job", Controller: new(true)}}
		objects = append(objects, p)
	}
	dir := recording(t, objects...)
	ui, err := stage.Run(shared.bin, "ui", "-f", dir, "--port", "0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ui.Stop)
	page, err := shared.browser.Open(ui.URL, desk)
	if err != nil {
		t.Fatal(err)
	}
	p := tab{page, t}
	t.Cleanup(p.done)
	p.shows("#body .row .fold", "train")
	p.shows("#body .row .fold .kind", "Pod group")
	p.shows("#body .row:has(.fold) .why", "1 of 3 pods placed · "+why)
	if rows := eval[string](p, "document.querySelector('#body .list').dataset.rows"); rows != "2" {
		t.Errorf("%s lines, want one of the group and one of the pod in none", rows)
	}
	p.click("#body .fold")
	p.wait("document.querySelector('#body .list').dataset.rows === '4'")
	p.shows("#body .row.within", "pod-20")
	// The page of the group has the same content as berth explain podgroup/train.
	p.click("#body .row:has(.fold) a.page")
	p.wait("location.hash === '#/group/default/train'")
	p.shows("#body .summary-line", "The group waits for its turn: ")
	p.shows("#body .members", "pod-201 on node-1")
	p.shows("#body", "What the scheduler decided last")
	p.shows("#body", "gang: 3 pods at once")
	said, err := stage.Berth(shared.bin, "explain", "-f", dir, "--at", began.Add(10*time.Minute).Format(time.RFC3339), "podgroup/train")
	if err != nil {
		t.Fatal(err)
	}
	summary := eval[string](p, "document.querySelector('#body .summary-line').textContent")
	if !strings.Contains(strings.Join(strings.Fields(said), " "), strings.Join(strings.Fields(summary), " ")) {
		t.Errorf("the page says %q, and the command line\n%s", summary, said)
	}
	pictures(t, ui.URL, "#/group/default/train", "9-group", "document.querySelector('.summary-line')")
}

// TestTheQueueShowsTreesOfPodGroups verifies that the queue shows one line per tree of pod groups,
// with the numbers of placed groups, of all groups and of required groups, and the reason why the
// others are pending. The line unfolds to the groups in the tree, and a group unfolds to its pods.
func TestTheQueueShowsTreesOfPodGroups(t *testing.T) {
	if noBrowser != "" {
		t.Skip(noBrowser)
	}
	crowd := stage.NewCrowd(3, 1, 0)
	crowd.Close()
	composite := func(name string, parent *string, least int32) *schedulingv1alpha3.CompositePodGroup {
		c := &schedulingv1alpha3.CompositePodGroup{TypeMeta: metav1.TypeMeta{APIVersion: "scheduling.k8s.io/v1alpha3", Kind: "CompositePodGroup"},
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		c.Spec.ParentCompositePodGroupName = parent
		c.Spec.SchedulingPolicy.Gang = &schedulingv1alpha3.CompositeGangSchedulingPolicy{MinGroupCount: least}
		return c
	}
	const why = "2 of 3 pods fit, 3 are needed at once; default/pod-203: 0/3 nodes are available: 3 Insufficient cpu."
	objects := []any{composite("train", nil, 2), composite("workers", new("train"), 1)}
	for i, name := range []string{"lead", "west"} {
		group := &schedulingv1beta1.PodGroup{TypeMeta: metav1.TypeMeta{APIVersion: "scheduling.k8s.io/v1beta1", Kind: "PodGroup"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		group.Spec.ParentCompositePodGroupName = new([]string{"train", "workers"}[i])
		group.Spec.SchedulingPolicy.Gang = &schedulingv1beta1.GangSchedulingPolicy{MinCount: int32(1 + 2*i)}
		if name == "west" {
			group.Status.Conditions = []metav1.Condition{{Type: schedulingv1beta1.PodGroupInitiallyScheduled, Status: metav1.ConditionFalse, Reason: "Unschedulable", Message: why}}
		}
		objects = append(objects, group)
	}
	for i, in := range []struct{ group, node string }{{"lead", "node-1"}, {"west", ""}, {"west", ""}, {"west", ""}} {
		p := crowd.Pod(200+i, in.node)
		p.Spec.SchedulingGroup = &v1.PodSchedulingGroup{PodGroupName: &in.group}
		objects = append(objects, p)
	}
	ui, err := stage.Run(shared.bin, "ui", "-f", recording(t, objects...), "--port", "0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ui.Stop)
	page, err := shared.browser.Open(ui.URL, desk)
	if err != nil {
		t.Fatal(err)
	}
	p := tab{page, t}
	t.Cleanup(p.done)
	p.shows("#body .row:has(.fold) .kind", "Composite pod group")
	p.shows("#body .row:has(.fold) .why", "1 of 2 groups placed, 2 needed at once · CompositePodGroup workers: PodGroup west: "+why)
	p.click("#body .fold")
	p.wait("document.querySelector('#body .list').dataset.rows === '5'") // including the pod without a group
	lines := "[...document.querySelectorAll('#body .row.within')].sort((a, b) => a.dataset.at - b.dataset.at).map((r) => r.querySelector('.name').textContent + ': ' + r.querySelector('.why').textContent).join('\\n')"
	want := "workers: 0 of 1 group placed · PodGroup west: " + why + "\nwest: 0 of 3 pods placed, 3 needed at once · " + why + "\nlead: 1 of 1 pod placed"
	if got := eval[string](p, lines); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
	p.click("#body .row.within button.fold")
	p.wait("document.querySelector('#body .list').dataset.rows === '8'")
	p.shows("#body .row.within a.name", "pod-20")
}
