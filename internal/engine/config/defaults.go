package config

import (
	componentbase "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/berth-k8s/berth/internal/engine/plugins"
)

// setDefaults fills in what the file leaves out, apart from the plugins themselves (see merged).
func setDefaults(spec *configv1.KubeSchedulerConfiguration) {
	setDefault(&spec.Parallelism, 16)
	setDefault(&spec.PercentageOfNodesToScore, 0)
	setDefault(&spec.PodInitialBackoffSeconds, 1)
	setDefault(&spec.PodMaxBackoffSeconds, 10)
	setDefault(&spec.EnableProfiling, true)
	if *spec.EnableProfiling {
		setDefault(&spec.EnableContentionProfiling, true)
	}

	if len(spec.Profiles) == 0 {
		spec.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	if len(spec.Profiles) == 1 {
		setDefault(&spec.Profiles[0].SchedulerName, plugins.DefaultSchedulerName)
	}

	election := &spec.LeaderElection
	setString(&election.ResourceLock, "leases")
	setString(&election.ResourceNamespace, configv1.SchedulerDefaultLockObjectNamespace)
	setString(&election.ResourceName, configv1.SchedulerDefaultLockObjectName)
	componentbase.RecommendedDefaultLeaderElectionConfiguration(election)
	setString(&spec.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	for i := range spec.Profiles {
		for j := range spec.Profiles[i].PluginConfig {
			plugins.SetArgsDefaults(spec.Profiles[i].PluginConfig[j].Args.Object)
		}
	}
}

func setDefault[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func setString(field *string, value string) {
	if *field == "" {
		*field = value
	}
}
