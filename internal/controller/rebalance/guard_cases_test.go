// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package rebalance_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
	"github.com/berth-k8s/berth/internal/controller/rebalance/execute"
)

// hold returns what becomes of evictions of a pod, attempted every five seconds for a time: the
// reason of the admission, or the last status.
func (g *guarded) hold(name string, within time.Duration) (reason string, after time.Duration) {
	begun := g.Now
	for g.Now.Sub(begun) < within {
		at := slices.IndexFunc(g.pods(), func(p *v1.Pod) bool { return p.Name == name && p.DeletionTimestamp == nil })
		if at < 0 {
			return "replaced", g.Now.Sub(begun)
		}
		if reason := g.evict(g.pods()[at]); reason != "" {
			return reason, g.Now.Sub(begun)
		}
		g.pass(5 * time.Second)
	}
	p, _ := g.objects["*v1.Pod/default/"+name].(*v1.Pod)
	return p.Annotations[evictionguard.StatusAnnotation], within
}

// TestPoliciesDecideWhatAnEvictionWaitsFor evicts a pod under each policy, while its replacement
// has a place or has none.
func TestPoliciesDecideWhatAnEvictionWaitsFor(t *testing.T) {
	const roomy, full = "node a cpu=2 cordoned\nnode b cpu=2\n", "node a cpu=2 cordoned\nnode b cpu=1\npod big owner=none on=b cpu=1\n"
	const web, db, job = "deployment web\npods web count=1 on=a cpu=2\n", "pod db-0 on=a cpu=2 owner=StatefulSet/db\n", "job etl\npod etl-0 on=a cpu=2 owner=Job/etl\n"
	all := []string{evictionguard.Surge, evictionguard.Place, evictionguard.Finish, evictionguard.Allow, evictionguard.Deny}
	for name, c := range map[string]struct {
		world, pod, policy, fallback, after string
		choices                             []string
		want                                string
		within                              time.Duration // of the admission
	}{
		"surge":                                 {roomy + web, "web-0", "surge", "allow", "", all, "replaced", 10 * time.Second},
		"place, with a place":                   {roomy + web, "web-0", "place", "allow", "", all, "controller", 5 * time.Second},
		"place, without a place":                {full + web, "web-0", "place", "allow", "", all, "controller", 2*time.Minute + 5*time.Second},
		"allow":                                 {full + web, "web-0", "allow", "allow", "", all, "controller", 5 * time.Second},
		"allow is not offered":                  {roomy + web, "web-0", "allow", "allow", "", all[:1], "replaced", 10 * time.Second},
		"a StatefulSet, by default":             {full + db, "db-0", "", "allow", "", nil, "unguarded", 0},
		"a StatefulSet with the fallback place": {full + db, "db-0", "", "place", "", nil, "deadline", 10 * time.Minute},
		"a StatefulSet that finds a place":      {roomy + db, "db-0", "", "place", "", nil, "controller", 5 * time.Second},
		"a bare pod, which nothing replaces":    {roomy + "pod one owner=none on=a cpu=2\n", "one", "", "place", "", nil, "deadline", 10 * time.Minute},
		"a Job may finish":                      {roomy + job, "etl-0", "finish", "allow", "", all, "controller", 2*time.Minute + 5*time.Second},
		"denied after the deadline":             {full + web, "web-0", "place", "allow", "deny", all, "denied", 2*time.Minute + 5*time.Second},
	} {
		g := newGuarded(t, 1, strings.TrimSpace(c.world))
		g.guard.Fallback, g.guard.Choices = c.fallback, c.choices
		for _, key := range slices.Sorted(maps.Keys(g.objects)) {
			switch o := g.objects[key].(type) {
			case *appsv1.Deployment, *batchv1.Job:
				o.SetAnnotations(map[string]string{evictionguard.PolicyAnnotation: c.policy,
					evictionguard.DeadlineAnnotation: "2m", evictionguard.AfterDeadlineAnnotation: c.after})
			}
		}
		g.leaves = nil
		g.startGuard()
		if got, after := g.hold(c.pod, 15*time.Minute); got != c.want || after > c.within || after < c.within-10*time.Second {
			t.Errorf("%s: %s after %v, want %s after %v", name, got, after, c.want, c.within)
		}
	}
}

