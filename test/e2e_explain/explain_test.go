// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eexplain

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-k8s/berth/internal/inspect/explain"
)

const allNodes = "node-1 node-2 node-3 node-4 node-5 node-6"

// TestTheTimeOfAnEvictionIsKnown verifies that a pod is evicted for a taint at the time predicted
// by berth explain.
func TestTheTimeOfAnEvictionIsKnown(t *testing.T) {
	create(t, "soon", `{"spec":{"nodeName":"node-3","tolerations":[{"key":"hot","operator":"Exists","effect":"NoExecute","tolerationSeconds":5}],"containers":[{"name":"c","image":"nginx"}]}}`)
	within(t, 20*time.Second, "the pod runs", func() bool { return pod(t, "soon").Status.Phase == v1.PodRunning })
	sh(t, "kubectl taint nodes node-3 hot=yes:NoExecute")
	defer sh(t, "kubectl taint nodes node-3 hot-")
	e := ask(t, "soon")
	if e.Eviction == nil || e.Eviction.Taint != "hot=yes:NoExecute" || len(e.Eviction.Cancel) == 0 {
		t.Fatalf("%+v", e.Eviction)
	}
	var gone time.Time
	within(t, 20*time.Second, "the pod goes", func() bool {
		p, err := client.CoreV1().Pods("default").Get(t.Context(), "soon", metav1.GetOptions{})
		if err != nil || p.DeletionTimestamp != nil {
			gone = time.Now()
			return true
		}
		return false
	})
	// The prediction is exact to the second. On a very busy machine, the eviction and its
	// observation by the test may be a little later.
	if off := gone.Sub(e.Eviction.Due.Time); off < -1500*time.Millisecond || off > 4*time.Second {
		t.Errorf("it went %v after the time that was foretold", off)
	}
}

func ask(t *testing.T, name string) *explain.Explanation {
	t.Helper()
	e := &explain.Explanation{}
	if err := json.Unmarshal([]byte(must(t, "", "explain", "pod/"+name, "-o", "json")), e); err != nil {
		t.Fatal(err)
	}
	return e
}

func create(t *testing.T, name, text string) {
	t.Helper()
	var p v1.Pod
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		t.Fatal(err)
	}
	p.Name = name
	if _, err := client.CoreV1().Pods("default").Create(t.Context(), &p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = berth(t, "", "kubectl", "delete", "pod", name, "--force", "--ignore-not-found") })
}

func pod(t *testing.T, name string) *v1.Pod {
	t.Helper()
	p, err := client.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sh runs a command line as printed by berth, with the built-in kubectl.
func sh(t *testing.T, line string) {
	t.Helper()
	if line == "" {
		return
	}
	line = strings.ReplaceAll(line, "berth nodes ", filepath.Join(bin, "berth")+" nodes ")
	cmd := exec.Command("sh", "-c", strings.ReplaceAll(line, "kubectl ", filepath.Join(bin, "berth")+" kubectl "))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v\n%s", line, err, out)
	}
}
