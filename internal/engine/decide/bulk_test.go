// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/engine/cluster"
	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// manyValues returns label values of about 100 KB in total.
func manyValues() (values []string) {
	for i := range 5000 {
		values = append(values, fmt.Sprintf("a-word-of-18-%05d", i))
	}
	return values
}

// TestSkeletonsOfLargeClassesAreDropped verifies that the total size of the skeletons of large
// classes and the number of their plans are bounded, and that the skeleton of a small class is
// kept.
func TestSkeletonsOfLargeClassesAreDropped(t *testing.T) {
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	small := c.Pending(benchPod(0, "plain"))
	d.Decide(small)
	values := manyValues()
	for i := range 150 {
		pod := benchPod(i, "plain")
		pod.UID = types.UID(fmt.Sprint(i))
		pod.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &v1.NodeSelector{
			NodeSelectorTerms: []v1.NodeSelectorTerm{{MatchExpressions: []v1.NodeSelectorRequirement{
				{Key: "disk", Operator: v1.NodeSelectorOpNotIn, Values: values}, {Key: "rack", Operator: v1.NodeSelectorOpNotIn, Values: []string{fmt.Sprint(i)}},
			}}},
		}}}
		p := c.Pending(pod)
		if decision := d.Decide(p); decision.Node == nil {
			t.Fatal("no node")
		}
	}
	skeletons, plans := 0, 0
	for _, sk := range d.planner.skeletons {
		skeletons += sk.bulk()
	}
	if skeletons == 0 || skeletons > cluster.MostBulk {
		t.Errorf("skeletons of %d KiB are kept", skeletons>>10)
	}
	for i := range d.cache.plans {
		if d.cache.plans[i].class != nil {
			plans++
		}
	}
	if plans > recentBulky+1 {
		t.Errorf("%d plans are kept", plans)
	}
	if sk := d.planner.skeletonFor(small); sk == nil || sk.bulk() > 0 {
		t.Error("the skeleton of a small class is gone")
	}
}

// TestASmallClassKeepsNoLargeOne verifies that the plan of a small class does not retain a large
// example pod, although pods with the same requirements share a skeleton.
func TestASmallClassKeepsNoLargeOne(t *testing.T) {
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	large, small := benchPod(0, "plain"), benchPod(1, "plain")
	for i, value := range manyValues() {
		large.Labels[fmt.Sprint("label-", i)] = value
	}
	d.Decide(c.Pending(large))
	if sk := d.planner.skeletonFor(c.Pending(large)); sk == nil || sk.bulk() == 0 {
		t.Fatal("the large class is no example")
	}
	d.Decide(c.Pending(small))
	if sk := d.planner.skeletonFor(c.Pending(large)); sk == nil || sk.bulk() > 0 || len(d.planner.skeletons) != 1 {
		t.Errorf("the large class is still the example, among %d", len(d.planner.skeletons))
	}
	if len(d.cache.bases) != 1 {
		t.Errorf("%d bases, want one for both", len(d.cache.bases))
	}
}

// TestTermsOfLargePodsAreDropped verifies that the size of unused terms is bounded, and that the
// labels and spec of the first pod with the terms are not retained.
func TestTermsOfLargePodsAreDropped(t *testing.T) {
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	values := manyValues()
	pod := func(i int) *v1.Pod {
		term := aTerm(v1.LabelTopologyZone, &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: fmt.Sprint("app-", i), Operator: metav1.LabelSelectorOpIn, Values: values},
		}})
		return towards(fmt.Sprint("large-", i), func(p *v1.Pod) {
			p.Labels = map[string]string{"i": fmt.Sprint(i)}
			p.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []v1.PodAffinityTerm{term}
		})
	}
	for i := range 40 {
		p := pod(i)
		c.SetPod(p)
		d.ix.followLog()
		c.RemovePod(p.UID)
		d.ix.followLog()
	}
	kept := 0
	for users := range d.ix.terms.known.All {
		kept += users.class.Bulk
		if users.class.Labels != nil || users.class.Spec != nil {
			t.Fatal("the class is kept with its labels and spec")
		}
	}
	if kept > bulkUnused+(100<<10) || kept != d.ix.terms.bulk {
		t.Errorf("terms of %d KiB are kept, and %d counted", kept>>10, d.ix.terms.bulk>>10)
	}
	p := pod(0)
	c.SetPod(p) // add the pod again
	d.ix.followLog()
	if d.ix.terms.unused != d.ix.terms.known.Len()-1 || d.ix.terms.bulk > kept {
		t.Errorf("of %d terms %d are unused, with %d bytes", d.ix.terms.known.Len(), d.ix.terms.unused, d.ix.terms.bulk)
	}
}

// TestRankingsOfLargeClassesAreDropped verifies that the memory of a ranking includes its class,
// and that no reference to a dropped ranking remains.
func TestRankingsOfLargeClassesAreDropped(t *testing.T) {
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	values := manyValues()
	for i := range 250 {
		pod := benchPod(i, "plain")
		pod.UID, pod.Labels = types.UID(fmt.Sprint(i)), map[string]string{}
		// A request for ephemeral storage makes the class not simple.
		pod.Spec.Containers[0].Resources.Requests[v1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(i+1), resource.BinarySI)
		for k, value := range values {
			pod.Labels[fmt.Sprint("label-", k)] = value
		}
		d.Decide(c.Pending(pod))
	}
	bulk, dropped := 0, 0
	for _, r := range d.cache.rankings {
		bulk += r.plan.example.Class.Bulk
	}
	for _, m := range d.cache.byClass {
		if m.dropped {
			dropped++
		}
	}
	if bulk == 0 || bulkBytes*bulk > d.cache.mostBytes() {
		t.Errorf("rankings of classes of %d KiB are kept", bulk>>10)
	}
	if dropped > 0 {
		t.Errorf("%d rankings that were dropped are kept by class", dropped)
	}
}