// TestADenialEndsTheRequest evicts a pod again after a denial, while its replacement still has no
// place, and after it has one. The denial is the answer to one drain only.
func TestADenialEndsTheRequest(t *testing.T) {
	g := newGuarded(t, 1, "node a cpu=2 cordoned\nnode b cpu=2 cordoned\ndeployment web\npods web count=1 on=a cpu=2")
	g.guard.Choices = []string{evictionguard.Surge, evictionguard.Deny}
	for _, o := range g.objects {
		if d, ok := o.(*appsv1.Deployment); ok {
			d.SetAnnotations(map[string]string{evictionguard.DeadlineAnnotation: "2m", evictionguard.AfterDeadlineAnnotation: evictionguard.Deny})
		}
	}
	g.startGuard()
	for i := range 6 { // longer than the operator's deadline
		if got, after := g.hold("web-0", 15*time.Minute); got != "denied" || after < 2*time.Minute || after > 2*time.Minute+10*time.Second {
			t.Fatalf("drain %d: %s after %v", i, got, after)
		}
		g.pass(14 * time.Second)
	}
	b := g.node("b").DeepCopy()
	b.Spec.Unschedulable, b.Spec.Taints = false, nil
	g.write(b)
	if got, after := g.hold("web-0", 15*time.Minute); got != "replaced" || after > 20*time.Second {
		t.Errorf("with a place: %s after %v", got, after)
	}
	g.pass(time.Minute)
	g.judgeEnd()
	g.report(1)
}

// live counts the pods that do not terminate.
func live(pods []*v1.Pod) (count int) {
	for _, p := range pods {
		count += int(bit(p.DeletionTimestamp == nil))
	}
	return count
}

// TestPodsOfAWorkloadLeaveTogether drains a node with four pods of a workload.
func TestPodsOfAWorkloadLeaveTogether(t *testing.T) {
	for surge, want := range map[string]int{"1": 1, "2": 2, "50%": 2, "100%": 4} {
		g := newGuarded(t, 1, "node a cpu=4\nnode b cpu=8\ndeployment web surge="+surge+"\npods web count=4 on=a cpu=1\nbudget web of=app:web unavailable=0")
		g.startGuard()
		added := 0
		g.leaves = func(p *v1.Pod) {
			added = max(added, live(g.pods())-4)
			g.judgeLeaving(p)
		}
		begun := g.Now
		if !g.drain("a", 5*time.Minute) || added != want {
			t.Errorf("maxSurge %s: at most %d pods were added, want %d", surge, added, want)
		}
		// The next plan follows a surge, and does not wait for its turn.
		if took, most := g.Now.Sub(begun), map[int]time.Duration{1: 20 * time.Second, 2: 10 * time.Second, 4: 10 * time.Second}[want]; took > most {
			t.Errorf("maxSurge %s: drained after %v, want %v", surge, took, most)
		}
		g.pass(time.Minute)
		g.judgeEnd()
		g.report(1)
	}
}

// TestNoSurgeBeginsAfterTheEvictorHasGivenUp lets an evictor give up before room for a replacement
// appears.
func TestNoSurgeBeginsAfterTheEvictorHasGivenUp(t *testing.T) {
	for retries, want := range map[bool]int{false: 0, true: 1} {
		g := newGuarded(t, 1, "node a cpu=1 cordoned\nnode b cpu=1 cordoned\ndeployment web\npods web count=1 on=a cpu=1")
		g.startGuard()
		g.evict(g.pods()[0])
		for range 18 {
			g.pass(5 * time.Second)
			if retries {
				g.evict(g.pods()[0])
			}
		}
		b := g.node("b").DeepCopy()
		b.Spec.Unschedulable, b.Spec.Taints = false, nil
		g.write(b)
		g.pass(time.Minute)
		if got := g.results[string(execute.Replaced)]; got != want {
			t.Errorf("%d pods were replaced, want %d, if the evictor retries: %v", got, want, retries)
		}
		g.evict(g.pods()[0]) // another evictor, or the same one later
		g.pass(10 * time.Second)
		if got := g.results[string(execute.Replaced)]; got != 1 {
			t.Errorf("%d pods were replaced after another eviction, if the evictor retries: %v", got, retries)
		}
	}
}

