// Copyright The Berth Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	componentbase "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// legacyVersions holds the API versions of configuration files without profiles. Versions v1beta1
// to v1beta3 are not included: upstream converted such files itself, and Berth refuses them as an
// unknown version.
var legacyVersions = map[string]bool{"componentconfig/v1alpha1": true, "kubescheduler.config.k8s.io/v1alpha1": true}

// componentConfig is a KubeSchedulerConfiguration of these versions: it has one set of plugins for
// all pods, determined by a provider or by a policy. Fields are pointers if an omitted field
// differs from zero.
type componentConfig struct {
	metav1.TypeMeta                      `json:",inline"`
	componentbase.DebuggingConfiguration `json:",inline"`

	// The name of the only profile; default-scheduler if it is omitted.
	SchedulerName   *string          `json:"schedulerName"`
	AlgorithmSource *algorithmSource `json:"algorithmSource"`
	// This field is now an argument of InterPodAffinity.
	HardPodAffinitySymmetricWeight *int32 `json:"hardPodAffinitySymmetricWeight"`
	// These two fields are unchanged except for the names of the lock's fields.
	LeaderElection   leaderElection                              `json:"leaderElection"`
	ClientConnection componentbase.ClientConnectionConfiguration `json:"clientConnection"`
	// The addresses are now flags.
	HealthzBindAddress *string `json:"healthzBindAddress"`
	MetricsBindAddress *string `json:"metricsBindAddress"`
	DisablePreemption  bool    `json:"disablePreemption"`
	// Like the current field, it has no effect in Berth.
	PercentageOfNodesToScore *int32 `json:"percentageOfNodesToScore"`
	// This field is now an argument of VolumeBinding.
	BindTimeoutSeconds       *int64 `json:"bindTimeoutSeconds"`
	PodInitialBackoffSeconds *int64 `json:"podInitialBackoffSeconds"`
	PodMaxBackoffSeconds     *int64 `json:"podMaxBackoffSeconds"`
	// FailureDomains lists the labels of zones and regions, which are now fixed.
	FailureDomains *string `json:"failureDomains"`
}

