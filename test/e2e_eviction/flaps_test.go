// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"golang.org/x/sync/errgroup"
)

var (
	flaps  = flag.Int("flaps", 0, "play so many flaps undisturbed, and a fifth as many with each trouble, at all spacings; 0: 60 undisturbed, at the first ones")
	only   = flag.String("trouble", "", "only the troubles whose names have this in them")
	beside = flag.Bool("beside", false, "play the same against upstream's kube-controller-manager, and print both side by side")
)

// trouble is a fault of the network between the controller and the API server while flaps run.
type trouble struct {
	name   string
	begin  func(p *proxy, flaps []*flap)
	during func(ctx context.Context, p *proxy) // disturbs the network until the context ends
	excuse time.Duration                       // time after the start during which delays are excused
	late   time.Duration                       // maximum delay of a pod at any time
}

// outage is the time for which the API server is unreachable.
const outage = 10 * time.Second

var troubles = []trouble{
	{name: "none"},
	{
		name:  "each DELETE is answered 0.5 s late",
		begin: func(p *proxy, _ []*flap) { p.add(fault{method: http.MethodDelete, wait: 500 * time.Millisecond}) },
	},
	{
		name: "each DELETE is done, its answer lost after 0.3 s",
		begin: func(p *proxy, _ []*flap) {
			p.add(fault{method: http.MethodDelete, unanswered: true, wait: 300 * time.Millisecond})
		},
	},
	{
		name: "five DELETEs of each pod fail",
		begin: func(p *proxy, flaps []*flap) {
			for i, f := range flaps {
				for _, which := range []string{"waits", "quick"} {
					status := []int{http.StatusInternalServerError, http.StatusConflict, http.StatusForbidden, 0}[i%4]
					p.add(fault{method: http.MethodDelete, path: podPath(which + "-" + f.name), times: 5, status: status, unanswered: status == 0})
				}
			}
		},
		late: 3100 * time.Millisecond, // the sum of five back-offs
	},
	{
		name:  "the watch of nodes is 1.5 s late",
		begin: func(p *proxy, _ []*flap) { p.setLate("nodes", 1500*time.Millisecond) },
		late:  1500 * time.Millisecond,
	},
	{
		name: "watches break each 0.7 s and list again",
		during: func(ctx context.Context, p *proxy) {
			for each(ctx, 700*time.Millisecond) {
				p.cut("pods", true)
				p.cut("nodes", true)
			}
		},
	},
	{
		name: "the API is away for 10 s",
		during: func(ctx context.Context, p *proxy) {
			p.setDown(true)
			defer p.setDown(false)
			select {
			case <-ctx.Done():
			case <-time.After(outage):
			}
		},
		excuse: outage + time.Second,
	},
}

// each waits, and returns false if the context ends first.
func each(ctx context.Context, wait time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(wait):
		return true
	}
}

func podPath(name string) string { return "/api/v1/namespaces/default/pods/" + name }

// TestFlaps verifies that Berth evicts the pods of all flaps as required. The following command
// runs 500 flaps with all spacings and each trouble, and compares Berth with upstream's controller:
//
//	go test ./e2e_eviction -run 'TestFlaps$' -flaps 500 -beside -v -timeout 20m
func TestFlaps(t *testing.T) { // not parallel, because flaps keep a processor busy
	play := campaign{flaps: 60, steps: 13, over: time.Second, patience: 2 * time.Second}
	with := troubles[:1]
	if *flaps > 0 {
		play = campaign{flaps: *flaps, steps: len(spacings), over: time.Duration(*flaps) * 80 * time.Millisecond, patience: 4 * time.Second}
		with = troubles
	}
	sides := []side{berthSide}
	if *beside {
		sides = append(sides, upstreamSide)
	}
	results := map[string][]result{}
	for _, s := range sides {
		c := newCluster(t)
		for i, trouble := range with {
			if !strings.Contains(trouble.name, *only) {
				continue
			}
			r := play.share(i).on(t, c, s, trouble, fmt.Sprintf("f%d", i))
			t.Logf("%s: %v", s.name, r)
			for _, wrong := range r.wrong[:min(len(r.wrong), 5)] {
				t.Logf("    %s", wrong)
			}
			results[s.name] = append(results[s.name], r)
		}
	}
	for _, r := range results[berthSide.name] {
		for _, wrong := range r.wrong {
			t.Errorf("%s: %s", r.trouble, wrong)
		}
	}
	t.Logf("\n%s", table(sides, results))
}