// TestPlansKeepNoDroppedBase verifies that plans do not retain dropped bases. More plans than bases
// are kept.
func TestPlansKeepNoDroppedBase(t *testing.T) {
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	for i := range 2 * maxBases {
		pod := benchPod(i, "plain")
		pod.UID = types.UID(fmt.Sprint(i))
		pod.Spec.Tolerations = []v1.Toleration{{Key: fmt.Sprint("key-", i), Operator: v1.TolerationOpExists}}
		p := c.Pending(pod)
		holds(t, c, d, p, d.Decide(p))
	}
	plans := 0
	for i := range d.cache.plans {
		if known := &d.cache.plans[i]; known.class != nil {
			plans++
			if b := known.base; b == nil != (known.nodes == 0) || b != nil && d.cache.bases[b.name] != b {
				t.Fatalf("a plan has the base %v", b)
			}
		}
	}
	if plans < 2*maxBases || len(d.cache.bases) > maxBases {
		t.Errorf("%d plans and %d bases are kept", plans, len(d.cache.bases))
	}
	p := c.Pending(benchPod(0, "plain")) // its base may have been dropped
	holds(t, c, d, p, d.Decide(p))
}

// mostBytesOfValue bounds the memory of a listed value excluding its text. mostBytesOfLabel bounds
// the memory of a label of a placed pod.
const mostBytesOfValue, mostBytesOfLabel = 120, 45

// TestMemoryOfListedValues measures the memory of terms that list as many values as fit into an
// object, and verifies that deleting the pod frees this memory.
func TestMemoryOfListedValues(t *testing.T) {
	const many = 200_000
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	p := c.Pending(benchPod(0, "plain"))
	d.Decide(p)
	before := heap()
	values := make([]string, many)
	for i := range values {
		values[i] = fmt.Sprintf("%05d", i)
	}
	selector := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: values}}}
	long := towards("long", preferring(v1.LabelTopologyZone, selector))
	c.SetPod(long)
	values, selector = nil, nil
	own := c.Pending(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{"app": "00017"}}})
	d.ix.followLog()
	for _, users := range d.ix.terms.usersFor(own.Class.Labels) {
		d.ix.termEffects(users, own.Class, plugins.NewAffinities(c, own.Class))
	}
	if each := (heap() - before) / many; each > mostBytesOfValue {
		t.Errorf("a listed value takes %d bytes", each)
	}
	c.RemovePod(long.UID)
	long, own = nil, nil
	d.ix.followLog()
	d.ix.terms.dropUnused()
	c.Pending(benchPod(1, "small"))
	if left := heap() - before; left > 8<<20+many*40 { // allowance for the log and for memory released later
		t.Errorf("%d KiB are left", left>>10)
	}
	if n := d.ix.terms.byLabel.Len() + d.ix.terms.known.Len(); n > 0 {
		t.Errorf("%d entries are left", n)
	}
	runtime.KeepAlive(d)
}

// TestMemoryOfLabels measures the memory of a pod with as many labels as fit into an object. It
// verifies that the indexes of labels stay small and that their memory is freed.
func TestMemoryOfLabels(t *testing.T) {
	const many = 100_000
	c := benchCluster(5, false)
	d := New(c, plugins.Default(), 1)
	d.ix.followLog()
	var pods []*v1.Pod
	for i := range 4 {
		pod := towards(fmt.Sprint("labels-", i))
		pod.Labels = make(map[string]string, many)
		for k := range many {
			pod.Labels[fmt.Sprintf("%d-%05d", i, k)] = ""
		}
		pods = append(pods, pod)
	}
	for _, pod := range pods {
		c.SetPod(pod)
	}
	before := heap()
	d.ix.followLog()
	if each := (heap() - before) / len(pods) / many; each > mostBytesOfLabel {
		t.Errorf("a label takes %d bytes", each)
	}
	for _, pod := range pods {
		c.RemovePod(pod.UID)
	}
	d.ix.followLog()
	if left := heap() - before; left > 2<<20 {
		t.Errorf("%d KiB are left", left>>10)
	}
	runtime.KeepAlive(pods)
	runtime.KeepAlive(d)
}

// TestUnlistedTermsAreFound verifies that removing users of terms does not affect other users
// listed under the same labels.
func TestUnlistedTermsAreFound(t *testing.T) {
	terms, c := newTerms(0), cluster.New()
	var classes []*cluster.PodClass
	for i := range 4 {
		classes = append(classes, c.Pending(towards(fmt.Sprint(i), preferring(fmt.Sprint("k", i), thousandApps()))).Class)
		terms.addPod(classes[i])
	}
	own := rules.NewLabels(map[string]string{"app": "app-1"}, nil)
	version := terms.versionFor(own)
	for i, class := range classes {
		if found := terms.usersFor(own); len(found) != len(classes)-i {
			t.Fatalf("%d users are found, want %d", len(found), len(classes)-i)
		}
		terms.removePod(class)
		terms.dropUnused()
	}
	if found, n := terms.usersFor(own), terms.byLabel.Len()+len(terms.alsoByLabel); len(found)+n > 0 {
		t.Errorf("%d users are found, and %d entries are left", len(found), n)
	}
	terms.addPod(classes[0])
	if now := terms.versionFor(own); len(terms.usersFor(own)) != 1 || now <= version {
		t.Errorf("%d users are found at version %d after %d", len(terms.usersFor(own)), now, version)
	}
}