// algorithmSource is the source of predicates and priorities: a provider, which names a set of
// predicates and priorities, or a policy in a file or in a ConfigMap.
type algorithmSource struct {
	// Exactly one of Provider and Policy is given.
	Provider *string `json:"provider"`
	Policy   *struct {
		File *struct {
			Path string `json:"path"`
		} `json:"file"`
		ConfigMap *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"configMap"`
	} `json:"policy"`
}

// leaderElection has legacy names for the fields of the lock.
type leaderElection struct {
	componentbase.LeaderElectionConfiguration `json:",inline"`
	LockObjectNamespace                       string `json:"lockObjectNamespace"`
	LockObjectName                            string `json:"lockObjectName"`
}

// translateComponentConfig translates the file into a current one. Paths in the file are relative
// to dir, the file's directory. Fields without an equivalent result in notes, not in errors.
func translateComponentConfig(data []byte, dir string, options Options) (*translation, error) {
	var old componentConfig
	if err := unmarshalStrict(data, &old); err != nil {
		return nil, err
	}
	// The version has been checked; there was no other kind of file in these versions.
	if old.Kind != "KubeSchedulerConfiguration" {
		return nil, fmt.Errorf("kind: Invalid value: %q: want KubeSchedulerConfiguration", old.Kind)
	}

	// Read the policy first, because the file's own fields are added to the policy's profile.
	t, err := old.readAlgorithm(dir, options)
	if err != nil {
		return nil, err
	}

	profile := &t.spec.Profiles[0]
	profile.SchedulerName = old.SchedulerName
	if old.DisablePreemption {
		disablePreemption(profile)
	}

	// Set arguments after the policy is translated, because the policy takes precedence.
	if err := old.setArguments(profile); err != nil {
		return nil, err
	}
	t.spec.ClientConnection, t.spec.DebuggingConfiguration = old.ClientConnection, old.DebuggingConfiguration
	t.spec.PercentageOfNodesToScore = old.PercentageOfNodesToScore
	t.spec.PodInitialBackoffSeconds, t.spec.PodMaxBackoffSeconds = old.PodInitialBackoffSeconds, old.PodMaxBackoffSeconds
	t.spec.LeaderElection = old.electionConfig(t)

	// An empty value had no effect, so dropping it loses nothing.
	for _, gone := range []struct {
		name  string
		value *string
	}{{"healthzBindAddress", old.HealthzBindAddress}, {"metricsBindAddress", old.MetricsBindAddress},
		{"failureDomains", old.FailureDomains}} {
		if gone.value != nil && *gone.value != "" {
			t.notes = append(t.notes, gone.name+": has no equivalent in the current format")
		}
	}

	return t, nil
}

// readAlgorithm reads the policy referenced by the file, if any. The returned translation has
// exactly one profile.
func (c *componentConfig) readAlgorithm(dir string, options Options) (*translation, error) {
	plain := &translation{spec: configv1.KubeSchedulerConfiguration{Profiles: []configv1.KubeSchedulerProfile{{}}}}
	if c.AlgorithmSource == nil {
		return plain, nil
	}

	path := field.NewPath("algorithmSource")
	// As in kube-scheduler of these versions, a provider takes precedence over a policy.
	if provider := c.AlgorithmSource.Provider; provider != nil {
		return plain, translateProvider(path.Child("provider"), *provider, &plain.spec.Profiles[0])
	}

	switch source := c.AlgorithmSource.Policy; {
	case source == nil:
		return nil, field.Required(path, "want provider or policy")
	case source.File != nil:
		file := source.File.Path
		// Paths are relative to the referencing file, not to the working directory.
		if !filepath.IsAbs(file) {
			file = filepath.Join(dir, file)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Child("policy", "file", "path"), err)
		}
		return readReferred(file, data)
	case source.ConfigMap != nil && options.PolicyFromConfigMap != nil:
		from := fmt.Sprintf("ConfigMap %s/%s", source.ConfigMap.Namespace, source.ConfigMap.Name)
		data, err := options.PolicyFromConfigMap(source.ConfigMap.Namespace, source.ConfigMap.Name)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path.Child("policy", "configMap"), from, err)
		}
		return readReferred(from, data)
	// Commands that only check or translate a file need no cluster.
	case source.ConfigMap != nil:
		return nil, fmt.Errorf("%s: there is no cluster to get a ConfigMap from; give the policy as a file",
			path.Child("policy", "configMap"))
	}

	return nil, field.Required(path.Child("policy"), "want file or configMap")
}

// readReferred reads a policy referenced by a file; from is its name in errors and notes.
func readReferred(from string, data []byte) (*translation, error) {
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(data, &head); err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	if head.Kind != "Policy" {
		return nil, fmt.Errorf("%s: kind: Invalid value: %q: want Policy", from, head.Kind)
	}
	t, err := translatePolicy(data, head.APIVersion)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	for _, note := range noteUnread(data) {
		t.notes = append(t.notes, from+": "+note)
	}
	return t, nil
}

// translateProvider translates the two named sets of plugins. ClusterAutoscalerProvider packed pods
// onto few nodes, so that the remaining nodes could be removed.
func translateProvider(path *field.Path, provider string, profile *configv1.KubeSchedulerProfile) error {
	switch provider {
	case configv1.SchedulerDefaultProviderName:
		return nil
	case "ClusterAutoscalerProvider":
		fitArgs(profile).ScoringStrategy.Type = configv1.MostAllocated
		return nil
	}
	return field.NotSupported(path, provider, []string{configv1.SchedulerDefaultProviderName, "ClusterAutoscalerProvider"})
}

// disablePreemption removes the plugin from the profile, wherever it is enabled. A translated
// policy lists the plugin at single points; otherwise the plugin is one of the defaults, and is
// disabled at multiPoint.
func disablePreemption(profile *configv1.KubeSchedulerProfile) {
	const name = "DefaultPreemption"
	if profile.Plugins == nil {
		profile.Plugins = &configv1.Plugins{MultiPoint: configv1.PluginSet{Disabled: []configv1.Plugin{{Name: name}}}}
		return
	}
	written := profile.Plugins
	for _, set := range []*configv1.PluginSet{&written.PreEnqueue, &written.PostFilter, &written.PodGroupPostFilter} {
		set.Enabled = slices.DeleteFunc(set.Enabled, func(p configv1.Plugin) bool { return p.Name == name })
	}
}

// setArguments sets the fields that have since become plugin arguments. The policy overrides the
// file that refers to it.
func (c *componentConfig) setArguments(profile *configv1.KubeSchedulerProfile) error {
	t := newTranslator()
	if w := c.HardPodAffinitySymmetricWeight; w != nil && !slices.ContainsFunc(profile.PluginConfig,
		func(c configv1.PluginConfig) bool { return c.Name == "InterPodAffinity" }) {
		if *w < 0 || *w > 100 {
			return field.Invalid(field.NewPath("hardPodAffinitySymmetricWeight"), *w, "not in valid range [0-100]")
		}
		t.setArgs("InterPodAffinity", &configv1.InterPodAffinityArgs{HardPodAffinityWeight: ptr.To(*w)})
	}
	if s := c.BindTimeoutSeconds; s != nil {
		if *s < 0 {
			return field.Invalid(field.NewPath("bindTimeoutSeconds"), *s, "must not be negative")
		}
		t.setArgs("VolumeBinding", &configv1.VolumeBindingArgs{BindTimeoutSeconds: ptr.To(*s)})
	}
	return t.writeArguments(profile)
}

// electionConfig renames the lock's fields. Locks on Endpoints and ConfigMaps no longer exist and
// are replaced by a Lease, so an old scheduler and a new scheduler may lead at the same time.
func (c *componentConfig) electionConfig(t *translation) componentbase.LeaderElectionConfiguration {
	e := c.LeaderElection.LeaderElectionConfiguration
	// A file may have both names; the current name counts.
	e.ResourceNamespace = cmp.Or(e.ResourceNamespace, c.LeaderElection.LockObjectNamespace)
	e.ResourceName = cmp.Or(e.ResourceName, c.LeaderElection.LockObjectName)
	if e.ResourceLock != "" && e.ResourceLock != "leases" {
		t.notes = append(t.notes, fmt.Sprintf("leaderElection.resourceLock: %s has no equivalent and becomes leases", e.ResourceLock))
		e.ResourceLock = "leases"
	}
	return e
}
