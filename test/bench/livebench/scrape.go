// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package livebench

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-k8s/berth/test/bench/driver"
	"github.com/berth-k8s/berth/test/internal/process"
)

// observed is a scheduler that serves its metrics.
type observed struct {
	*process.Process
	client *http.Client
	url    string
	// exceeded is the peak memory at which the process was killed, or 0; see endAbove.
	exceeded atomic.Int64
}

// endAbove kills the process if its peak memory exceeds the limit.
func (o *observed) endAbove(most int64) {
	for {
		select {
		case <-o.Ended:
			return
		case <-time.After(time.Second):
		}
		if peak := o.Peak(); peak > most {
			o.exceeded.Store(peak)
			o.Kill()
		}
	}
}

// startObserved starts a scheduler that serves its metrics to anonymous clients, with the API
// server's certificate.
func (b *bench) startObserved(s *driver.Scheduler, flags ...string) (*observed, error) {
	ports, err := driver.FreePorts(1)
	if err != nil {
		return nil, err
	}

	config, err := clientcmd.BuildConfigFromFlags("", b.Kubeconfig)
	if err != nil {
		return nil, err
	}

	o := &observed{url: "https://127.0.0.1:" + ports[0] + "/metrics"}
	if o.client, err = rest.HTTPClientFor(rest.AnonymousClientConfig(config)); err != nil {
		return nil, err
	}

	certificate := b.Certificate()
	o.Process, err = b.StartScheduler(s, append(flags, "--bind-address", "127.0.0.1", "--secure-port", ports[0],
		"--tls-cert-file", certificate+".crt", "--tls-private-key-file", certificate+".key",
		"--authorization-always-allow-paths", "/metrics")...)
	return o, err
}

// readMetrics reads all metrics of the scheduler.
func (o *observed) readMetrics(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url, nil)
	if err != nil {
		return nil, err
	}
	response, err := o.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s: %s", o.Name, o.url, response.Status)
	}
	return driver.ReadMetrics(response.Body)
}
