// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	componentbase "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
	"github.com/berth-k8s/berth/internal/engine/rules"
)

// setDefaults fills in omitted fields, apart from the plugins themselves (see mergePlugins). The
// values are upstream's. percentageOfNodesToScore is 0: upstream then computes a percentage from
// the number of nodes, and Berth ignores the field.
func setDefaults(spec *configv1.KubeSchedulerConfiguration) {
	rules.SetDefault(&spec.Parallelism, 16)
	rules.SetDefault(&spec.PercentageOfNodesToScore, 0)
	// Both are in seconds. Each failed attempt doubles the back-off, from the first value up to the
	// second.
	rules.SetDefault(&spec.PodInitialBackoffSeconds, 1)
	rules.SetDefault(&spec.PodMaxBackoffSeconds, 10)
	rules.SetDefault(&spec.EnableProfiling, true)
	// Like upstream, contention profiling is part of profiling.
	if *spec.EnableProfiling {
		rules.SetDefault(&spec.EnableContentionProfiling, true)
	}

	if len(spec.Profiles) == 0 {
		spec.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	// If there are several profiles, each must have a name, since two unnamed profiles would serve
	// the same pods.
	if len(spec.Profiles) == 1 {
		rules.SetDefault(&spec.Profiles[0].SchedulerName, plugins.DefaultSchedulerName)
	}

	election := &spec.LeaderElection
	election.ResourceLock = cmp.Or(election.ResourceLock, "leases")
	election.ResourceNamespace = cmp.Or(election.ResourceNamespace, configv1.SchedulerDefaultLockObjectNamespace)
	election.ResourceName = cmp.Or(election.ResourceName, configv1.SchedulerDefaultLockObjectName)
	componentbase.RecommendedDefaultLeaderElectionConfiguration(election)
	spec.ClientConnection.ContentType = cmp.Or(spec.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	// Arguments that are missing altogether get their defaults from the plugins.
	for i := range spec.Profiles {
		for j := range spec.Profiles[i].PluginConfig {
			plugins.SetArgsDefaults(spec.Profiles[i].PluginConfig[j].Args.Object)
		}
	}
}
