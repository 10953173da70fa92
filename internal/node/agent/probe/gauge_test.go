package probe

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	v1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// TestGauge runs testdata/*.txt. A story may say:
//
//	probe KIND [delay=N] [period=N] [success=N] [failure=N]   a new gauge; the clock is at zero
//	container ID [held=RESULT] [wait=N]                       there is another container; it began just now
//	stopped | running | started | leaving                     something about it changes
//	run SECONDS answers=ok,fail,error,...                     time passes; answers in turn, the last one again and again
func TestGauge(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &story{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { return s.tell(t, d) })
	})
}

type story struct {
	gauge *Gauge
	sight Sight
	now   time.Time
}

var zero = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func number(t *testing.T, d *datadriven.TestData, key string) int32 {
	var n int
	d.MaybeScanArgs(t, key, &n)
	return int32(n)
}

func (s *story) tell(t *testing.T, d *datadriven.TestData) string {
	switch d.Cmd {
	case "probe":
		kind := map[string]Kind{"startup": Startup, "readiness": Readiness, "liveness": Liveness}[d.CmdArgs[0].Key]
		s.gauge = NewGauge(kind, &v1.Probe{
			InitialDelaySeconds: number(t, d, "delay"), PeriodSeconds: number(t, d, "period"),
			SuccessThreshold: number(t, d, "success"), FailureThreshold: number(t, d, "failure"),
		})
		s.now, s.sight = zero, Sight{}
	case "container":
		held := map[string]Result{"": Unknown, "success": Success, "failure": Failure}
		var result string
		d.MaybeScanArgs(t, "held", &result)
		s.sight = Sight{ID: d.CmdArgs[0].Key, Running: true, StartedAt: s.now, Started: s.gauge.kind != Startup}
		s.gauge.Take(s.sight.ID, held[result], s.now, time.Duration(number(t, d, "wait"))*time.Second)
		return s.show("")
	case "stopped", "running":
		s.sight.Running = d.Cmd == "running"
	case "started":
		s.sight.Started = true
	case "starting":
		s.sight.Started = false
	case "leaving":
		s.sight.Leaving = true
	case "run":
		return s.run(t, d)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return ""
}

func (s *story) show(what string) string {
	return fmt.Sprintf("%4.0fs %s%s\n", s.now.Sub(zero).Seconds(), what, s.gauge.Verdict())
}

func (s *story) run(t *testing.T, d *datadriven.TestData) string {
	var seconds int
	if _, err := fmt.Sscan(d.CmdArgs[0].Key, &seconds); err != nil {
		d.Fatalf(t, "%v", err)
	}
	answers := []string{"ok"}
	for _, arg := range d.CmdArgs[1:] {
		answers = strings.Split(arg.Vals[0], ",")
	}
	end := s.now.Add(time.Duration(seconds) * time.Second)
	var out strings.Builder
	for {
		step := s.gauge.See(s.sight, s.now)
		switch {
		case step.Probe:
			answer := map[string]Result{"ok": Success, "fail": Failure, "error": Unknown}[answers[0]]
			s.gauge.Answer(answer)
			out.WriteString(s.show(answers[0] + ": "))
			if len(answers) > 1 {
				answers = answers[1:]
			}
			continue
		case step.End:
			out.WriteString(s.show("end: "))
			return out.String()
		case step.At.IsZero() || !step.At.Before(end):
			s.now = end
			out.WriteString(s.show("then: "))
			return out.String()
		}
		s.now = step.At
	}
}

// Whatever happens: nothing is probed that does not run or before its delay is over, no two probes
// are nearer than the period, and a verdict changes only by as many results in a row as the
// threshold says.
func TestGaugeKeepsItsPromises(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kind := rapid.SampledFrom([]Kind{Startup, Readiness, Liveness}).Draw(t, "kind")
		spec := &v1.Probe{
			InitialDelaySeconds: rapid.Int32Range(0, 5).Draw(t, "delay"), PeriodSeconds: rapid.Int32Range(1, 4).Draw(t, "period"),
			SuccessThreshold: rapid.Int32Range(1, 3).Draw(t, "success"), FailureThreshold: rapid.Int32Range(1, 3).Draw(t, "failure"),
		}
		g := NewGauge(kind, spec)
		sight, now, containers := Sight{}, zero, 0
		var last time.Time
		run := map[Result]int32{}
		for range 60 {
			switch rapid.IntRange(0, 9).Draw(t, "event") {
			case 0:
				containers++
				sight = Sight{ID: fmt.Sprint(containers), Running: true, StartedAt: now, Started: kind != Startup}
				g.Take(sight.ID, Unknown, now, 0)
				last, run = time.Time{}, map[Result]int32{}
			case 1:
				sight.Running = !sight.Running
			case 2:
				sight.Started = !sight.Started
			default:
				now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			}
			step := g.See(sight, now)
			if !step.At.IsZero() && !step.At.After(now) {
				t.Fatalf("asks to be shown again at %v, and it is %v", step.At, now)
			}
			if !step.Probe {
				continue
			}
			switch delay := time.Duration(spec.InitialDelaySeconds) * time.Second; {
			case !sight.Running, sight.Started == (kind == Startup):
				t.Fatalf("probes %+v", sight)
			case now.Before(sight.StartedAt.Add(delay)):
				t.Fatalf("probes %v after the start", now.Sub(sight.StartedAt))
			case !last.IsZero() && now.Sub(last) < time.Duration(spec.PeriodSeconds)*time.Second:
				t.Fatalf("probes again after %v", now.Sub(last))
			}
			last = now
			result := rapid.SampledFrom([]Result{Unknown, Success, Failure}).Draw(t, "result")
			before := g.Verdict()
			changed := g.Answer(result)
			if result != Unknown {
				run = map[Result]int32{result: run[result] + 1}
			}
			enough := map[Result]int32{Success: spec.SuccessThreshold, Failure: spec.FailureThreshold}[result]
			if want := result != Unknown && run[result] >= enough && before != result; changed != want || changed != (g.Verdict() != before) {
				t.Fatalf("after %d of %v in a row: %v became %v", run[result], result, before, g.Verdict())
			}
		}
	})
}
