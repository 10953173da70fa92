// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package e2eeviction

import (
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/berth-k8s/berth/test/kcm"
)

// side is the controller under test: Berth's or upstream's.
type side struct {
	name  string
	start func(t *testing.T, s *stage, kubeconfig string) *child // returns when the controller evicts pods
}

var berthSide = side{"Berth", func(t *testing.T, s *stage, kubeconfig string) *child {
	p := startController(t, kubeconfig, alone, "--controllers=taint-eviction-controller")
	s.evicts(30 * time.Second)
	return p
}}

var upstreamSide = side{"kube-controller-manager", func(t *testing.T, s *stage, kubeconfig string) *child {
	binary, err := upstreamBinary()
	if err != nil {
		t.Fatal(err)
	}
	p := newChild(t, exec.Command(binary, kcm.Args(kubeconfig)...))
	p.start()
	s.evicts(30 * time.Second)
	return p
}}

var upstreamBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "berth-e2e-eviction-")
	if err != nil {
		return "", err
	}
	temporary = append(temporary, dir)
	return kcm.Build(dir)
})

// evicts waits until the controller evicts a pod.
func (s *stage) evicts(limit time.Duration) {
	s.Helper()
	const name = "is-at-work"
	if err := s.createNode(name, "z"); err == nil {
		_, err := s.client.CoreV1().Nodes().Patch(s.Context(), name, mergePatch, taintPatch("work"), kubectlTaint)
		s.must(err)
	}
	pod, err := s.createPod(name, name)
	s.must(err)
	if !s.leavesBy(pod.UID, time.Now().Add(limit)) {
		s.Fatalf("nothing evicted within %v", limit)
	}
}
