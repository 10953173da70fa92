// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2ereal

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var drainCount = flag.Int("drains", 20, "how many drains with and without the eviction guard")

// server is a Deployment of one pod behind a Service. A pod is ready eight seconds after its start,
// and serves for five seconds after its eviction; meanwhile, kube-proxy still uses it if no other
// pod is ready. The preStop hook lets kube-proxy remove the pod before it ends.
const server = `
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s, labels: {%[2]s}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: %[1]s}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: c
        image: busybox:1
        command: [sh, -c, "sleep 8; echo hello > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"]
        readinessProbe: {httpGet: {path: /, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 3}}}
`

// drainsGuarded drains the node of the only pod again and again, with kubectl drain. No request may
// fail.
func (c *cluster) drainsGuarded() string {
	failed, sent, seconds := c.drains("guarded", "team: guarded")
	if failed > 0 {
		c.Errorf("%d of %d requests failed", failed, sent)
	}
	return fmt.Sprintf("%d of %d requests failed in %d drains of %.1f s on average", failed, sent, *drainCount, seconds)
}

// drainsUnguarded does the same in a namespace without the guard, for comparison.
func (c *cluster) drainsUnguarded() string {
	failed, sent, seconds := c.drains("unguarded", "berth.dev/webhook: disabled")
	return fmt.Sprintf("%d of %d requests failed in %d drains of %.1f s on average", failed, sent, *drainCount, seconds)
}

func (c *cluster) drains(namespace, label string) (failed, sent int, seconds float64) {
	c.Helper()
	c.apply(fmt.Sprintf(server, namespace, label))
	defer c.kubectl("delete", "namespace", namespace)
	c.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=120s")
	service, err := c.client.CoreV1().Services(namespace).Get(c.Context(), "web", metav1.GetOptions{})
	c.must(err)
	url := "http://" + service.Spec.ClusterIP + "/index.html"
	c.eventually("the Service answers", func() error { return get(c.Context(), url) })

	r := startRequests(c.Context(), url)
	began := time.Now()
	for i := range *drainCount {
		r.phase(fmt.Sprint("drain ", i+1))
		node := c.kubectl("get", "pods", "-n", namespace, "-l", "app=web", "-o", "jsonpath={.items[0].spec.nodeName}")
		c.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=150s")
		r.phase(fmt.Sprint("after drain ", i+1))
		c.kubectl("rollout", "status", "deployment/web", "-n", namespace, "--timeout=120s")
		c.kubectl("uncordon", node)
	}
	seconds = time.Since(began).Seconds() / float64(*drainCount)
	failed, sent = r.stop()
	for _, line := range r.failures {
		c.Log(line)
	}
	return failed, sent, seconds
}

// requests is a client that sends fifty requests per second, each on a separate connection.
type requests struct {
	cancel       context.CancelFunc
	running      sync.WaitGroup
	mu           sync.Mutex
	failed, sent int
	name         string    // of the current phase
	since        time.Time // when it began
	failures     []string
}

const mostFailures = 50 // failures to describe

func startRequests(ctx context.Context, url string) *requests {
	ctx, cancel := context.WithCancel(ctx)
	r := &requests{cancel: cancel, since: time.Now()}
	r.running.Go(func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				r.running.Go(func() { r.send(ctx, url) })
			}
		}
	})
	return r
}

// phase begins the next phase. Descriptions of failed requests name it.
func (r *requests) phase(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name, r.since = name, time.Now()
}

func (r *requests) send(ctx context.Context, url string) {
	began := time.Now()
	err := get(ctx, url)
	if ctx.Err() != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent++
	if err == nil {
		return
	}
	r.failed++
	if len(r.failures) < mostFailures {
		r.failures = append(r.failures, fmt.Sprintf("sent %.1f s after the beginning of %q, failed %.2f s later: %v",
			began.Sub(r.since).Seconds(), r.name, time.Since(began).Seconds(), err))
	}
}

func (r *requests) stop() (failed, sent int) {
	r.cancel()
	r.running.Wait()
	return r.failed, r.sent
}

// get sends a request on a new connection, and waits two seconds for the response.
func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	connected := false
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }})
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("connected %t: %w", connected, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && string(text) != "hello\n" {
		err = errors.New("response: " + string(text))
	}
	return err
}
