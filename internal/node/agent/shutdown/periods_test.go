package shutdown

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podOf(name string, priority int32, grace int64) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace}}
}

func describe(p Periods, pods ...*v1.Pod) string {
	var lines []string
	for _, g := range p.Groups(pods) {
		line := fmt.Sprintf("%d %s:", g.Priority, g.Period.Grace)
		for _, pod := range g.Pods {
			line += fmt.Sprintf(" %s %s", pod.Name, g.Grace(pod))
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestGroups(t *testing.T) {
	byPriority, err := Parse("100000=10s,0=60s,1000=20s")
	if err != nil {
		t.Fatal(err)
	}
	two, err := TwoPeriods(22*time.Second, 2*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	pods := []*v1.Pod{podOf("critical", 2_000_000_001, 30), podOf("web", 0, 30), podOf("batch", -5, 600), podOf("db", 1000, 5), podOf("between", 99_999, 300)}
	for _, c := range []struct {
		periods Periods
		want    string
	}{
		{byPriority, "0 1m0s: web 30s batch 58s\n1000 20s: db 5s between 18s\n100000 10s: critical 8s"},
		{two, "0 20s: web 18s batch 18s db 5s between 18s\n2000000000 2s: critical 1s"},
	} {
		if got := describe(c.periods, pods...); got != c.want {
			t.Errorf("%v:\n%s\nwant:\n%s", c.periods, got, c.want)
		}
	}
	if byPriority.Whole() != 90*time.Second || two.Whole() != 22*time.Second {
		t.Errorf("in all %s and %s, want 1m30s and 22s", byPriority.Whole(), two.Whole())
	}
}

func TestPeriodsThatContradict(t *testing.T) {
	for text, want := range map[string]string{
		"0=10s,0=20s": "named twice", "0=-1s": "0 or more", "0=1500ms": "whole seconds", "high=1s": "must be a priority", "5": "must be a priority", "3000000000=1s": "must be a priority",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if _, err := TwoPeriods(time.Second, 2*time.Second); err == nil {
		t.Error("critical pods were promised more than there is")
	}
	if p, err := TwoPeriods(0, 0); err != nil || len(p) != 0 {
		t.Errorf("no periods: %v, %v", p, err)
	}
}

// A pod with a sidecar, whose container has used up its time, leaves time to stop the sidecar.
func TestGraceLeavesTimeForSidecars(t *testing.T) {
	pod := podOf("chain", 0, 600)
	always := v1.ContainerRestartPolicyAlways
	pod.Spec.InitContainers = []v1.Container{{Name: "once"}, {Name: "side", RestartPolicy: &always}}
	if got, want := (Group{Period: Period{0, 60 * time.Second}}).Grace(pod), 56*time.Second; got != want {
		t.Errorf("%s of 60 s, want %s", got, want)
	}
	*pod.Spec.TerminationGracePeriodSeconds = 9_999_999_999 // nanoseconds would not fit
	if got, want := (Group{Period: Period{0, 60 * time.Second}}).Grace(pod), 56*time.Second; got != want {
		t.Errorf("%s of 60 s, want %s", got, want)
	}
	if got, want := (Group{Period: Period{0, 6 * time.Second}}).Grace(pod), 3*time.Second; got != want {
		t.Errorf("%s of 6 s, want %s", got, want)
	}
}