// TestAMassEvictionStaysWithinItsBounds evicts all pods of a zone. It verifies that the pods added
// and the requests are bounded, and that no pod leaves without a replacement.
func TestAMassEvictionStaysWithinItsBounds(t *testing.T) {
	nodes, minutes := 110, 1
	if *guardLives >= 10_000 {
		nodes, minutes = 500, 3
	}
	var text strings.Builder
	for i := range nodes {
		fmt.Fprintf(&text, "node a%d cpu=4 zone=a cordoned\nnode b%d cpu=4 zone=b\npods w%d count=1 on=a%d cpu=1\npods v%d count=1 on=a%d cpu=1\n", i, i, i, i, i, i)
	}
	g := newGuarded(t, 1, strings.TrimSpace(text.String()))
	most := max(30, 2*nodes*5/100)
	g.startGuard()
	pods, added, peak := len(g.pods()), 0, 0
	sent := 0
	for range minutes * 12 {
		for _, p := range g.pods() {
			if strings.HasPrefix(p.Spec.NodeName, "a") && p.DeletionTimestamp == nil {
				g.evict(p)
			}
		}
		for range 5 {
			g.pass(time.Second)
			added = max(added, live(g.pods())-pods)
			total := 0
			for _, n := range g.line.Sent {
				total += n
			}
			peak, sent = max(peak, total-sent), total
		}
	}
	g.report(1)
	t.Logf("%d pods evicted: at most %d added, %d requests per second; %d replaced, admitted: %v", pods, added, peak, g.results[string(execute.Replaced)], g.admitted)
	if added > most || added < most/2 || peak > 600 || len(g.admitted) > 0 {
		t.Errorf("at most %d pods added of %d, %d requests per second, admitted: %v", added, most, peak, g.admitted)
	}
}

// TestAHostileTenantIsBounded evicts 300 pods of a tenant whose replacements are never ready, and
// that claims a year for each eviction, and then drains a node of another tenant.
func TestAHostileTenantIsBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("node a cpu=1000 pods=1000 cordoned\nnode b cpu=1000 pods=1000\nnode c cpu=4\ndeployment web\npods web count=1 on=c cpu=1\n")
	for i := range 100 {
		fmt.Fprintf(&text, "pods h%d count=3 on=a cpu=1 ns=hostile\n", i)
	}
	g := newGuarded(t, 1, strings.TrimSpace(text.String()))
	g.faults.unreadyIn = "hostile"
	for _, o := range g.objects {
		if rs, ok := o.(*appsv1.ReplicaSet); ok && rs.Namespace == "hostile" {
			rs.Annotations = map[string]string{evictionguard.DeadlineAnnotation: "8760h"}
		}
	}
	g.startGuard()
	for _, p := range g.pods() {
		if p.Namespace == "hostile" {
			p = p.DeepCopy()
			p.Annotations = map[string]string{evictionguard.RequestedAnnotation: g.Now.UTC().Format(time.RFC3339)}
			g.write(p)
		}
	}
	g.pass(30 * time.Second)
	if !g.drain("c", time.Minute) {
		t.Error("the other drain does not proceed")
	}
	if g.results[string(execute.Replaced)] == 0 {
		t.Error("the other pod was not replaced first")
	}
	g.pass(12 * time.Minute)
	for _, p := range g.pods() {
		if p.Namespace == "hostile" && p.Spec.NodeName == "a" && g.evict(p) == "" {
			t.Fatalf("%s is still held: %v", p.Name, p.Annotations)
		}
	}
	g.judgeScales(map[types.UID]int{"web": 1})
	g.report(1)
}

// TestAReplacementStartsBeforeATaintEvicts taints a node whose pod tolerates the taint for some
// seconds.
func TestAReplacementStartsBeforeATaintEvicts(t *testing.T) {
	const never = time.Hour
	for name, c := range map[string]struct {
		seconds        *int64
		removed        time.Duration // the taint
		from, replaced time.Duration
	}{
		"long":           {new(int64(300)), never, 180 * time.Second, 190 * time.Second},
		"short":          {new(int64(60)), never, 0, 10 * time.Second},
		"a short outage": {new(int64(300)), time.Minute, never, never},
		"forever":        {nil, never, never, never},
		"without seconds, which evicts immediately": {new(int64(0)), never, never, never},
	} {
		g := newGuarded(t, 1, "node a cpu=2\nnode b cpu=2\ndeployment web\npods web count=1 on=a cpu=2")
		p := g.pods()[0].DeepCopy()
		p.Spec.Tolerations = []v1.Toleration{{Key: "broken", Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: c.seconds}}
		g.write(p)
		g.startGuard()
		g.pass(time.Second)
		taint := func(taints ...v1.Taint) {
			n := g.node("a").DeepCopy()
			n.Spec.Taints = taints
			g.write(n)
		}
		begun, replaced := g.Now, never
		taint(v1.Taint{Key: "broken", Effect: v1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: g.Now}})
		g.After(c.removed, func() { taint() })
		for range 400 {
			g.pass(time.Second)
			if g.results[string(execute.Replaced)] > 0 && replaced == never {
				replaced = g.Now.Sub(begun)
			}
		}
		if replaced < c.from || replaced > c.replaced {
			t.Errorf("%s: replaced after %v, want %v to %v\n%s", name, replaced, c.from, c.replaced, g.lines.String())
		}
		g.judgeEnd()
		g.report(1)
	}
}
