// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package kcm

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"time"
)

const command = "k8s.io/kubernetes/cmd/kube-controller-manager"

// Build compiles kube-controller-manager into the folder and returns its path. It must be called
// within this module, as tests and "go run" are.
func Build(dir string) (string, error) {
	path := filepath.Join(dir, "kube-controller-manager")
	if out, err := exec.Command("go", "build", "-o", path, command).CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", command, err, out)
	}
	return path, nil
}

// never is a grace period longer than any run. The nodes of the tests are only API objects and send
// no heartbeats.
const never = 24 * time.Hour

// Args returns the arguments that run the taint-eviction controller. The node-lifecycle controller
// also runs, because taint eviction needs its index and otherwise evicts nothing. With these grace
// periods, it has nothing to do.
func Args(kubeconfig string) []string {
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--controllers=taint-eviction-controller,node-lifecycle-controller",
		"--leader-elect=false", "--secure-port=0", "--profiling=false",
		"--kube-api-qps=10000", "--kube-api-burst=10000",
		"--node-monitor-grace-period=" + never.String(), "--node-startup-grace-period=" + never.String(),
	}
}
