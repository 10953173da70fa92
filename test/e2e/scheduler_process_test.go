// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// replica is a running `berth scheduler`.
type replica struct {
	cmd   *exec.Cmd
	out   *printed
	ended chan error
}

// schedule starts a scheduler, which is killed at the end of the test.
func (c *cluster) schedule(t *testing.T, flags ...string) *replica {
	t.Helper()
	r := &replica{out: &printed{}, ended: make(chan error, 1)}
	// A test can override these flags, since the last occurrence of a flag counts.
	r.cmd = exec.Command(filepath.Join(bin, "berth"), append([]string{"scheduler", "--kubeconfig", filepath.Join(c.dir, "kubeconfig"),
		"--secure-port=0", "--health-bind-address=127.0.0.1:0"}, flags...)...)
	r.cmd.Stdout, r.cmd.Stderr = r.out, r.out
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { r.ended <- r.cmd.Wait() }()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		if t.Failed() {
			t.Logf("scheduler %d:\n%s", r.cmd.Process.Pid, r.out)
		}
	})
	eventually(t, startWithin, func() error { return r.says("health and metrics on ") })
	return r
}

func (r *replica) says(words string) error {
	if !strings.Contains(r.out.String(), words) {
		return fmt.Errorf("no %q in\n%s", words, r.out)
	}
	return nil
}

var endpointURL = regexp.MustCompile(`health and metrics on (http://\S+)`)

// page returns the response of one of the scheduler's endpoints, or "" after an error.
func (r *replica) page(path string) string {
	found := endpointURL.FindStringSubmatch(r.out.String())
	if found == nil {
		return ""
	}
	response, err := (&http.Client{Timeout: 5 * time.Second}).Get(found[1] + path)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return string(body)
}

// metric returns the sum of all series of a metric.
func (r *replica) metric(name string) (sum float64) {
	lines := bufio.NewScanner(strings.NewReader(r.page("/metrics")))
	for lines.Scan() {
		line := lines.Text()
		if rest, ok := strings.CutPrefix(line, name); ok && (strings.HasPrefix(rest, "{") || strings.HasPrefix(rest, " ")) {
			value, _ := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			sum += value
		}
	}
	return sum
}

// witness records the node of every pod of a scheduler, and reports pods whose node changes.
type witness struct {
	mu     sync.Mutex
	nodes  map[types.UID]string
	bound  []time.Time
	broken []string
}

// watch watches the pods until the test ends.
func (w *witness) watch(t *testing.T, client kubernetes.Interface, scheduler string) {
	t.Helper()
	ctx, stop := context.WithCancel(background())
	done := make(chan struct{})
	t.Cleanup(func() { stop(); <-done })
	options := metav1.ListOptions{FieldSelector: "spec.schedulerName=" + scheduler, ResourceVersion: "0"}
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			watching, err := client.CoreV1().Pods("default").Watch(ctx, options)
			if err != nil {
				continue
			}
			for event := range watching.ResultChan() {
				if pod, ok := event.Object.(*v1.Pod); ok {
					w.saw(pod)
				}
			}
		}
	}()
}

func (w *witness) saw(pod *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch before := w.nodes[pod.UID]; {
	case before == "" && pod.Spec.NodeName != "":
		w.nodes[pod.UID] = pod.Spec.NodeName
		w.bound = append(w.bound, time.Now())
	case before != "" && before != pod.Spec.NodeName:
		w.broken = append(w.broken, fmt.Sprintf("%s went from %s to %s", pod.Name, before, pod.Spec.NodeName))
	}
}

// firstBoundAfter returns the time of the first binding after t.
func (w *witness) firstBoundAfter(t time.Time) (time.Time, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, _ := slices.BinarySearchFunc(w.bound, t, time.Time.Compare)
	if i == len(w.bound) {
		return time.Time{}, false
	}
	return w.bound[i], true
}

// load creates small pods for a scheduler at a constant rate until stop is called. stop returns the
// number of created pods.
func load(t *testing.T, client kubernetes.Interface, scheduler string, perSecond int) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(background())
	var made atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			pod := &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", scheduler, i)},
				Spec: v1.PodSpec{SchedulerName: scheduler, Containers: []v1.Container{{Name: "c", Image: "busybox",
					Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1m")}}}}},
			}
			if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err == nil {
				made.Add(1)
			} else if ctx.Err() == nil {
				t.Errorf("create pod: %v", err)
			}
		}
	}()
	stop = func() int { cancel(); <-done; return int(made.Load()) }
	t.Cleanup(func() { stop() }) // also if the test fails before
	return stop
}

// allPlaced waits until every pod of the scheduler has a node and there are at least the given
// number of pods.
func allPlaced(t *testing.T, client kubernetes.Interface, scheduler string, atLeast int, meanwhile ...func()) {
	t.Helper()
	eventually(t, 90*time.Second, func() error {
		for _, f := range meanwhile {
			f()
		}
		pods, err := client.CoreV1().Pods("default").List(background(), metav1.ListOptions{FieldSelector: "spec.schedulerName=" + scheduler})
		if err != nil {
			return err
		}
		waiting := 0
		for i := range pods.Items {
			if pods.Items[i].Spec.NodeName == "" {
				waiting++
			}
		}
		if waiting > 0 || len(pods.Items) < atLeast {
			return fmt.Errorf("of %d pods, %d wait; %d were created", len(pods.Items), waiting, atLeast)
		}
		return nil
	})
}
