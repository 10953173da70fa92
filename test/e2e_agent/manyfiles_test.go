package e2eagent

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-k8s/berth/internal/containerd"
)

// A pod with 600,000 files is measured for its limit while another takes the memory: the condition
// is in the API within a second of the memory being short.
func TestMemoryPressureWithManyFiles(t *testing.T) {
	files := 20_000
	if *long {
		files = 600_000
	}
	skipWithoutContainers(t)
	c := containerd.Start(t)
	n := littleMemory(t, "many-files", c, "--eviction-hard", "memory.available<200Mi", "--eviction-pressure-transition-period", "5s")
	ns := n.namespace(t)
	n.apply(t, ns, `{apiVersion: v1, kind: Pod, metadata: {name: files}, spec: {nodeName: many-files, automountServiceAccountToken: false,
  terminationGracePeriodSeconds: 1, volumes: [{name: files, emptyDir: {sizeLimit: 100Gi}}],
  containers: [{name: app, image: $IMAGE, imagePullPolicy: IfNotPresent, command: [sleep, "100000"], volumeMounts: [{name: files, mountPath: /files}]}]}}`)
	pod := n.awaitPod(t, ns, "files", "ready", ready)
	dir := filepath.Join(c.Dir, "agent", "pods", string(pod.UID), "volumes", "kubernetes.io~empty-dir", "files")
	makeFiles(t, dir, files)

	nodes, err := n.client.CoreV1().Nodes().Watch(context.Background(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", n.name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer nodes.Stop()
	n.apply(t, ns, load{name: "hog", requests: "{}", memory: 620}.manifest())
	short := make(chan time.Time, 1)
	go func() {
		for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			if available(c.CgroupRoot) < 200<<20 {
				short <- time.Now()
				return
			}
		}
		close(short)
	}()
	told := make(chan time.Time, 1)
	go func() {
		for event := range nodes.ResultChan() {
			node, is := event.Object.(*v1.Node)
			if !is {
				continue
			}
			for _, condition := range node.Status.Conditions {
				if condition.Type == v1.NodeMemoryPressure && condition.Status == v1.ConditionTrue {
					told <- time.Now()
					return
				}
			}
		}
	}()
	since, is := <-short
	if !is {
		t.Fatal("memory did not get short")
	}
	select {
	case at := <-told:
		took := at.Sub(since)
		t.Logf("with %d files the condition was there %s after the memory was short", files, took.Round(time.Millisecond))
		if took > time.Second {
			t.Errorf("memory pressure was seen after %s, want a second at most", took)
		}
	case <-time.After(time.Minute):
		t.Error("no memory pressure was seen")
	}
}

func makeFiles(t *testing.T, dir string, files int) {
	t.Helper()
	for i := range files {
		folder := filepath.Join(dir, strconv.Itoa(i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		file, err := os.Create(filepath.Join(folder, strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
	}
}

// available memory of a limited cgroup, as the kubelet reckons it.
func available(group string) int64 {
	folder, usage, inactive := filepath.Join("/sys/fs/cgroup/memory", group), "memory.usage_in_bytes", "total_inactive_file"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		folder, usage, inactive = filepath.Join("/sys/fs/cgroup", group), "memory.current", "inactive_file"
	}
	text, err := os.ReadFile(filepath.Join(folder, usage))
	if err != nil {
		return machineMemory
	}
	used, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	stat, _ := os.ReadFile(filepath.Join(folder, "memory.stat"))
	for line := range strings.Lines(string(stat)) {
		var n int64
		if _, err := fmt.Sscanf(line, inactive+" %d", &n); err == nil {
			used -= n
		}
	}
	return machineMemory - used
}
