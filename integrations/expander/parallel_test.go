// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package expander

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	berthv1alpha1 "github.com/berth-k8s/berth/api/berth/v1alpha1"
	"github.com/berth-k8s/berth/integrations/grpcplugin"
)

// queryFunc is a query service as a function.
type queryFunc func(context.Context, *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error)

func (a queryFunc) Fits(ctx context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
	return a(ctx, r)
}

// scaleUp returns a scale-up by nodes of the groups, for a number of pods. The label "pool" of a
// node is the name of its group.
func scaleUp(t testing.TB, pods int, groups ...string) *grpcplugin.BestOptionsRequest {
	t.Helper()
	r := &grpcplugin.BestOptionsRequest{NodeBytesMap: map[string][]byte{}}
	var encoded [][]byte
	for i := range pods {
		requests := sizes(500, 1024)
		delete(requests, v1.ResourcePods)
		text, err := (&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("p-%d", i)}, Spec: v1.PodSpec{
			Containers: []v1.Container{{Name: "c", Image: fmt.Sprintf("i-%d", i%10), Resources: v1.ResourceRequirements{Requests: requests}}}}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		encoded = append(encoded, text)
	}
	for _, group := range groups {
		size := sizes(8000, 32<<10)
		text, err := (&v1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"pool": group, v1.LabelHostname: group}},
			Status: v1.NodeStatus{Capacity: size, Allocatable: size}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		r.NodeBytesMap[group] = text
		r.Options = append(r.Options, &grpcplugin.Option{NodeGroupId: group, NodeCount: 10, PodBytes: encoded})
	}
	return r
}

// scaleUps returns the number of scale-ups with a result.
func scaleUps(t testing.TB, registry *prometheus.Registry, result string) (n float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if metric.GetLabel()[0].GetValue() == result {
				n += metric.GetCounter().GetValue()
			}
		}
	}
	return n
}

// groupOf returns the node group of a question.
func groupOf(r *berthv1alpha1.FitsRequest) string {
	_, rest, _ := strings.Cut(r.GetManifest(), `"pool":"`)
	group, _, _ := strings.Cut(rest, `"`)
	return group
}

// TestAnOptionWithoutAnAnswerIsNotChosen verifies on a fake clock that options are not chosen after
// an error, a timeout, or an interrupted search.
func TestAnOptionWithoutAnAnswerIsNotChosen(t *testing.T) {
	for name, c := range map[string]struct {
		placed map[string]int32
		want   []string
		result string
	}{
		"some pods have a node":       {map[string]int32{"few": 1, "good": 2}, []string{"good"}, "partial"},
		"no pod is known to have one": {map[string]int32{"few": 0, "good": 0}, []string{"few", "failed", "good", "interrupted", "slow"}, "fallback"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				e, err := New(queryFunc(func(ctx context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
					switch group := groupOf(r); group {
					case "failed":
						return nil, errors.New("broken")
					case "interrupted":
						return &berthv1alpha1.FitsResponse{Placed: 3, Wanted: 9, Basis: &berthv1alpha1.Basis{
							Partial: true, Limits: []string{"the deadline ended the search after 3 of 9 pods"},
						}}, nil
					case "slow":
						<-ctx.Done()
						return nil, ctx.Err()
					default:
						limits := []string{"ResourceQuotas of namespace default are not counted"}
						return &berthv1alpha1.FitsResponse{Placed: c.placed[group], Wanted: 9,
							Basis: &berthv1alpha1.Basis{Partial: true, Limits: limits}}, nil
					}
				}), registry, Defaults())
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				answer, err := e.BestOptions(t.Context(), scaleUp(t, 9, "few", "failed", "good", "interrupted", "slow"))
				if err != nil {
					t.Fatal(err)
				}
				var got []string
				for _, o := range answer.GetOptions() {
					got = append(got, o.GetNodeGroupId())
				}
				if !slices.Equal(got, c.want) || scaleUps(t, registry, c.result) != 1 {
					t.Errorf("the autoscaler gets %v, want %v, counted as %s", got, c.want, c.result)
				}
				if took := time.Since(began); took != Defaults().Timeout {
					t.Errorf("the choice took %v, want %v", took, Defaults().Timeout)
				}
			})
		})
	}
}

