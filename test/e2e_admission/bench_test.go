// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eadmission

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-k8s/berth/controlplane"
)

const (
	batch   = 500 // pods per round on each API server
	workers = 16
)

// BenchmarkPodCreation measures the creation of pods, in turn, on four API servers: with Berth's
// rules compiled in, with upstream's plugins for the same purposes, with neither, and with
// upstream's default plugins and Berth's webhook in a separate process:
//
//	go test ./e2e_admission -run '^$' -bench PodCreation -benchtime 10x
//
// -benchtime is the number of rounds.
func BenchmarkPodCreation(b *testing.B) {
	ways := []struct {
		name    string
		options func(*controlplane.Options)
		hooked  bool
		creator *creator
		took    time.Duration
		each    []time.Duration
	}{
		{name: "compiled-in", options: func(*controlplane.Options) {}},
		{name: "upstreams-plugins", options: upstreamsAll},
		{name: "no-plugins", options: upstreamsNone},
		{name: "webhook", options: upstreams, hooked: true},
	}
	for i := range ways {
		c := start(b, ways[i].options)
		if ways[i].hooked {
			c.makeNamespace(b, &v1.Namespace{ObjectMeta: named(system)})
			c.startProcess(b)
		}
		ways[i].creator = newCreator(b, c)
		ways[i].creator.run(b, batch) // warm
	}
	b.ResetTimer()
	for range b.N {
		for i := range ways {
			w := &ways[i]
			took, each := w.creator.run(b, batch)
			w.took += took
			w.each = append(w.each, each...)
		}
	}
	b.ReportMetric(0, "ns/op")
	for i := range ways {
		w := &ways[i]
		b.ReportMetric(float64(b.N*batch)/w.took.Seconds(), w.name+"-pods/s")
		b.ReportMetric(float64(percentile(w.each, 99).Microseconds())/1000, w.name+"-p99-ms")
	}
}

// BenchmarkWebhookUnderLoad creates pods at up to 1,000 per second, and reports the webhook's
// resource usage. -benchtime is the number of seconds:
//
//	go test ./e2e_admission -run '^$' -bench WebhookUnderLoad -benchtime 20x
func BenchmarkWebhookUnderLoad(b *testing.B) {
	c := start(b, upstreams)
	c.makeNamespace(b, &v1.Namespace{ObjectMeta: named(system)})
	p := c.startProcess(b)
	creator := newCreator(b, c)
	creator.run(b, batch)
	const rate = 1000
	var mu sync.Mutex
	var each []time.Duration
	var running sync.WaitGroup
	inFlight := make(chan struct{}, 256)
	b.ResetTimer()
	began := time.Now()
	for i := range b.N * rate {
		if wait := time.Until(began.Add(time.Duration(i) * time.Second / rate)); wait > 0 {
			<-time.After(wait)
		}
		inFlight <- struct{}{}
		running.Go(func() {
			took := creator.one(b)
			mu.Lock()
			each = append(each, took)
			mu.Unlock()
			<-inFlight
		})
	}
	running.Wait()
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(len(each))/time.Since(began).Seconds(), "pods/s")
	b.ReportMetric(float64(percentile(each, 99).Microseconds())/1000, "create-p99-ms")
	families := scrape(b, http.DefaultClient, "http://"+p.health+"/metrics")
	for _, m := range families["berth_webhook_review_duration_seconds"].GetMetric() {
		b.ReportMetric(1000*quantile(m.GetHistogram(), 0.99), m.GetLabel()[0].GetValue()+"-in-webhook-p99-ms")
	}
	client, err := rest.HTTPClientFor(c.Config)
	if err != nil {
		b.Fatal(err)
	}
	families = scrape(b, client, c.Config.Host+"/metrics")
	for _, m := range families["apiserver_admission_webhook_admission_duration_seconds"].GetMetric() {
		labels := map[string]string{}
		for _, l := range m.GetLabel() {
			labels[l.GetName()] = l.GetValue()
		}
		if labels["name"] == "pods.admission.berth.dev" && labels["operation"] == "CREATE" {
			b.ReportMetric(1000*quantile(m.GetHistogram(), 0.99), labels["type"]+"-seen-by-API-server-p99-ms")
		}
	}
}

// creator creates identical Burstable pods through one connection pool.
type creator struct {
	api  kubernetes.Interface
	next atomic.Int64
}

func newCreator(b *testing.B, c *cluster) *creator {
	config := rest.CopyConfig(c.Config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	return &creator{api: kubernetes.NewForConfigOrDie(config)}
}

func (c *creator) one(b *testing.B) time.Duration {
	began := time.Now()
	_, err := c.api.CoreV1().Pods("default").Create(context.Background(), &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p-%d", c.next.Add(1))},
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: "nginx", Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("10m")},
		}}}},
	}, metav1.CreateOptions{})
	if err != nil {
		b.Error(err)
	}
	return time.Since(began)
}

func (c *creator) run(b *testing.B, count int) (took time.Duration, each []time.Duration) {
	began := time.Now()
	parts := make([][]time.Duration, workers)
	var running sync.WaitGroup
	for worker := range workers {
		running.Go(func() {
			for i := worker; i < count; i += workers {
				parts[worker] = append(parts[worker], c.one(b))
			}
		})
	}
	running.Wait()
	return time.Since(began), slices.Concat(parts...)
}

func percentile(durations []time.Duration, percent int) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return sorted[min(len(sorted)-1, len(sorted)*percent/100)]
}

func scrape(b *testing.B, client *http.Client, url string) map[string]*dto.MetricFamily {
	response, err := client.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		b.Fatal(err)
	}
	return families
}

// quantile returns the upper bound of the bucket that contains the q-quantile.
func quantile(h *dto.Histogram, q float64) float64 {
	for _, bucket := range h.GetBucket() {
		if float64(bucket.GetCumulativeCount()) >= q*float64(h.GetSampleCount()) {
			return bucket.GetUpperBound()
		}
	}
	return 0
}