type campaign struct {
	flaps    int
	steps    int           // number of spacings
	over     time.Duration // period in which the flaps start
	patience time.Duration // patience for pods that must leave
}

// share returns the campaign for the i-th trouble: all flaps for the first one, and a fifth of them
// for each other.
func (c campaign) share(i int) campaign {
	if i > 0 {
		c.flaps, c.over = max(1, c.flaps/5), c.over/5
	}
	return c
}

// result holds the verdicts on the flaps with one trouble.
type result struct {
	trouble string
	flaps   int
	failed  int // number of flaps with at least one wrong verdict
	pods    int
	ends    map[verdict]int
	wrong   []string
	took    time.Duration
	slow    time.Duration
}

func (r result) String() string {
	return fmt.Sprintf("trouble: %s: %d flaps, %d pods, in %v, requests took up to %v: %d flaps failed",
		r.trouble, r.flaps, r.pods, r.took.Round(time.Second), r.slow.Round(time.Millisecond), r.failed)
}

// on runs the flaps against a new controller of the side, with a separate network.
func (c campaign) on(t *testing.T, shared *cluster, s side, trouble trouble, prefix string) result {
	p, kubeconfig := newProxy(t, shared.config)
	stage := newStage(t, shared)
	controller := s.start(t, stage, kubeconfig)
	defer controller.kill()
	began := time.Now()
	played := make([]*flap, c.flaps)
	var group errgroup.Group
	group.SetLimit(32)
	for i := range played {
		played[i] = flapNumber(stage, prefix, i, c.steps)
		group.Go(func() error { played[i].prepare(); return nil })
	}
	shared.must(group.Wait())
	if trouble.begin != nil {
		trouble.begin(p, played)
	}
	stage.late, stage.excuse = trouble.late, time.Now().Add(trouble.excuse)
	ctx, end := context.WithCancel(t.Context())
	var playing, disturbing sync.WaitGroup
	if trouble.during != nil {
		disturbing.Go(func() { trouble.during(ctx, p) })
	}
	for i, f := range played {
		playing.Go(func() {
			<-time.After(c.over * time.Duration(i) / time.Duration(len(played)))
			f.play(c.patience)
		})
	}
	playing.Wait()
	end()
	disturbing.Wait()
	r := count(trouble.name, played)
	r.took, r.slow = time.Since(began), time.Duration(stage.slow.Load())
	shared.clear()
	return r
}

func count(name string, played []*flap) result {
	r := result{trouble: name, flaps: len(played), ends: map[verdict]int{}}
	for _, f := range played {
		failed := len(f.notes) > 0
		for _, note := range f.notes {
			r.wrong = append(r.wrong, f.name+": "+note)
		}
		for _, l := range f.lives {
			r.pods++
			if v := f.judge(l); v != right {
				failed = true
				r.ends[v]++
				r.wrong = append(r.wrong, string(v)+": "+f.tell(l))
			}
		}
		if failed {
			r.failed++
		}
	}
	return r
}

// table formats the results of all sides as a table.
func table(sides []side, results map[string][]result) string {
	var text strings.Builder
	out := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprint(out, "trouble")
	for _, s := range sides {
		fmt.Fprintf(out, "\t%s: flaps\tfailed\tpods there that had to go\tpods gone that must not\tlate", s.name)
	}
	fmt.Fprintln(out)
	for i := range results[sides[0].name] {
		fmt.Fprint(out, results[sides[0].name][i].trouble)
		for _, s := range sides {
			r := results[s.name][i]
			fmt.Fprintf(out, "\t%d\t%d\t%d\t%d\t%d", r.flaps, r.failed, r.ends[stays], r.ends[goes], r.ends[tooLate])
		}
		fmt.Fprintln(out)
	}
	out.Flush()
	return text.String()
}