// TestOptionsAreAskedAboutAtTheSameTime verifies on a fake clock that 20 questions of a second end
// in five seconds, four at a time, beginning with the largest number of pods.
func TestOptionsAreAskedAboutAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, asked atomic.Int32
		o := Defaults()
		o.Timeout = time.Minute
		e, err := New(queryFunc(func(_ context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
			if groupOf(r) == "g-19" && asked.Load() >= 4 {
				t.Error("the option with most pods is not one of the first")
			}
			asked.Add(1)
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(time.Second)
			running.Add(-1)
			return &berthv1alpha1.FitsResponse{Placed: 1}, nil
		}), prometheus.NewRegistry(), o)
		if err != nil {
			t.Fatal(err)
		}
		r := scaleUp(t, 3, twenty()...)
		for _, o := range r.Options[:19] {
			o.PodBytes = o.PodBytes[:2]
		}
		began := time.Now()
		answer, err := e.BestOptions(t.Context(), r)
		if err != nil || len(answer.GetOptions()) != 20 {
			t.Errorf("%d options are chosen, want all equal ones (%v)", len(answer.GetOptions()), err)
		}
		if took := time.Since(began); took != 5*time.Second || most.Load() != 4 || asked.Load() != 20 {
			t.Errorf("%d questions, %d at a time, took %v; want 20, 4 and 5s", asked.Load(), most.Load(), took)
		}
	})
}

// twenty returns the names of 20 node groups.
func twenty() (groups []string) {
	for i := range 20 {
		groups = append(groups, fmt.Sprintf("g-%d", i))
	}
	return groups
}

// TestTheQueryServiceNamesAnInterruptedSearch verifies that the expander knows the words of the
// query service, with the first deadline that is long enough for some of the pods.
func TestTheQueryServiceNamesAnInterruptedSearch(t *testing.T) {
	s, local := queries(t, 1)
	within := time.Millisecond
	e, err := New(queryFunc(func(_ context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
		limited, cancel := context.WithTimeout(local, within)
		defer cancel()
		r.Count = 50_000
		return s.Fits(limited, r)
	}), prometheus.NewRegistry(), Defaults())
	if err != nil {
		t.Fatal(err)
	}
	workloads, err := jobs(map[string]*v1.Pod{"default/p": {ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}})
	if err != nil {
		t.Fatal(err)
	}
	r := scaleUp(t, 1, "g")
	for ; ; within *= 2 {
		v := e.query(t.Context(), r, r.GetOptions()[0], workloads, &prices{})
		if v.err == nil {
			t.Fatalf("within %v, the verdict is %+v, want an error that begins with %q", within, v, interrupted)
		}
		if strings.HasPrefix(v.err.Error(), interrupted) {
			return
		}
		t.Logf("within %v: %v", within, v.err)
	}
}

// BenchmarkTwentyOptions chooses among 20 options for 100 pods, next to 1,000 full nodes.
func BenchmarkTwentyOptions(b *testing.B) {
	s, local := queries(b, 1000)
	r := scaleUp(b, 100, twenty()...)
	judged, err := s.Fits(local, &berthv1alpha1.FitsRequest{Manifest: "{apiVersion: v1, kind: Pod, metadata: {name: p}, " +
		"spec: {containers: [{name: c, image: i, resources: {requests: {cpu: 500m}}}]}}"})
	if err != nil || !strings.HasPrefix(judged.GetStops(), "0/1000 nodes") {
		b.Fatal(judged, err)
	}
	for _, parallel := range []int{1, 4} {
		b.Run(fmt.Sprintf("parallel=%d", parallel), func(b *testing.B) {
			o := Defaults()
			o.Parallel, o.Timeout = parallel, time.Minute
			registry := prometheus.NewRegistry()
			e, err := New(queryFunc(func(_ context.Context, r *berthv1alpha1.FitsRequest) (*berthv1alpha1.FitsResponse, error) {
				return s.Fits(local, r)
			}), registry, o)
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				answer, err := e.BestOptions(b.Context(), r)
				if err != nil || scaleUps(b, registry, "fallback")+scaleUps(b, registry, "partial") > 0 {
					b.Fatal(len(answer.GetOptions()), err)
				}
			}
		})
	}
}
