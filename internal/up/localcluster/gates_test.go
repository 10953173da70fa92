// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package localcluster

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/berth-k8s/berth/internal/admission/evictionguard"
)

// TestGatesReachEveryProcess verifies that gates of berth up reach the control plane unchanged,
// with the API of pod groups if enabled, and that the scheduler receives the gates it supports.
func TestGatesReachEveryProcess(t *testing.T) {
	c := &Cluster{Gates: map[string]bool{"GenericWorkload": true, "TopologyAwareWorkloadScheduling": true, "WorkloadWithJob": true}}
	if err := c.CheckGates(); err != nil {
		t.Fatal(err)
	}
	line := strings.Join(c.controlplaneArgv(), " ")
	for _, want := range []string{
		"--feature-gates GenericWorkload=true,TopologyAwareWorkloadScheduling=true,WorkloadWithJob=true", "--runtime-config scheduling.k8s.io/v1beta1=true",
	} {
		if !strings.Contains(line, want) {
			t.Errorf("the control plane runs as %q, without %q", line, want)
		}
	}
	if want := "GenericWorkload=true,TaintTolerationComparisonOperators=true,TopologyAwareWorkloadScheduling=true"; !slices.Contains(c.schedulerArgv(), want) {
		t.Errorf("the scheduler runs as %q, without %q", c.schedulerArgv(), want)
	}
	if line := strings.Join((&Cluster{}).controlplaneArgv(), " "); strings.Contains(line, "gates") || strings.Contains(line, "runtime-config") {
		t.Errorf("without gates the control plane runs as %q", line)
	}
	c.Gates = map[string]bool{"BerthDevicePreemption": true}
	if line := strings.Join(c.controlplaneArgv(), " "); strings.Contains(line, "BerthDevicePreemption") {
		t.Errorf("the control plane gets Berth's own gate: %q", line)
	}
	if want := "BerthDevicePreemption=true,TaintTolerationComparisonOperators=true"; !slices.Contains(c.schedulerArgv(), want) {
		t.Errorf("the scheduler runs as %q, without %q", c.schedulerArgv(), want)
	}
	c.Gates = map[string]bool{"EvictionRequestAPI": true}
	if line := strings.Join(c.controlplaneArgv(), " "); !strings.Contains(line, "--runtime-config lifecycle.k8s.io/v1alpha1=true") {
		t.Errorf("with EvictionRequests the control plane runs as %q", line)
	}
	if !slices.Contains(c.controllerFlags(), "*,evictionrequest-controller") || len((&Cluster{}).controllerFlags()) > 0 {
		t.Errorf("with EvictionRequests the controller gets %q, without %q", c.controllerFlags(), (&Cluster{}).controllerFlags())
	}
	c.Gates = map[string]bool{"TopologyAwareWorkloadScheduling": true}
	if err := c.CheckGates(); err == nil || !strings.Contains(err.Error(), "needs GenericWorkload=true") {
		t.Errorf("a gate without the one that it needs: %v", err)
	}
}

// TestTheGuardsFlagsReachTheWebhookAndTheController covers the flags that both need with the same
// value.
func TestTheGuardsFlagsReachTheWebhookAndTheController(t *testing.T) {
	c := &Cluster{GuardEvictions: true, UIPort: NoPage, Guard: evictionguard.Options{
		Deadline: 2 * time.Minute, Fallback: evictionguard.Place, Choices: []string{evictionguard.Finish, evictionguard.Deny}, Share: 0.5}}
	for _, part := range c.listParts() {
		line, want := strings.Join(part.Argv(), " "), "--guard-deadline 2m0s --guard-fallback place --guard-choices finish,deny"
		if guarded := part.Name == "webhook" || part.Name == "controller"; strings.Contains(line, want) != guarded ||
			strings.Contains(line, "--guard-share 0.5") != (part.Name == "controller") {
			t.Errorf("%s runs as %q", part.Name, line)
		}
	}
}
