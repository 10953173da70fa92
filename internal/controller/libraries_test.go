// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/metrics/legacyregistry"
)

// TestLibrariesMetricsAreRegistered verifies that metrics served by the libraries Berth shares with
// Kubernetes' components, according to docs/reference/metrics-parity.md, are registered in the
// process; kubernetes_healthcheck*, at /metrics/slis, have a separate registry. The test tries to
// register a metric of the same name with another description, which a registry rejects if the name
// is taken.
func TestLibrariesMetricsAreRegistered(t *testing.T) {
	registered := func(name string) (is bool) {
		defer func() { is = recover() != nil }()
		legacyregistry.RawMustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: "Is the name taken?"}))
		return false
	}
	electALeader(t)
	for _, name := range []string{
		"rest_client_request_duration_seconds", "rest_client_requests_total", "rest_client_rate_limiter_duration_seconds", "rest_client_request_retries_total",
		"rest_client_request_size_bytes", "rest_client_response_size_bytes", "rest_client_transport_cache_entries", "rest_client_transport_create_calls_total",
		"rest_client_exec_plugin_call_total", "rest_client_exec_plugin_certificate_rotation_age",
		"rest_client_transport_cache_gc_calls_total", "rest_client_transport_cert_rotation_gc_calls_total", "rest_client_transport_ca_reload_total",
		"rest_client_exec_plugin_ttl_seconds", "leader_election_master_status", "leader_election_slowpath_total",
		"kubernetes_build_info", "disabled_metrics_total", "hidden_metrics_total", "registered_metrics_total",
		"kubernetes_feature_enabled",
	} {
		if !registered(name) {
			t.Errorf("%s is not registered", name)
		}
	}
	if registered("berth_no_such_metric") {
		t.Error("any name counts as registered")
	}
}

// electALeader creates a LeaderElector, as a process does at its start, because only this registers
// the metrics of leader election.
func electALeader(t *testing.T) {
	t.Helper()
	_, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          &resourcelock.LeaseLock{LockConfig: resourcelock.ResourceLockConfig{Identity: "one"}},
		LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) {}, OnStoppedLeading: func() {}},
	})
	if err != nil {
		t.Fatal(err)
	}
}
