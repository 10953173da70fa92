// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// stub is the running API server.
type stub struct {
	*process.Process
	kubeconfig, url string
	client          *http.Client
}

// report is the part of the stub's report that the benchmark reads.
type report struct {
	CPU    float64
	Counts struct{ Bound, Rebound, Overfull, Renewals, Silent, Found, Wrong, Conflicts, First, Last int }
	// Batches are the created pods, and Waits the milliseconds from creation to binding of the last
	// batch.
	Batches []struct {
		Bound   int
		BoundIn float64
	}
	Waits              [3]int
	Requests, Unserved map[string]int
}

func (b *bench) startStub(ctx context.Context) (*stub, error) {
	s := &stub{kubeconfig: filepath.Join(b.Dir, "kubeconfig")}
	var err error
	if s.Process, err = b.Launch("stubapi", "stubapi", "-nodes", fmt.Sprint(b.nodes), "-kubeconfig", s.kubeconfig); err != nil {
		return nil, err
	}
	ready, err := s.WaitFor(ctx, "ready ")
	if err != nil {
		return s, err
	}
	s.url = strings.TrimPrefix(ready, "ready ")
	config, err := clientcmd.BuildConfigFromFlags("", s.kubeconfig)
	if err == nil {
		s.client, err = rest.HTTPClientFor(config)
	}
	return s, err
}

// load begins a load.
func (s *stub) load(format string, parameters ...any) error {
	response, err := s.client.Post(s.url+"/stub/load?"+fmt.Sprintf(format, parameters...), "", nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		return fmt.Errorf("stubapi: %s", text)
	}
	return nil
}

func (s *stub) report(parameters string) (r report, err error) {
	response, err := s.client.Get(s.url + "/stub/report" + parameters)
	if err != nil {
		return r, err
	}
	defer response.Body.Close()
	return r, json.NewDecoder(response.Body).Decode(&r)
}

// cpu returns the CPU time of the stub.
func (s *stub) cpu() time.Duration { return s.CPU() }

// sent returns the number of watch events sent for a resource.
func (s *stub) sent(resource string) int {
	r, err := s.report("")
	if err != nil {
		return 0
	}
	return r.Requests["SEND "+resource]
}

// check returns an error if a client has sent requests that the stub does not implement.
func (s *stub) check() error {
	if s.client == nil {
		return nil
	}
	r, err := s.report("")
	if err == nil && len(r.Unserved) > 0 {
		err = fmt.Errorf("requests that the stub does not serve: %v", r.Unserved)
	}
	return err
}

// awaitBound waits until n pods of the last batch are bound.
func (s *stub) awaitBound(ctx context.Context, scheduler *process.Process, n int) (report, error) {
	const interval, limit = 100 * time.Millisecond, 30 * time.Minute
	for end := time.Now().Add(limit); time.Now().Before(end); {
		r, err := s.report("")
		if err != nil {
			return r, err
		}
		if r.Batches[len(r.Batches)-1].Bound >= n {
			return s.report("?waits=1")
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-scheduler.Ended:
			return r, scheduler.Gone()
		case <-time.After(interval):
		}
	}
	return report{}, fmt.Errorf("not all pods were bound within %v", limit)
}

// scheduler is the running scheduler.
type scheduler struct {
	*process.Process
	url string
}

func (b *bench) startScheduler(ctx context.Context) (*scheduler, error) {
	log := fmt.Sprintf("scheduler-%d", len(b.rows))
	p, err := b.Launch(driver.Berth, log, "scheduler", "--kubeconfig", b.stub.kubeconfig, "--secure-port", "0", "--health-bind-address", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	const line = "health and metrics on "
	address, err := p.WaitFor(ctx, line)
	return &scheduler{p, strings.TrimPrefix(address, line)}, err
}

// histogram holds the cumulative counts of the decisions by their duration in seconds.
type histogram map[float64]uint64

// decisions returns the durations of the decisions since the start.
func (s *scheduler) decisions(ctx context.Context) (histogram, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	families, err := driver.ReadMetrics(response.Body)
	h := histogram{}
	for _, m := range families["scheduler_scheduling_algorithm_duration_seconds"].GetMetric() {
		h.add(m.GetHistogram())
	}
	return h, err
}

func (h histogram) add(of *dto.Histogram) {
	for _, b := range of.GetBucket() {
		h[b.GetUpperBound()] = b.GetCumulativeCount()
	}
}

// p99 returns the upper bound of the bucket that contains p99 of the decisions since before.
func (h histogram) p99(before histogram) string {
	most, all := 0.0, uint64(0)
	for bound, count := range h {
		all = max(all, count-before[bound])
		most = max(most, bound)
	}
	best := most
	for bound, count := range h {
		if bound < best && (count-before[bound])*100 >= all*99 {
			best = bound
		}
	}
	return "≤ " + driver.Short(time.Duration(best*float64(time.Second)))
}
